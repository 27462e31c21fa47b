"""Stored documents: reading damaged ones, and changes that depend on stored data.

An unreadable document does not prevent a start. A lock serializes changes of all brokers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from headrace.broker.ports import DocumentStorage
from headrace.membership.view import Lock
from headrace.metrics.unreadable_values import WHOLE
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError

T = TypeVar("T")
_AT_ONCE = 1_000
"""Documents decoded per turn of the event loop: about 1.5 ms."""


async def readable(documents: DocumentStorage, kind: str, decode: Callable[[str, bytes], T]) -> dict[str, T]:
    """Return the readable documents of a kind by id, and report the others.

    `decode` raises ValueError (such as MsgspecError) for an invalid document. Raises StorageUnavailable.
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


_IN_DOUBT = -1


class Changing:
    """Serializes changes to documents among all brokers. Each starts from the previous one's result."""

    def __init__(
        self,
        documents: DocumentStorage,
        name: str,
        kinds: frozenset[str],
        refresh: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        """Changes depend on documents of `kinds`, which `refresh` reads again."""
        self._documents = documents
        self._name = name
        self._kinds = kinds
        self._refresh = refresh
        self._one = asyncio.Lock()
        self._known: dict[str, int] = {}
        """Kind -> revision in memory. Absent while it is unknown whether the last change is stored."""
        self._held: Lock | None = None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock, with current documents in memory.

        Raises LockLost if others held it too long, StorageUnavailable.
        """
        async with self._one, self._documents.locked(self._name) as lock:
            now = {kind: lock.revisions.get(kind, 0) for kind in self._kinds}
            stale = frozenset(kind for kind in now if now[kind] != self._known.get(kind))
            if stale:
                await self._refresh(stale)
                self._known = now
            self._held = lock
            try:
                yield
            finally:
                self._held = None

    async def save(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        """Store changes that were decided within `alone`. Raises as `DocumentStorage.save`."""
        assert self._held is not None, "only within `alone`"
        before = {kind: self._known.pop(kind, _IN_DOUBT) for kind in {kind for kind, _ in changes}}
        revisions = await self._documents.save(changes, self._held)
        for kind, known in before.items():
            # Any number but the next one shows a change that was made without the lock.
            if known != _IN_DOUBT and revisions.get(kind, known) in {known, known + 1}:
                self._known[kind] = revisions.get(kind, known)
