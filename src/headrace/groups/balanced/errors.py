"""What can go wrong with an instance's request. A closed set: each API has one table for it."""

from enum import Enum, auto


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
