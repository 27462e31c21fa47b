"""All resources in memory and in storage."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker import virtual_clusters
from headrace.broker.documents import Changing
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import PATIENCE_S, retry_while_unavailable
from headrace.oci.resources.records import (
    HarnessRecord,
    Phase,
    PoolRecord,
    Record,
    RetryToken,
    State,
    StreamRecord,
    WorkRequestRecord,
    check_changeable,
    is_forgotten,
    is_over,
)
from headrace.oci.resources.table import Table, is_only_remembered
from headrace.oci.settings import OciSettings

T = TypeVar("T")
R = TypeVar("R", bound=Record)

_PURGE_MS = 3_600_000
CLUSTERS = frozenset({virtual_clusters.KIND, virtual_clusters.MOVED_TOPICS})
"""Kinds of documents about virtual clusters."""
_encode = msgspec.json.Encoder().encode


Changes = Mapping[tuple[Table[Any], str], msgspec.Struct | None]
"""(table, id) -> new value; None: delete."""


class Documents:
    """All tables. Changes run one at a time across all brokers."""

    def __init__(
        self,
        storage: DocumentStorage,
        settings: OciSettings,
        clock: Clock,
        refresh_clusters: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.streams = Table("oci.streams", StreamRecord)
        self.pools = Table("oci.pools", PoolRecord)
        self.harnesses = Table("oci.harnesses", HarnessRecord)
        self.requests = Table("oci.requests", WorkRequestRecord)
        self.tokens = Table("oci.tokens", RetryToken)
        self._storage = storage
        self._tables: tuple[Table[Any], ...] = (self.streams, self.pools, self.harnesses, self.requests, self.tokens)
        self._refresh_clusters = refresh_clusters
        self.catch_up: Callable[[], Awaitable[object]] | None = None
        """Applies other brokers' changes, including topics; None: no other brokers, or not followed."""
        kinds = frozenset(table.kind for table in self._tables)
        self._changing = Changing(storage, "oci", kinds | CLUSTERS, self._refresh)
        self._values = asyncio.Lock()
        self._purge_ms = 0
        self.patience_s = PATIENCE_S
        """Seconds for which `finish` retries."""

    async def reload(self, kinds: frozenset[str]) -> None:
        """Reload the documents of these kinds; an empty set means all kinds. Raises StorageUnavailable."""
        async with self._values:
            for table in self._tables:
                if not kinds or table.kind in kinds:
                    await table.load(self._storage)

    async def _refresh(self, kinds: frozenset[str]) -> None:
        if self.catch_up is not None:
            await self.catch_up()
        # First, because pool documents refer to clusters.
        if kinds & CLUSTERS and self._refresh_clusters is not None:
            await self._refresh_clusters()
        if kinds - CLUSTERS:
            await self.reload(kinds)

    # Changes

    async def exclusively(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change exclusively and to its end, even if the caller is canceled.

        Changes of other brokers are applied first.

        Raises:
            LockLost: other brokers held the lock for too long; StorageUnavailable.
        """

        async def run() -> T:
            async with self._changing.alone(), self._values:
                return await change

        return await to_the_end(run(), change)

    async def save(self, changes: Changes) -> None:
        """Store all changes at once, then apply them in memory. An error changes nothing in memory.

        Only within `exclusively`.
        """
        texts = {place: None if value is None else _encode(value) for place, value in changes.items()}
        gone = {**self._forgotten(), **self._crowded_out(changes, texts)}
        texts = {**dict.fromkeys(gone), **texts}
        await self.store({(table.kind, name): text for (table, name), text in texts.items()})
        for (table, name), text in texts.items():
            if text is None:
                table.drop(name)
            else:
                table.put(name, changes[table, name], len(text))

    async def finish(self, changes: Changes) -> None:
        """Save the record of a completed change, with retries if Redis is unavailable.

        Storing it twice is harmless under the lock.
        """
        await retry_while_unavailable(partial(self.save, changes), self.patience_s)

    async def store(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        """Store other documents of a change. Only within `exclusively`. Raises as `DocumentStorage.save`."""
        await self._changing.save(changes)

    async def forget_all(self) -> None:
        """Delete all values. Raises as `save`."""
        await self.save({(table, name): None for table in self._tables for name in table.values})

    def _crowded_out(self, changes: Changes, texts: Mapping[tuple[Table[Any], str], bytes | None]) -> Changes:
        added: dict[Table[Any], list[int]] = {}
        for (table, name), value in changes.items():
            if name not in table.remembered and is_only_remembered(value):
                added.setdefault(table, []).append(len(texts[table, name] or b""))
        return {(table, name): None for table, sizes in added.items() for name in table.beyond(len(sizes), sum(sizes))}

    def _forgotten(self) -> Changes:
        ticks_ms = self.clock.ticks_ms()
        if ticks_ms < self._purge_ms:
            return {}
        self._purge_ms = ticks_ms + _PURGE_MS
        now_ms = self.clock.now_ms()
        records: list[Table[Any]] = [self.streams, self.pools, self.harnesses]
        gone: list[tuple[Table[Any], str]] = [
            (table, name) for table in records for name, record in table.values.items() if is_forgotten(record, now_ms)
        ]
        gone += [(self.requests, name) for name, request in self.requests.values.items() if is_over(request, now_ms)]
        gone += [(self.tokens, name) for name, token in self.tokens.values.items() if now_ms >= token.expires_ms]
        return dict.fromkeys(gone)

    # Time

    def phase(self, state: State) -> Phase | None:
        """Return the phase of a new change; None if it is immediate."""
        delay_ms = self.settings.lifecycle_delay_ms
        if not delay_ms and state != "DELETING":
            return None
        now_ms = self.clock.now_ms()
        return Phase(state, now_ms + delay_ms, now_ms)

    def known(self, record: Record | None) -> bool:
        """Return whether a record exists and is not expired."""
        return record is not None and not is_forgotten(record, self.clock.now_ms())

    def changed(self, record: R, state: State, **fields: Any) -> R:
        """Return the record after a client's change."""
        return msgspec.structs.replace(record, phase=self.phase(state), version=record.version + 1, **fields)

    def check_changeable(self, record: Record, if_match: str | None) -> None:
        """See `records.check_changeable`."""
        check_changeable(record, self.clock.now_ms(), if_match)

    def request(self, operation: str, compartment: str, *resources: tuple[str, str]) -> WorkRequestRecord:
        """Return a new work request, to be saved with its change.

        `operation` is such as `CREATE_STREAM`. The first resource is the requested one.
        """
        now_ms = self.clock.now_ms()
        return WorkRequestRecord(
            id=uuid4().hex,
            operation=operation,
            resources=resources,
            compartment=compartment,
            accepted_ms=now_ms,
            finished_ms=now_ms + self.settings.lifecycle_delay_ms,
        )
