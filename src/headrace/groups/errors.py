"""What can go wrong with groups and instances: closed sets without code numbers. Each API has one table for them."""

from enum import Enum, auto


class GroupError(Enum):
    """Why a request to a group was refused; the names are Kafka's."""

    INVALID_GROUP_ID = auto()
    """The empty group name, where members are concerned; a new group whose name has more than 1 024 bytes."""
    GROUP_ID_NOT_FOUND = auto()
    """No such group."""
    UNKNOWN_MEMBER_ID = auto()
    """The group does not know this member (any more): it has to join anew, with an empty member id."""
    MEMBER_ID_REQUIRED = auto()
    """Not a failure: join again with the member id that comes with this."""
    FENCED_INSTANCE_ID = auto()
    """Another member has taken this static instance over."""
    ILLEGAL_GENERATION = auto()
    """The request belongs to another generation than the present one."""
    REBALANCE_IN_PROGRESS = auto()
    """The group is making a new generation: join again."""
    INCONSISTENT_GROUP_PROTOCOL = auto()
    """Another protocol type than the group's, no protocol that all members have, or none at all."""
    INVALID_SESSION_TIMEOUT = auto()
    """A session timeout outside the bounds of the settings."""
    GROUP_MAX_SIZE_REACHED = auto()
    """The group has as many members as it may have."""
    POLICY_VIOLATION = auto()
    """A new group, and there are as many as the settings allow."""
    NON_EMPTY_GROUP = auto()
    """Only a group without members can be deleted."""
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    """A member reads this topic, so its positions are in use."""
    OFFSET_METADATA_TOO_LARGE = auto()
    """The text that comes with a position is longer than the settings allow."""
    UNKNOWN_TOPIC_OR_PARTITION = auto()
    """No such topic or partition. The caller knows the topics: it finds this, not the group."""
    COORDINATOR_NOT_AVAILABLE = auto()
    """The group's storage did not take a change, or the group ended while the request waited. Ask again."""
    NOT_COORDINATOR = auto()
    """Another broker coordinates the group: look for it again."""


class InstanceProblem(Enum):
    """Why a request was refused."""

    UNRESERVED_PARTITION = auto()
    """An offset to commit belongs to a partition that the instance lost: by silence, by holding on too long, or to a
    newer cursor of the same name. Nothing of the request was committed. Cure: a new cursor."""
    UNKNOWN_GROUP = auto()
    """The topic has no such group: never made, deleted, or unused for too long."""
    TOO_MANY_GROUPS = auto()
    """The topic has as many groups as it may have."""
    GROUP_IN_USE = auto()
    """Members of a classic group (Kafka's consumers) are in it; they must leave first."""
    BEHIND_LOG_START = auto()
    """Records that the group has not read are gone: a position lies before the log start. Cure: UpdateGroup."""
    INVALID_CURSOR = auto()
    """The cursor cannot be this group's: it was made for one of the same name that is gone."""
    UNAVAILABLE = auto()
    """Storage did not take a change, or did not answer a read. Nothing was promised; ask again."""


class InstanceError(Exception):
    """A request of an instance was refused."""

    def __init__(self, kind: InstanceProblem, message: str, partition: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.partition = partition
        """The partition it is about, where it is about one."""
