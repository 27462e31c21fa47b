"""Changes of documents that are decided by what is stored: one at a time, among all brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from headrace.broker.ports import DocumentStorage
from headrace.membership.lock import Lock


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
        self._held: Lock | None = None
        self._in_doubt = False
        """What was saved last may be stored, or not: its answer was lost."""

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Within, nobody else makes such a change, and what this broker knows of the kinds is what is stored.

        Raises:
            LockLost: others were at it for too long; StorageUnavailable.
        """
        async with self._one, self._documents.locked(self._name) as lock:
            now = {kind: (lock.revisions or {}).get(kind, 0) for kind in self._kinds}
            stale = frozenset(kind for kind in now if now[kind] != self._known.get(kind))
            if lock.revisions is None:
                stale = self._kinds if self._in_doubt else frozenset()
            if stale:
                await self._refresh(stale)
                self._known = now
            self._in_doubt = False
            self._held = lock
            try:
                yield
            finally:
                self._held = None

    async def save(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        """Store changes that were decided within `alone`. Raises as `DocumentStorage.save`."""
        assert self._held is not None, "only within `alone`"
        self._in_doubt = True
        revisions = await self._documents.save(changes, self._held)
        self._in_doubt = False
        for kind, revision in revisions.items():
            # Behind another number there is a change that somebody made without the lock.
            if revision == self._known.get(kind, -1) + 1:
                self._known[kind] = revision
