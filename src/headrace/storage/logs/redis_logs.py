"""Logs in Redis: recover and read them, and keep their state. Implements `broker.log_ports.LogStorage`."""

import asyncio
from collections.abc import Awaitable, Callable
from time import time
from uuid import uuid4

import structlog

from headrace.aio.tasks import unheard
from headrace.metrics.counters import StoreCounters
from headrace.storage.errors import Stray
from headrace.storage.fence import Fence
from headrace.storage.free_space import FreeSpace
from headrace.storage.journal.acks import JournaledAcks
from headrace.storage.layout import entries, partition
from headrace.storage.layout import segments as segment_rows
from headrace.storage.layout.keys import (
    aborted_of,
    clean_of,
    foreign_of,
    producers_of,
    segment_of,
    shares_of,
    state_of,
    transactions_of,
)
from headrace.storage.logs import replay, segments
from headrace.storage.logs.append import StreamAppender
from headrace.storage.logs.leader_log import LeaderLog
from headrace.storage.logs.log_state import LogState, aborted_between, snapshot_arguments
from headrace.storage.logs.log_view import LogSnapshot, Searching
from headrace.storage.logs.replay import Acknowledged, Opened
from headrace.storage.logs.replicas import NoReplicas, RedisReplicas
from headrace.storage.logs.segments import LogSegments
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import Reply
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Lost, OpenedLog, StoredBatch
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.segments import CleanedLog
from headrace.topics.transactions import (
    AbortedTotal,
    AbortedTransaction,
    AbortedTransactions,
    Producers,
    TransactionChanges,
    Transactions,
)

DEFAULT_PRODUCER_EXPIRY_MS = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""
_OPENED_AT_ONCE = 64
_PATIENCE_S = 5.0
"""Seconds that a reader waits for acknowledged batches, and a recovery for a connection."""
_AGAIN_S = 0.05
_log = structlog.get_logger("headrace.storage.logs")


def is_fulfilled(task: "asyncio.Task[None]") -> bool:
    """Whether a task has ended without an error."""
    return task.done() and not task.cancelled() and task.exception() is None


async def _run(awaited: Awaitable[None]) -> None:
    await awaited


def _stray(stream: str) -> StorageUnavailable:
    return StorageUnavailable(f"{stream} has entries of another program")


