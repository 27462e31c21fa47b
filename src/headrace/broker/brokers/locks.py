"""Changes of documents that are decided by what is stored: one at a time, among all brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from headrace.broker.ports import DocumentStorage
from headrace.membership.view import Lock

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
