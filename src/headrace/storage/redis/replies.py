"""Convert Redis's error replies to the errors of `topics.errors`.

The keys of native topics have additional errors, because other programs may change them.
"""

from typing import Any

import hiredis

from headrace.storage.errors import NOT_PERMITTED, Stray, without_script_line, write_refusal
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
    # Errors of our scripts
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
    # Errors of Redis
    "OOM": StorageFull,
    "LOADING": StorageUnavailable,
    "READONLY": StorageUnavailable,
    "MASTERDOWN": StorageUnavailable,
    "NOSCRIPT": StorageUnavailable,
    "NOREPLICAS": StorageNotReplicated,
    "MISCONF": StorageNotWritten,
    "TRYAGAIN": StorageMoving,
    # Without redirections, a retry finds the node.
    "MOVED": StorageUnavailable,
    "ASK": StorageMoving,
    "CLUSTERDOWN": StorageUnavailable,
    "BUSY": StorageUnavailable,
    "NOAUTH": StorageUnavailable,
    # An administrator may restore permissions.
    "NOPERM": StorageUnavailable,
}
_MOVING = "its slot is being moved to another shard"
_MOVES = {"MOVED": "another node has its slot by now", "ASK": _MOVING, "TRYAGAIN": _MOVING}
_OURS = frozenset({"FENCED", "LOCK", "GONE", "SEQUENCE", "EPOCH", "FULL", "OFFSETS", "FOREIGN", "RANGE", "STRAY"})


def error_of(reply: Exception) -> Exception:
    """Convert an error reply. TopicError is for unexpected ones."""
    if not isinstance(reply, hiredis.ReplyError):
        return reply
    return error_of_text(str(reply))


def error_of_text(reply: str) -> TopicError | Stray:
    """Convert the text of an error."""
    word, _, text = reply.partition(" ")
    if text.startswith(NOT_PERMITTED):
        word = "NOPERM"
    if word in _OURS:
        return _KINDS[word](text)
    if word in _MOVES:
        return _KINDS[word](f"{_MOVES[word]}, try again: Redis answered {reply}")
    if word not in _KINDS:
        return TopicError(f"Redis answered: {reply}")
    return _KINDS[word](write_refusal(reply) or f"Redis answered: {without_script_line(reply)}")


def checked(reply: Any) -> Any:
    """Return the reply, or raise its error."""
    if isinstance(reply, Exception):
        raise error_of(reply)
    return reply


def native_error_of(reply: Exception) -> Exception:
    """Convert an error for a native topic."""
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE"):
        return NotAStream("the key of a native topic's stream holds something else")
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("CROSSSLOT"):
        return NotAStream(
            "on a Redis Cluster a stream with braces in its key cannot be part of a topic: its other keys "
            "would be in another slot; rename it"
        )
    return error_of(reply)


def native_checked(reply: Reply) -> Reply:
    """Return the reply of a native topic, or raise its error."""
    if isinstance(reply, Exception):
        raise native_error_of(reply)
    return reply
