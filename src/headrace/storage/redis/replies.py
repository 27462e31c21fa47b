"""The errors of `topics.errors` that Redis' error replies mean.

Other programs may change the keys of native topics: replies about those have errors of their own.
"""

from typing import Any

import hiredis

from headrace.storage.errors import NOT_PERMITTED, Stray, without_script_line
from headrace.storage.redis.protocol import Reply
from headrace.topics.errors import (
    Fenced,
    InvalidProducerEpoch,
    LockLost,
    OffsetOutOfRange,
    OffsetsExhausted,
    OutOfOrderSequence,
    StorageFull,
    StorageMoving,
    StorageNotReplicated,
    StorageNotWritten,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)
from headrace.topics.native import NotAStream

_KINDS: dict[str, type[TopicError | Stray]] = {
    # What our scripts say
    "FENCED": Fenced,
    "LOCK": LockLost,
    "GONE": UnknownTopic,
    "SEQUENCE": OutOfOrderSequence,
    "EPOCH": InvalidProducerEpoch,
    "FULL": StorageFull,
    "OFFSETS": OffsetsExhausted,
    "FOREIGN": TopicError,
    "RANGE": OffsetOutOfRange,
    "STRAY": Stray,
    # What Redis says
    "OOM": StorageFull,
    "LOADING": StorageUnavailable,
    "READONLY": StorageUnavailable,
    "MASTERDOWN": StorageUnavailable,
    "NOSCRIPT": StorageUnavailable,
    "NOREPLICAS": StorageNotReplicated,
    "MISCONF": StorageNotWritten,
    "TRYAGAIN": StorageMoving,
    # Of what is not asked again elsewhere: whoever asks again finds the keys where they are then.
    "MOVED": StorageUnavailable,
    "ASK": StorageMoving,
    "CLUSTERDOWN": StorageUnavailable,
    "BUSY": StorageUnavailable,
    "NOAUTH": StorageUnavailable,
    # What its administrator takes away, and gives back (ACL SETUSER).
    "NOPERM": StorageUnavailable,
}
_MOVING = "its slot is being moved to another shard"
_MOVES = {"MOVED": "another node has its slot by now", "ASK": _MOVING, "TRYAGAIN": _MOVING}
_OURS = frozenset({"FENCED", "LOCK", "GONE", "SEQUENCE", "EPOCH", "FULL", "OFFSETS", "FOREIGN", "RANGE", "STRAY"})


def error_of(reply: Exception) -> Exception:
    """The error of `topics.errors` that an error reply means: TopicError itself for what Redis should not have said."""
    if not isinstance(reply, hiredis.ReplyError):
        return reply
    return error_of_text(str(reply))


def error_of_text(reply: str) -> TopicError | Stray:
    """The same for the text of an error, such as scripts give for one of many things asked."""
    word, _, text = reply.partition(" ")
    if text.startswith(NOT_PERMITTED):
        word = "NOPERM"
    if word in _OURS:
        return _KINDS[word](text)
    if word in _MOVES:
        return _KINDS[word](f"{_MOVES[word]}, try again: Redis answered {reply}")
    if word not in _KINDS:
        return TopicError(f"Redis answered: {reply}")
    return _KINDS[word](f"Redis answered: {without_script_line(reply)}")


def checked(reply: Any) -> Any:
    """The reply; raised when it is an error."""
    if isinstance(reply, Exception):
        raise error_of(reply)
    return reply


def native_error_of(reply: Exception) -> Exception:
    """What an error that was answered, or took the place of an answer, is for those who asked."""
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE"):
        return NotAStream("the key of a native topic's stream holds something else")
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("CROSSSLOT"):
        return NotAStream(
            "on a Redis Cluster a stream with braces in its key cannot be part of a topic: its other keys "
            "would be in another slot; rename it"
        )
    return error_of(reply)


def native_checked(reply: Reply) -> Reply:
    """The reply; raised when it is an error."""
    if isinstance(reply, Exception):
        raise native_error_of(reply)
    return reply
