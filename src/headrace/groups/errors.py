"""Errors of groups and instances, without codes. Each API maps them in one table."""

from enum import Enum, auto


class GroupError(Enum):
    """A rejected group request, with Kafka's names."""

    INVALID_GROUP_ID = auto()
    """An empty group id for members, or a new one of more than 1,024 bytes."""
    GROUP_ID_NOT_FOUND = auto()
    """No such group."""
    UNKNOWN_MEMBER_ID = auto()
    """Unknown or expired member: join again with an empty member id."""
    MEMBER_ID_REQUIRED = auto()
    """Not a failure: join again with the returned member id."""
    FENCED_INSTANCE_ID = auto()
    """Another member has replaced this static instance."""
    ILLEGAL_GENERATION = auto()
    """The request has another generation than the group."""
    REBALANCE_IN_PROGRESS = auto()
    """A rebalance is in progress: join again."""
    INCONSISTENT_GROUP_PROTOCOL = auto()
    """Another protocol type than the group's, or no common protocol."""
    INVALID_SESSION_TIMEOUT = auto()
    """The session timeout is out of bounds."""
    GROUP_MAX_SIZE_REACHED = auto()
    """The group has its maximum of members."""
    POLICY_VIOLATION = auto()
    """The server has its maximum of groups."""
    NON_EMPTY_GROUP = auto()
    """Only a group without members can be deleted."""
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    """A member reads this topic, so its offsets are in use."""
    OFFSET_METADATA_TOO_LARGE = auto()
    """The commit's metadata exceeds the limit."""
    INVALID_PRODUCER_EPOCH = auto()
    """A newer epoch of the transaction's producer is known."""
    UNKNOWN_TOPIC_OR_PARTITION = auto()
    """No such topic or partition. Checked by the caller."""
    COORDINATOR_NOT_AVAILABLE = auto()
    """Storage rejected a change, or the group ended. Retry."""
    NOT_COORDINATOR = auto()
    """Another broker coordinates the group. Find it again."""
    INVALID_REQUEST = auto()
    """A field of the request has an invalid value."""
    UNSUPPORTED_VERSION = auto()
    """A member of a newer kind of group used a version that does not know its epoch."""
    FENCED_MEMBER_EPOCH = auto()
    """The member's epoch differs from the group's: give up all partitions and join again."""
    STALE_MEMBER_EPOCH = auto()
    """The member's epoch differs from the group's: try again with the one of the next heartbeat."""
    UNRELEASED_INSTANCE_ID = auto()
    """A live member has this instance ID."""
    UNSUPPORTED_ASSIGNOR = auto()
    """The server does not have the named assignor."""
    INVALID_REGULAR_EXPRESSION = auto()
    """The subscribed pattern is invalid. Checked by the caller."""
    TOPIC_AUTHORIZATION_FAILED = auto()
    """The member may not describe a topic that it names. Checked by the caller."""
    UNKNOWN_TOPIC_ID = auto()
    """No topic has this ID. Checked by the caller."""


class InstanceProblem(Enum):
    """Reason of a rejected request."""

    UNRESERVED_PARTITION = auto()
    """The instance lost a partition of the commit: by a timeout, or to a newer cursor of its name.

    Nothing was committed. Remedy: a new cursor.
    """
    UNKNOWN_GROUP = auto()
    """The topic has no such group: never created, deleted or expired."""
    TOO_MANY_GROUPS = auto()
    """The topic has its maximum of groups."""
    GROUP_IN_USE = auto()
    """Kafka consumers are members of the group and must leave first."""
    BEHIND_LOG_START = auto()
    """Unread records are gone: an offset is before the log start offset. Remedy: UpdateGroup."""
    INVALID_CURSOR = auto()
    """The cursor belongs to a deleted group of the same name."""
    UNAVAILABLE = auto()
    """Storage rejected a change or did not answer a read. Retry."""


class InstanceError(Exception):
    """A rejected request of an instance."""

    def __init__(self, kind: InstanceProblem, message: str, partition: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.partition = partition
        """Partition, if any."""
