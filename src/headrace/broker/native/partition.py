"""A partition of a native topic: a plain Redis Stream.

Any client may add entries, so nothing is cached. A blocking XREAD reports new entries, and each read also returns the
exact log start and end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import NamedTuple

import structlog

from headrace.broker.log_ports import NativeStorage
from headrace.broker.native.in_flight import InFlight
from headrace.broker.native.timestamps import find_first, find_latest
from headrace.broker.partition.cache import Buffer, take
from headrace.broker.partition.in_sync_replicas import check_replicas, done_with_copies
from headrace.broker.partition.recovery import ExhaustionReport, log_storage_refusal
from headrace.broker.partition.source import (
    UNCOMMITTED,
    UNKNOWN_SIZE,
    AlwaysStable,
    Isolation,
    Watchers,
    changing,
    gone,
    outside,
)
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.broker.runtime.budget import NeedsRoom
from headrace.broker.runtime.clock import SystemClock
from headrace.membership.view import Leader
from headrace.records.build import build_empty
from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.errors import (
    BehindRefused,
    Fenced,
    InvalidRecord,
    NotEnoughReplicas,
    OffsetsExhausted,
    OutOfOrderSequence,
    StorageFull,
    StorageNotWritten,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)
from headrace.topics.model import Append, AppendDone, Appended, StoredBatch
from headrace.topics.native import Extent, NativeRead, NativeStream, NotAStream, ShareRead
from headrace.topics.rejected_batches import RejectedBatches

_REARM_S = 0.002
"""Seconds between wake-ups, to limit the cost of a busy stream."""
_MARKS = 256
_MOST_NEXT = 1 << 20
"""Maximum bytes of an entry that is read only for its timestamp."""
_MOST_SPAN = 2**31
"""Maximum offsets of one batch."""
_log = structlog.get_logger("headrace.broker.native")


class _Mark(NamedTuple):
    end: int
    added: int


class NativePartition(AlwaysStable):
    """A partition of plain stream entries; implements `Partition`."""

    log = None
    has_gaps = entry_per_record = True
    leader_epoch = 0
    """Native topics have no leader epochs."""

    def __init__(
        self,
        topic: str,
        index: int,
        stream: NativeStream,
        extent: Extent,
        storage: NativeStorage,
        refusals: RejectedBatches | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.stream = stream.key
        self.log_start, self.log_end = extent.log_start, extent.log_end
        self.deleted = False
        self.offline: str | None = None
        """See `Partition.offline`. Clients still connect here and receive the reason as an error."""
        self.leader: int | None = None
        """Broker that clients connect to; None for this one."""
        self.named = Leader(0, -1)
        self.paused = False
        self.storage = storage
        self._watchers = Watchers()
        self.watch, self.unwatch = self._watchers.watch, self._watchers.discard
        self.refusals = refusals or RejectedBatches(SystemClock().ticks_ms)
        self._under_way = InFlight()
        self._next = 0
        """The offset behind all that was acknowledged here. Redis may lose that, and would go on with older ids where
        its clock is behind them: readers are past those."""
        self._refused = False
        """Whether Redis refuses records and this was logged."""
        self._exhaustion = ExhaustionReport()
        self._recovery: asyncio.Task[None] | None = None
        self.listed: Callable[[], Awaitable[bool]] = partial(_said, listed=True)
        """Returns whether the registry has the partition. A topic is removed there before its streams."""
        self.place = stream
        self.unfit = 0
        """Number of entries found that are not served."""
        self._last_unfit = (-1, -1)
        self._barren = (0, 0)
        """Between these offsets are only entries that are not served."""
        self._large = (-1, 0)
        """An offset and the size of the next record. Redis copies a record to measure it."""
        self._marks: deque[_Mark] = deque([_Mark(extent.log_end, extent.added)], _MARKS)
        self._heard = monotonic()
        """When the newest of them was heard of."""
        self._looking: asyncio.Task[None] | None = None
        self._rearm: asyncio.TimerHandle | None = None
        self._watch_stream()

    def want_copies(self, copies: int) -> None:
        """Do nothing: only the appender waits for replicas, and entries are readable at once."""

    def check_led(self) -> None:
        """Do nothing: every broker can read and write a plain stream."""

    def _watch_stream(self) -> None:
        self._rearm = None
        if not self.deleted:
            self.storage.watch(self.place, self.log_end, self._woken)

    def _woken(self, end: int | None) -> None:
        if self.deleted:
            return
        loop = asyncio.get_running_loop()
        if end is None:
            if self._looking is None:
                self._looking = loop.create_task(self._look())
        else:
            self._reaches(end)
        if self._rearm is None:
            self._rearm = loop.call_later(_REARM_S, self._watch_stream)

    def _reaches(self, end: int) -> None:
        if end > self.log_end:
            self.log_end = end
            self._watchers.notify(UNKNOWN_SIZE)

    async def _look(self) -> None:
        try:
            self.learn(await self.storage.extent(self.place))
        except TopicError as error:
            if isinstance(error, StorageUnavailable) and not isinstance(error, NotAStream):
                # All readers and writers receive the error.
                return
            self.go_offline(error)
        finally:
            self._looking = None

    def learn(self, extent: Extent) -> None:
        """Apply the log start and end from Redis, which may have lost records."""
        if self._marks and extent.added < self._marks[-1].added:
            if extent.asked <= self._heard:
                # A later reply arrived first, so this one is outdated.
                return
            self._marks.clear()
            self._barren, self.log_end = (0, 0), 0
            _log.warning(
                "the stream has fewer entries than before: it was lost, or deleted and created again",
                topic=self.topic,
                partition=self.index,
                stream=self.stream,
            )
        if not self._marks or extent.log_end > self._marks[-1].end:
            self._marks.append(_Mark(extent.log_end, extent.added))
            self._heard = monotonic()
        if self.offline is not None:
            self.offline = None
            _log.info("partition online again", topic=self.topic, partition=self.index, stream=self.stream)
        self.log_start = extent.log_start
        # A newer report may already include entries after this reply.
        self._reaches(extent.log_end)

    def go_offline(self, reason: Exception) -> None:
        """Mark the partition offline: its keys hold foreign data."""
        if self.offline != str(reason):
            _log.error("partition offline", topic=self.topic, partition=self.index, reason=str(reason))
        self.offline = str(reason)

    async def try_again(self) -> None:
        """Retry an offline partition."""
        try:
            if self.offline is not None and not self.deleted and await self.listed():
                self.learn(await self.storage.open(self.place))
        except TopicError as error:
            if isinstance(error, NotAStream) or not isinstance(error, Fenced | StorageFull | StorageUnavailable):
                self.go_offline(error)

    def check_place(self, offset: int, extent: Extent) -> None:
        """Raise OffsetOutOfRange if records from `offset` were removed or the log ends before it.

        A missing range before the first entry may be an offset gap. Redis counts all entries ever added, so a complete
        count since `offset` proves a gap.
        """
        if offset > extent.log_end:
            raise outside(self, offset, extent.log_start, extent.log_end)
        if offset >= extent.log_start:
            return
        mark = max((mark for mark in self._marks if mark.end <= offset), default=None)
        if mark is None or extent.length < extent.added - mark.added or extent.added < mark.added:
            raise outside(self, offset, extent.log_start, extent.log_end)

    def report(self, read: NativeRead | ShareRead) -> None:
        """Record the bounds and the entries that are not served from a read."""
        if isinstance(read, NativeRead):
            self.learn(read.extent)
        unfit = [entry_id for entry_id in read.unfit if _parts(entry_id) > self._last_unfit]
        if unfit:
            # Log each entry once.
            self.unfit += len(unfit)
            self._last_unfit = _parts(unfit[-1])
            _log.warning(
                "entries skipped: their sequence has more bits than offset.sequence.bits, or they are too large",
                topic=self.topic,
                partition=self.index,
                stream=self.stream,
                bits=self.place.bits,
                first=unfit[0],
                entries=len(unfit),
                met=self.unfit,
            )

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Store one entry per record; see `Partition.append`. It is readable at once.

        Under load the batch waits for its turn, and later errors go to `done`.
        """
        if self.deleted:
            raise gone(self)
        if append.transaction is not None:
            raise InvalidRecord("a transactional batch: native topics have no transactions")
        if self.paused:
            self.refusals.refuse(append)
            raise changing(self)
        if copies > 1 and wait_ms:
            try:
                check_replicas(self.storage.copies, self.stream, copies)
            except NotEnoughReplicas:
                self.refusals.refuse(append)
                raise
            # The primary may fail before the batch is replicated.
            done = partial(self._told, append, done)
            done = done_with_copies(self.storage.copies, self.stream, copies, wait_ms, done)
        number, behind = self._under_way.send(append)
        # Only Redis knows the outcome of earlier batches.
        follows = behind or not self.refusals.may_begin(append)
        try:
            told = partial(self._stored_native, append, number, done)
            self.storage.append(self.place, append, told, follows=follows, least=self._next)
        except BaseException:
            self._under_way.not_sent(append.producer_id, number)
            raise

    def _stored_native(self, append: Append, number: int, done: AppendDone, result: Appended | Exception) -> None:
        self._under_way.answered(append.producer_id, number)
        if isinstance(result, Appended):
            self._refused = False
            if self.refusals.first:
                self.refusals.stored(append, repeated=result.duplicate)
            end = result.base_offset + append.span
            self._next = max(self._next, end)
            if not result.duplicate:
                self.log_end = max(self.log_end, end)
                self._watchers.notify(len(append.batch))
        elif isinstance(result, StorageFull | StorageNotWritten):
            if not self._refused:
                self._refused = True
                log_storage_refusal(result)
        elif isinstance(result, OffsetsExhausted):
            self._exhaustion.report(self.topic, self.index, result)
        elif isinstance(result, UnknownTopic) and not self.deleted:
            # Redis lost the stream's metadata by eviction or deletion, perhaps with the topic.
            if self._recovery is None:
                self._recovery = asyncio.get_running_loop().create_task(self._recover())
            result = StorageUnavailable(f"{self.topic}-{self.index}: Redis has lost the partition's state")
        self._told(append, done, result)

    def _told(self, append: Append, done: AppendDone, result: Appended | Exception) -> None:
        """Complete the request, and remember the producer's first batch refused temporarily.

        Later batches must be retried after it. If it is itself out of order, earlier acknowledged ones are lost.
        """
        if isinstance(result, NotAStream) or (isinstance(result, TopicError) and type(result) is TopicError):
            self.go_offline(result)
        if type(result) is OutOfOrderSequence and self.refusals.waits(append):
            result = BehindRefused(f"{result}: sent after a batch that was refused")
        elif isinstance(result, StorageUnavailable | StorageFull | Fenced):
            self.refusals.refuse(append)
        done(result)

    async def _recover(self) -> None:
        try:
            # A retry would let a deleted partition accept records again.
            if await self.listed():
                self.learn(await self.storage.open(self.place))
        except TopicError as error:
            _log.error("log of a partition not recovered", topic=self.topic, partition=self.index, reason=str(error))
        finally:
            self._recovery = None

    def check_readable(self, offset: int) -> None:
        """Raise UnknownTopic once the topic is deleted. Only Redis can check the offset."""
        if self.deleted:
            raise gone(self)

    def visible_end(self, isolation: Isolation) -> int:
        """Return the log end: every entry is readable."""
        return self.log_end

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Return False: nothing is cached."""
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Return nothing."""
        return [], 0

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """Return batches of the entries from `offset`, for a reader without a group.

        If no records follow before the log end, an empty batch moves the reader there. Raises OffsetOutOfRange, and
        NeedsRoom if the first record exceeds `first` bytes.
        """
        return take(await self.read_to_end(offset, limit, first=first), limit)

    async def read_to_end(self, offset: int, limit: int, *, first: int | None = None) -> list[StoredBatch]:
        """Like `read_range`, with an empty batch up to the log end if no record is left."""
        found, following = await self._read_on(offset, limit, None, first)
        return found or await self.empty_to_end(offset, following)

    async def empty_to_end(self, offset: int, following: int) -> list[StoredBatch]:
        """Return an empty batch from `offset` to the log end; nothing if records may be between.

        Else, clients would wait forever before deleted or unserved entries. `following` ends the range read without
        records.
        """
        end = self.log_end
        if not await self.storage.is_gap(self.place, following, end):
            end = following
        return [StoredBatch(max(offset, end - _MOST_SPAN), end, build_empty(offset, end))] if end > offset else []

    async def next_batch(self, offset: int) -> StoredBatch | None:
        """Return the first entry from `offset` that is served, unless it is large; None: there is none."""
        read = await self.storage.read(self.place, offset, 1, first=_MOST_NEXT)
        return read.batches[0] if read.batches else None

    async def read_range(
        self, offset: int, limit: int, before: int | None = None, *, first: int | None = None
    ) -> list[StoredBatch]:
        """Return about `limit` bytes of entries from `offset`, below `before`. Raises as `read_stored`."""
        return (await self._read_on(offset, limit, before, first))[0]

    async def _read_on(
        self, offset: int, limit: int, before: int | None, first: int | None
    ) -> tuple[list[StoredBatch], int]:
        """Like `read_range`; also return the first offset not checked."""
        most = LARGEST_ENTRY if first is None else first
        found: list[StoredBatch] = []
        at, checked = self._behind_barren(offset), False
        while True:
            self.check_readable(at)
            if not found and at == self._large[0] and self._large[1] > most:
                raise NeedsRoom(self._large[1])
            read = await self.storage.read(self.place, at, limit, before, first=limit if found else most)
            self.report(read)
            if not checked:
                self.check_place(offset, read.extent)
                checked = True
            if read.wants:
                self._large = at, read.wants
                if found:
                    return found, at
                raise NeedsRoom(read.wants)
            if read.entries and not read.batches:
                self._note_barren(at, read.following)
            found += read.batches
            limit -= sum(len(each.batch) for each in read.batches)
            at = max(at, read.following)
            if limit <= 0 or not read.more:
                return found, at

    def _behind_barren(self, offset: int) -> int:
        start, end = self._barren
        return end if start <= offset < end else offset

    def _note_barren(self, start: int, end: int) -> None:
        """Remember a range that will never have records: new entries follow the last one."""
        self._barren = (self._barren[0] if self._barren[1] == start else start, end)

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """See `offset_lookup.find`."""
        self.check_readable(0)
        if timestamp not in tuple(Special):
            return await find_first(self.storage, self.place, timestamp, searcher)
        self.learn(await self.storage.extent(self.place))
        if timestamp in {Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD}:
            return NOT_FOUND
        if timestamp == Special.MAX_TIMESTAMP:
            return await find_latest(self.storage, self.place, self.log_end, searcher)
        return FoundOffset(self.visible_end(isolation) if timestamp == Special.LATEST else self.log_start)

    @property
    def local_start(self) -> int:
        """The log start: all records are in Redis."""
        return self.log_start

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Apply retention with XTRIM by id time and bytes. There is no archive, so `up_to` is unused."""
        self.learn(await self.storage.trim(self.place, before_ms=before_ms, max_bytes=max_bytes))

    async def delete_before(self, offset: int) -> None:
        """See `Partition.delete_before`. Raises OffsetOutOfRange."""
        self.learn(await self.storage.trim(self.place, before_offset=offset))

    def kept(self, offset: int, leader_epoch: int) -> int:
        """Return `offset`: offsets come from the clock and are never reused."""
        return offset

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is past the last reported end."""
        return offset > self.log_end

    async def ask_end(self) -> None:
        """Refresh the log end: a client may have seen a later one at another broker."""
        self.learn(await self.storage.extent(self.place))

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """See `Readable.at_end`. Uses the last reported end."""
        return offset == self.visible_end(isolation)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the end of the only leader epoch."""
        return (0, self.log_end) if epoch == 0 else (-1, -1)

    async def size(self) -> int:
        """Return the stream's approximate bytes."""
        return await self.storage.size(self.place)

    async def settle(self) -> None:
        """Return once every earlier append is answered and the log end is known.

        From then on, Redis refuses brokers with an older epoch, such as a paused one.
        """
        await self.storage.settle(self.place)
        self.learn(await self.storage.open(self.place))

    def expire_producers(self, before_ms: int) -> None:
        """Do nothing: Redis stores the producers, and `trim` expires them."""

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Do nothing: the Redis consumer group stores the committed offset."""

    def close(self) -> None:
        """See `Partition.close`."""
        self.deleted = True
        self.storage.unwatch(self.place)
        # By then, the stream name may belong to another topic.
        self.storage.refuse_waiting(self.place, gone(self))
        if self._rearm is not None:
            self._rearm.cancel()
        for task in (self._looking, self._recovery):
            if task is not None:
                task.cancel()
        self._watchers.notify(0)
        self.listed = partial(_said, listed=False)  # it holds the topic, which holds this


async def _said(*, listed: bool) -> bool:
    return listed


def _parts(entry_id: str) -> tuple[int, int]:
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence)
