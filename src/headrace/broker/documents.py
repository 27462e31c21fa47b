"""Documents of the storage: reading one that may be damaged, and changes that depend on what is stored.

A document that cannot be read does not keep a server from starting. A change holds a lock, so that brokers make changes
one at a time.
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


_IN_DOUBT = -1


class Changing:
    """Makes the changes of one name, each of them from what the one before it left, whichever broker made that."""

    def __init__(
        self,
        documents: DocumentStorage,
        name: str,
        kinds: frozenset[str],
        refresh: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        """Nothing is known yet.

        Args:
            documents: where they are kept.
            name: of the lock: a word like a kind.
            kinds: of the documents that changes are decided by.
            refresh: reads documents of some kinds anew. Raises StorageUnavailable.
        """
        self._documents = documents
        self._name = name
        self._kinds = kinds
        self._refresh = refresh
        self._one = asyncio.Lock()
        self._known: dict[str, int] = {}
        """Kind -> the revision that is in memory; not of those in doubt: what was saved last may be stored, or not."""
        self._held: Lock | None = None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Within, nobody else makes such a change, and what this broker knows of the kinds is what is stored.

        Raises:
            LockLost: others were at it for too long; StorageUnavailable.
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
            # Behind another number than the next there is a change that somebody made without the lock.
            if known != _IN_DOUBT and revisions.get(kind, known) in {known, known + 1}:
                self._known[kind] = revisions.get(kind, known)
