"""What can go wrong on the Spark side. Each message is one line that says what to change."""

import re
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
