"""Kafka's error codes that a client reacts to, and the errors that clients and Spark raise.

Each message is one line that says what to change.
"""

import re
from enum import IntEnum
from typing import Final

# How delta-rs writes an error with those that led to it.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_TREE: Final = re.compile(r"\s*↳\s*")


class SparkError(Exception):
    """Base of every error born in this room."""


class OptionError(SparkError):
    """An option that does not exist, has no such value, or contradicts another one."""


class UnknownTopic(SparkError):
    """No topic of that name in this storage."""


class TopicReplaced(SparkError):
    """The topic was deleted and created again: offsets of the old one mean nothing in the new one."""


class DataLoss(SparkError):
    """Records that the query must read are no longer in the log."""


class StorageUnavailable(SparkError):
    """Redis cannot be reached, or what it holds is not Headrace's."""


class GroupCommitFailed(SparkError):
    """The Kafka listener could not be reached or refused the positions."""


class CorruptLog(SparkError):
    """A stored record batch that cannot be read."""


class ServerUnavailable(SparkError):
    """No broker of the cluster answers, or what answers does not speak the protocol."""


class LoginRefused(SparkError):
    """The brokers refused the user, or what the user wanted to do."""


class WriteRefused(SparkError):
    """The brokers did not take records, or a row is not one that a record can be made of."""


class TableError(SparkError):
    """The path cannot be the table that was asked for."""


class TaskFailed(SparkError):
    """A task cannot write its range, and would fail in the same way again."""


class StoreUnavailable(SparkError):
    """The object store of a table does not answer, or fails: trying again may help."""


def one_line(error: Exception | None) -> str:
    """An error's text without colours and line ends."""
    if isinstance(error, OSError) and error.strerror and error.errno:
        return error.strerror
    return " ".join(_TREE.sub(": ", _COLOURS.sub("", str(error))).split())


class Code(IntEnum):
    """The codes that a client does something about."""

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
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    THROTTLING_QUOTA_EXCEEDED = 89


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
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.THROTTLING_QUOTA_EXCEEDED,
    )
)
REFUSALS: Final = frozenset(
    (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
    )
)


def code_name(code: int) -> str:
    """The code's name as Kafka writes it; its number when a client has nothing to do with it."""
    return Code(code).name if code in Code._value2member_map_ else f"error {code}"
