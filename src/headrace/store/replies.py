"""Redis' answers to our errors."""

from typing import Any

import hiredis

from headrace.topics.errors import (
    Fenced,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageFull,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)

_KINDS: dict[str, type[TopicError]] = {
    # What our scripts say
    "FENCED": Fenced,
    "GONE": UnknownTopic,
    "SEQUENCE": OutOfOrderSequence,
    "EPOCH": InvalidProducerEpoch,
    # What Redis says
    "OOM": StorageFull,
    "LOADING": StorageUnavailable,
    "READONLY": StorageUnavailable,
    "MASTERDOWN": StorageUnavailable,
    "NOSCRIPT": StorageUnavailable,
    "NOREPLICAS": StorageUnavailable,
    "MISCONF": StorageUnavailable,
    "TRYAGAIN": StorageUnavailable,
}


def error_of(reply: Exception) -> Exception:
    """The error of `topics.errors` that an error reply means; anything unknown stays what it is."""
    if not isinstance(reply, hiredis.ReplyError):
        return reply
    word, _, text = str(reply).partition(" ")
    kind = _KINDS.get(word)
    if kind is None:
        return reply
    return kind(text if word in ("FENCED", "GONE", "SEQUENCE", "EPOCH") else str(reply))


def checked(reply: Any) -> Any:
    """The reply; raised when it is an error."""
    if isinstance(reply, Exception):
        raise error_of(reply)
    return reply
