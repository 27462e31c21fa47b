"""Kafka error codes that the client handles, and exceptions with one-line messages."""

import re
from enum import IntEnum
from typing import Final

# Formatting of nested errors in delta-rs.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_TREE: Final = re.compile(r"\s*↳\s*")


class SparkError(Exception):
    """Base class."""


class OptionError(SparkError):
    """Unknown, invalid or contradictory option."""


class UnknownTopic(SparkError):
    """The topic does not exist."""


class TopicReplaced(SparkError):
    """The topic was deleted and created again."""


class DataLoss(SparkError):
    """Records of the query are no longer in the log."""


class StorageUnavailable(SparkError):
    """Redis is unreachable, or holds other data."""


class GroupCommitFailed(SparkError):
    """The commit failed."""


class CorruptLog(SparkError):
    """A stored batch is unreadable."""


class ServerUnavailable(SparkError):
    """No Kafka broker responds."""


class LoginRefused(SparkError):
    """Login rejected, or not authorized."""


class WriteRefused(SparkError):
    """The records were rejected, or a row is no record."""


class Fenced(SparkError):
    """A later producer has the transactional ID, or the transaction was aborted."""

    def __init__(self, message: str, code: int = 0) -> None:
        """Keep the broker's error code."""
        super().__init__(message)
        self.code = code


class DecisionError(SparkError):
    """The decision of a sink is unreadable, another's, or too long."""


class BatchLost(SparkError):
    """Transactions of a batch were aborted before they were committed."""


class TableError(SparkError):
    """The path is not the requested table."""


class ModuleMissing(SparkError):
    """A Python module is not installed."""


class TaskFailed(SparkError):
    """A task fails permanently."""


class StoreUnavailable(SparkError):
    """The object store is unavailable; a retry may help."""


def one_line(error: Exception | None) -> str:
    """Return an error's text without colors and line breaks."""
    if isinstance(error, OSError) and error.strerror and error.errno:
        return error.strerror
    return " ".join(_TREE.sub(": ", _COLOURS.sub("", str(error))).split())


class Code(IntEnum):
    """Error codes that the client handles."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105


RETRIABLE: Final = frozenset(
    (
        Code.CORRUPT_MESSAGE,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
    )
)
REFUSALS: Final = frozenset(
    (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
FENCED: Final = frozenset(
    (
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.UNKNOWN_PRODUCER_ID,
        Code.PRODUCER_FENCED,
    )
)
"""The transaction of a producer cannot continue."""


def code_name(code: int) -> str:
    """Return the code's name, or its number."""
    return Code(code).name if code in Code._value2member_map_ else f"error {code}"