class RedisLogs(Searching):
    """The logs that this server leads."""

    def __init__(
        self,
        scripts: Scripts,
        fence: Fence,
        *,
        producer_expiry_ms: int = DEFAULT_PRODUCER_EXPIRY_MS,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
        early: JournaledAcks | None = None,
        disk: FreeSpace | None = None,
        counted: StoreCounters | None = None,
        copies: RedisReplicas | NoReplicas | None = None,
        file: AppendOnlyFile | None = None,
        raise_layout: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Start without logs. `raise_layout` keeps servers out that know no transactions."""
        self._raise_layout = raise_layout
        self._raising: asyncio.Task[None] | None = None
        self._aborted_total = AbortedTotal()
        self.copies = copies or NoReplicas()
        self._shards = scripts.shards
        self._scripts = scripts
        self._fence = fence
        self._producer_expiry_ms = producer_expiry_ms
        self._now_ms = now_ms
        self._early = early
        self._counted = counted or StoreCounters()
        self._file = file
        self._appender = StreamAppender(now_ms, early, disk, self._counted, file)
        self._logs = self._appender.logs
        self.segments = LogSegments(self._appender, self._shards)
        self.place = self._appender.place  # avoids a call
        self._opening = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._shards.on_lost.append(self._connection_lost)

    def _connection_lost(self, connection: Connection) -> None:
        """Redis may return with fewer records."""
        error = StorageUnavailable("the connection to Redis was lost")
        for log in tuple(self._logs.values()):
            if log.fenced_reason is None and log.connection is connection:
                self._appender.fail(log, error)

    # Leadership

    async def open(self, stream: str, lost: Lost, *, create: bool = False, view: int | None = None) -> OpenedLog:
        """Become leader of a log: fence earlier leaders, and store missing acknowledged batches.

        `lost` is called when the log must be recovered again. The present view is the default.

        Raises:
            UnknownTopic, Fenced, StorageUnavailable, StorageFull.
        """
        async with self._opening:
            log = self._logs.get(stream)
            if log is None:
                log = self._logs[stream] = LeaderLog(stream)
            # A recovery voids an earlier leadership, even without a doubt.
            self._appender.fail(log, StorageUnavailable(f"{stream} is being recovered"))
            connection = self._shards.at(stream)
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await connection.ready()
            except TimeoutError:
                raise StorageUnavailable("no connection to Redis") from None
            made = connection.made
            opened = await self._open(log, create=create, view=self._fence.number if view is None else view)
            if connection.made != made or not connection.connected:
                raise StorageUnavailable("the connection to Redis was lost during an opening")
            if self._shards.at(stream) is not connection:
                raise StorageUnavailable(f"{stream} has moved to another shard during an opening")
            log.connection = connection
            self._counted.openings += 1
            self._logs.setdefault(stream, log)  # it may have been forgotten during the recovery
            log.on_lost = lost
            log.fenced_reason = None
            return opened

    async def _open(self, log: LeaderLog, *, create: bool, view: int) -> OpenedLog:
        stream = log.name
        log_start, snapshot, high_watermark, opened, length, used = await self._raise_term(
            log, view, create=create, resume=bool(log.acknowledged)
        )
        if log.acknowledged:
            opened, length = await self._restore(log, opened, length, max(log_start, log.cleaned.end))
        epochs = opened.epochs
        kept = LogState(self._scripts, stream, epochs, self._now_ms)
        producers, expired = await kept.stored_producers(self._producer_expiry_ms)
        transactions = await kept.stored_transactions(self._aborted_total) if used else self._unused()
        unsaved = expired | await kept.replay(max(snapshot, log_start), opened.log_end, transactions, producers)
        log.term, log.epochs, log.entries = opened.term, epochs, length
        log.newest, log.size = opened.newest, opened.size
        return OpenedLog(
            log_start=log_start,
            next_offset=opened.log_end,
            epochs=epochs,
            producers=producers,
            unsaved=frozenset(unsaved),
            high_watermark=high_watermark,
            transactions=transactions,
        )

    async def _raise_term(
        self, log: LeaderLog, view: int, *, create: bool, resume: bool
    ) -> tuple[int, int, int, Opened, int, bool]:
        stream = log.name
        keys = [stream, state_of(stream), foreign_of(stream), clean_of(stream)]
        told = await self._scripts.run(
            "open", keys, view, log.term + 1, "create" if create else "", uuid4().hex[:16],
            "resume" if resume else "",
        )  # fmt: skip
        term, start, end, length, newest, size, snapshot, rows, log_id, set_aside, missing, high_watermark, used = told[
            :13
        ]
        log.term, log.id = int(term), log_id
        *cleaned, writing, copied = told[13:]
        log.cleaned = segment_rows.decode(cleaned)
        log.writing = int(writing) if writing else None
        if set_aside:
            _log.error(
                "entries of another program were moved out of a log",
                stream=stream,
                entries=set_aside,
                to=foreign_of(stream),
            )
        if copied:
            _log.error(
                "the list of a log's cleaned segments was deleted by another program, and is made again from its copy",
                stream=stream,
                key=clean_of(stream),
            )
        if int(missing):
            _log.error("the last records of a log were deleted by another program", stream=stream, records=int(missing))
        opened = Opened(int(term), int(end), int(newest), int(size), partition.epochs(rows))
        return int(start), int(snapshot), int(high_watermark), opened, length, bool(used)

    async def _restore(self, log: LeaderLog, opened: Opened, length: int, log_start: int) -> tuple[Opened, int]:
        waiting = list(log.acknowledged)
        now = self._now_ms()
        batches = [Acknowledged(each.base_offset, each.append, now) for each in waiting]
        plan = await replay.restore_plan(self._scripts, log.name, opened, batches, log_start)
        missing = list(plan.missing)
        for each in plan.unfit:
            if each.base_offset >= opened.log_end:
                # Another program deleted what precedes it. Store it at its offset all the same.
                missing.append(each)
            _log.error(
                "another program wrote to a log"
                if each.base_offset < opened.log_end
                else "records before an acknowledged batch are gone",
                stream=log.name,
                offset=each.base_offset,
                lost=each.base_offset < opened.log_end,
            )
        length, epochs, newest, size = await replay.place_batches(self._scripts, log.name, opened, missing)
        log_end = max([opened.log_end, *(each.base_offset + each.append.span for each in missing)])
        log.acknowledged.clear()
        for batch in waiting:
            if batch.entered is not None and self._early is not None:
                self._early.stored(batch.entered)
        _log.info("acknowledged batches are in Redis again", stream=log.name, batches=len(missing))
        return Opened(opened.term, log_end, newest, size, epochs), length

    def term(self, stream: str) -> int:
        """Return the term of a log. Raises UnknownTopic."""
        return self._owned(stream).term

    def _owned(self, stream: str) -> LeaderLog:
        log = self._logs.get(stream)
        if log is None or log.epochs is None:
            raise UnknownTopic(f"{stream} has not been opened")
        return log

    async def save_producers(
        self,
        stream: str,
        offset: int | None,
        changes: dict[int, ProducerStateEntry | None],
        high_watermark: int | None = None,
        transactions: TransactionChanges | None = None,
    ) -> None:
        """Store the state of producers and transactions; see `broker.log_ports.LogStorage`.

        Raises:
            StorageUnavailable, StorageFull: nothing is stored. Fenced, UnknownTopic.
        """
        log = self._owned(stream)
        arguments: list[str | bytes | int] = []
        keys = [log.state, log.producers]
        if transactions is not None:
            keys += log.transactions
            arguments += snapshot_arguments(transactions)
        for producer_id, known in changes.items():
            arguments += [producer_id, b"" if known is None else partition.encode_producer(known)]
        written = "" if high_watermark is None else high_watermark
        as_of = "" if offset is None else offset
        command = Scripts.command("snapshot", keys, log.term, as_of, written, *arguments)
        checked(await self._appender.run(log, command))

    def _unused(self) -> Transactions:
        return Transactions(total=self._aborted_total)

    def allow_transactions(self) -> "asyncio.Task[None] | None":
        """See `broker.log_ports.LogStorage.allow_transactions`."""
        task = self._raising
        if self._raise_layout is None or (task is not None and is_fulfilled(task)):
            return None
        if task is None or task.done():
            task = self._raising = asyncio.get_running_loop().create_task(_run(self._raise_layout()), name="layout")
            unheard(task)
        return task

    async def rebuild_transactions(self, stream: str) -> Transactions:
        """Return the transactions from all batches; see `broker.log_ports.LogStorage`. Raises StorageUnavailable."""
        log = self._owned(stream)
        assert log.epochs is not None
        start = int(checked(await self._shards.at(stream).call("HGET", log.state, "b")) or 0)
        # Cleaned segments have no records of open or aborted transactions.
        start = max(start, log.cleaned.end)
        # Later batches are those of this leader, which has accepted no transactional ones.
        end = log.epochs.rows[-1].first
        found = Transactions(aborted=AbortedTransactions(total=self._aborted_total), used=True, rebuilt=True)
        kept = LogState(self._scripts, stream, log.epochs, self._now_ms)
        await kept.replay(start, end, found)
        return found

    async def aborted(
        self, stream: str, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """Return saved aborted transactions; see `broker.log_ports.LogStorage`. Raises StorageUnavailable."""
        return await aborted_between(self._shards.at(stream), stream, offset, before, end, producers)

    def forget(self, stream: str, lost: Lost) -> None:
        """See `broker.log_ports.LogStorage.forget`."""
        log = self._logs.get(stream)
        if log is not None and log.on_lost == lost:
            del self._logs[stream]
            self._appender.settle_dropped(log)

    async def drop(self, stream: str) -> None:
        """Remove a log with its state and its pending batches."""
        log = self._logs.pop(stream, None)
        if log is not None:
            self._appender.settle_dropped(log)
        keys = [stream, state_of(stream), producers_of(stream), foreign_of(stream)]
        keys += [transactions_of(stream), aborted_of(stream), clean_of(stream), shares_of(stream)]
        await self._fence.write(lambda number: self._scripts.run("drop", keys, number))

    # Reads

    async def settle(self, stream: str) -> None:
        """Wait until Redis has all acknowledged batches. Raises StorageUnavailable after 5 s."""
        log = self._owned(stream)
        if not log.acknowledged:
            return
        last = log.acknowledged[-1]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while log.acknowledged and log.acknowledged[0].base_offset <= last.base_offset:
                    if log.fenced_reason is None:
                        await self._appender.run(log, log.xlen)
                    else:
                        await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise StorageUnavailable(f"Redis does not take what was acknowledged: {log.fenced_reason}") from None

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """Return at most `count` batches up to `end`, beginning with that of `offset`; see `LogLookup.read`."""
        log = self._owned(stream)
        behind = log.acknowledged[0].base_offset if log.acknowledged else None
        found = await self._range(log, offset, count, end, join)
        if len(found) == count or (found and found[-1].next_offset == end):
            return found
        if join is not None and found and (behind is None or found[-1].next_offset < behind):
            return found  # an early end: more batches than requested exist
        if behind is not None or log.acknowledged:
            await self.settle(stream)
            found = await self._range(log, offset, count, end, join)
        return found

    async def look(self, stream: str) -> LogSnapshot:
        """Return the state of a log that another server leads. Raises StorageUnavailable."""
        return await LogSnapshot.look(self._scripts, stream)

    async def _range(
        self, log: LeaderLog, offset: int, count: int, end: int | None, join: int | None
    ) -> list[StoredBatch]:
        async def read_stream(first: int) -> list[StoredBatch]:
            return await self._in_stream(log, first, count, end, join)

        connection, known = self._shards.at(log.name), log.cleaned
        found, present = await segments.read_log(connection, log.name, known, read_stream, offset, count, end)
        if log.cleaned is known:
            # A later leader has cleaned it. Otherwise this one has in the meantime, and knows more.
            log.cleaned = present
        return found

    async def _in_stream(
        self, log: LeaderLog, offset: int, count: int, end: int | None, join: int | None
    ) -> list[StoredBatch]:
        epochs = log.epochs
        assert epochs is not None
        if end is not None and offset >= end:
            return []
        if self._file is not None:
            bound = entries.LAST_ID if end is None else entries.last_id(epochs, end)
            batches = await self._file.read(log.key, entries.first_id(epochs, offset), bound, count, join)
            if batches is not None:
                self._counted.file_bytes += sum(len(each.batch) for each in batches)
                return batches
        last = "+" if end is None else entries.range_end(epochs, end)
        first = entries.range_start(epochs, offset)
        while True:
            connection = self._shards.at(log.name)
            raw = checked(await connection.call("XRANGE", log.name, first, last, "COUNT", count, in_place=True))
            found = entries.decode(raw)
            self._counted.asked_bytes += sum(len(each.batch) for each in found)
            if len(found) < len(raw):
                self._appender.fail(log, _stray(log.name))
            if found or not raw:
                return found
            first = f"({raw[-1][0].decode()}"

    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        log = self._owned(stream)
        entry, newest = self._checked(
            log, await self._scripts.call("find_timestamp", [stream, log.state, clean_of(stream)], wanted)
        )
        return (entries.decode([entry])[0] if entry else None), int(newest)

    def _checked(self, log: LeaderLog, reply: Reply) -> Reply:
        """After a foreign entry, the log must be recovered, which moves it aside."""
        try:
            return checked(reply)
        except Stray as error:
            self._appender.fail(log, _stray(log.name))
            raise StorageUnavailable(str(error)) from None

    # State next to the stream

    async def trim(
        self,
        stream: str,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
        up_to: int | None = None,
    ) -> int:
        """Apply retention, never beyond the last `save_producers` or `up_to`, and return the log start offset.

        Raises:
            StorageUnavailable: the result is unknown. Fenced, UnknownTopic.
        """
        log = self._owned(stream)
        if log.cleaned.segments and (before_ms is not None or max_bytes is not None):
            rest = await self.size(stream) - log.cleaned.size
            kept = log.cleaned.retained_from(before_ms, max_bytes, rest)
            if kept is not None:
                # The stream follows, with newer records.
                before_ms = max_bytes = None
                before_offset = kept if before_offset is None else max(kept, before_offset)
        bounds = ("" if value is None else value for value in (before_ms, max_bytes, before_offset, up_to))
        keys = [stream, log.state, clean_of(stream)]
        keys += [segment_of(stream, each.number) for each in log.cleaned.segments]
        command = Scripts.command("trim", keys, log.term, *bounds)

        def count(reply: Reply) -> None:
            # The next append compares with it.
            if isinstance(reply, list):
                log.entries = reply[1]
                if reply[2] is not None:
                    kept = segment_rows.decode([reply[2], None])
                    log.cleaned = CleanedLog(kept.segments, log.cleaned.end, log.cleaned.next_number)

        start, *_ = self._checked(log, await self._appender.run(log, command, count))
        return int(start)

    async def size(self, stream: str) -> int:
        """Return the bytes of all batches, including those in flight."""
        log = self._owned(stream)
        trimmed = checked(await self._shards.at(stream).call("HGET", log.state, "f"))
        return log.cleaned.size + log.size + log.waiting_bytes - int(trimmed or 0)

    async def mirror_offset(self, stream: str, group: str, offset: int) -> None:
        """Show a committed offset as last delivered id of a Redis consumer group, which is created if missing."""
        log = self._owned(stream)
        assert log.epochs is not None
        last = entries.position_id(log.epochs, offset)
        await self._scripts.run("mirror_position", [stream, log.state], log.term, group, last)

    def flush(self) -> None:
        """Send lingering batches."""
        self._appender.flush()

    async def close(self) -> None:
        """Close the journal. Call this after the connection is closed."""
        if self._early is not None:
            await self._early.close()
