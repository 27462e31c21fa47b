"""Reads documents such that one that cannot be read does not keep a server from starting.

A value of the wrong form is skipped, stays as it is in storage, and is reported (`metrics.unreadable_values`). So are
all values of a kind whose key has the wrong type.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.broker.ports import DocumentStorage
from headrace.metrics.unreadable_values import WHOLE
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError

T = TypeVar("T")
_AT_ONCE = 1_000
"""Documents that are decoded in one turn of the loop: some 1.5 ms."""


async def readable(documents: DocumentStorage, kind: str, decode: Callable[[str, bytes], T]) -> dict[str, T]:
    """Return the documents of a kind that can be read, by id; the others are reported.

    Args:
        documents: where they are.
        kind: their kind.
        decode: makes the value of an id and a document. Raises ValueError (MsgspecError is one) where it cannot.

    Raises:
        StorageUnavailable.
    """
    try:
        stored = await documents.load(kind)
    except (Fenced, StorageFull, StorageUnavailable):
        raise
    except TopicError as error:
        documents.unreadable.keep(kind, {WHOLE: error})
        return {}
    values: dict[str, T] = {}
    bad: dict[str, object] = {}
    for place, (name, text) in enumerate(stored.items(), 1):
        try:
            values[name] = decode(name, text)
        except (LookupError, TypeError, ValueError, msgspec.MsgspecError, TopicError) as error:
            bad[name] = error
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
    documents.unreadable.keep(kind, bad)
    return values
