"""A partition of a native topic: a plain Redis Stream.

Anybody may add entries, so nothing is cached, and the log end is what Redis was heard to say last: a waiting XREAD
tells of every new entry. What is read comes with where the log starts and ends, so both are exact when they matter.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import NamedTuple

import structlog

from headrace.broker.native.in_flight import InFlight
from headrace.broker.native.timestamps import find_first, find_latest
from headrace.broker.partition.cache import Buffer, take
from headrace.broker.partition.in_sync_replicas import check_replicas, done_with_copies
from headrace.broker.partition.recovery import ExhaustionReport, log_storage_refusal
from headrace.broker.partition.source import UNCOMMITTED, UNKNOWN_SIZE, Isolation, Watchers, changing, gone, outside
from headrace.broker.partition.timestamps import FoundOffset, Searcher, Special
from headrace.broker.ports import NativeStorage
from headrace.broker.runtime.budget import NeedsRoom
from headrace.broker.runtime.clock import SystemClock
from headrace.membership.view import Leader
from headrace.records.build import build_empty
from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.errors import (
    BehindRefused,
    Fenced,
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
from headrace.topics.native import Extent, NativeRead, NativeStream, NotAStream
from headrace.topics.rejected_batches import RejectedBatches

_REARM_S = 0.002
"""How long after one wake-up the next is waited for: bounds what a busy stream costs."""
_MARKS = 256
_MOST_SPAN = 2**31
"""Offsets that one batch has at most."""
_log = structlog.get_logger("headrace.broker.native")


class _Mark(NamedTuple):
    end: int
    added: int


class NativePartition:
    """A partition whose records are entries of a plain stream: `broker.partition.partition.Partition`."""

    log = None
    has_gaps = entry_per_record = True
    leader_epoch = 0
    """There is no owner whose batches could be told from another's."""

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
        """See `Partition.offline`; clients are sent here all the same, and each has the reason as its answer."""
        self.leader: int | None = None
        """Where clients are sent; None: here."""
        self.named = Leader(0, -1)
        self.paused = False
        self.storage = storage
        self._watchers = Watchers()
        self.watch, self.unwatch = self._watchers.add, self._watchers.discard
        self.refusals = refusals or RejectedBatches(SystemClock().ticks_ms)
        self._under_way = InFlight()
        self._next = 0
        """The offset behind all that was acknowledged here. Redis may lose that, and would go on with older ids where
        its clock is behind them: readers are past those."""
        self._refused = False
        """Whether Redis takes no records, and our log has told so."""
        self._exhaustion = ExhaustionReport()
        self._recovery: asyncio.Task[None] | None = None
        self.listed: Callable[[], Awaitable[bool]] = partial(_said, listed=True)
        """Asks whether the registry has the partition: a topic goes from there before its streams do."""
        self.place = stream
        self.unfit = 0
        """Entries met that are not served."""
        self._last_unfit = (-1, -1)
        self._barren = (0, 0)
        """From the first of these offsets up to the second there are such entries and no others."""
        self._large = (-1, 0)
        """An offset, and bytes of the first record from there on: Redis copies it, too, to tell how large it is."""
        self._marks: deque[_Mark] = deque([_Mark(extent.log_end, extent.added)], _MARKS)
        self._heard = monotonic()
        """When the newest of them was heard of."""
        self._looking: asyncio.Task[None] | None = None
        self._rearm: asyncio.TimerHandle | None = None
        self._watch_stream()

    def want_copies(self, copies: int) -> None:
        """Whoever appends waits for them; what is in a plain stream can be read by anybody at once."""

    def check_led(self) -> None:
        """Every broker can read and write a plain stream; `leader` is only where clients are sent."""

    def _watch_stream(self) -> None:
        self._rearm = None
        if not self.deleted:
            self.storage.watch(self.place, self.log_end, self._woken)

    def _woken(self, end: int | None) -> None:
        """Somebody added entries up to `end`, or the stream has to be looked at."""
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
        """The log ends there at least: whoever is the first to hear so tells those who wait."""
        if end > self.log_end:
            self.log_end = end
            self._watchers.notify(UNKNOWN_SIZE)

    async def _look(self) -> None:
        try:
            self.learn(await self.storage.extent(self.place))
        except TopicError as error:
            if isinstance(error, StorageUnavailable) and not isinstance(error, NotAStream):
                # Whoever reads or writes is told.
                return
            self.go_offline(error)
        finally:
            self._looking = None

    def learn(self, extent: Extent) -> None:
        """Take over where Redis says the log starts and ends; it may come back with less than it had."""
        if self._marks and extent.added < self._marks[-1].added:
            if extent.asked <= self._heard:
                # Overtaken by an answer that was asked for later: what was known already proves that it is old.
                return
            self._marks.clear()
            self._barren = (0, 0)
            self.log_end = 0
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
        # Redis may have told of entries elsewhere that came after this answer was made.
        self._reaches(extent.log_end)

    def go_offline(self, reason: Exception) -> None:
        """Its keys hold something else than a stream and what is kept with it."""
        if self.offline != str(reason):
            _log.error("partition offline", topic=self.topic, partition=self.index, reason=str(reason))
        self.offline = str(reason)

    async def try_again(self) -> None:
        """Open it once more where it is offline: what was wrong may have been put right."""
        try:
            if self.offline is not None and not self.deleted and await self.listed():
                self.learn(await self.storage.open(self.place))
        except TopicError as error:
            if isinstance(error, NotAStream) or not isinstance(error, Fenced | StorageFull | StorageUnavailable):
                self.go_offline(error)

    def check_place(self, offset: int, extent: Extent) -> None:
        """Raise OffsetOutOfRange where records from `offset` on were removed, or the log ends before it.

        Before the first entry that is left there may have been others, or nothing but a gap in the offsets. Redis
        counts the entries it ever took: where none is missing since a log end at or before `offset`, it is a gap.
        """
        if offset > extent.log_end:
            raise outside(self, offset, extent.log_start, extent.log_end)
        if offset >= extent.log_start:
            return
        mark = max((mark for mark in self._marks if mark.end <= offset), default=None)
        if mark is None or extent.length < extent.added - mark.added or extent.added < mark.added:
            raise outside(self, offset, extent.log_start, extent.log_end)

    def report(self, read: NativeRead) -> None:
        """Take note of a read: where the log is, and which of the entries are not served."""
        self.learn(read.extent)
        unfit = [entry_id for entry_id in read.unfit if _parts(entry_id) > self._last_unfit]
        if unfit:
            # Each is told once, however often it is met.
            self.unfit += len(unfit)
            self._last_unfit = _parts(unfit[-1])
            _log.warning(
                "entries not served: their sequence has more bits than offset.sequence.bits, or they are too large",
                topic=self.topic,
                partition=self.index,
                stream=self.stream,
                bits=self.place.bits,
                first=unfit[0],
                entries=len(unfit),
                met=self.unfit,
            )

    # Appending

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Store a checked batch, an entry per record; see `Partition.append`. Anybody reads it as soon as it is there.

        Where much is on its way to Redis it waits for its turn as it is, and `done` is told whatever is wrong then.

        Raises:
            CorruptBatch, UnknownTopic, StorageUnavailable, NotEnoughReplicas.
        """
        if self.deleted:
            raise gone(self)
        if self.paused:
            self.refusals.refuse(append)
            raise changing(self)
        if copies > 1 and wait_ms:
            try:
                check_replicas(self.storage.copies, self.stream, copies)
            except NotEnoughReplicas:
                self.refusals.refuse(append)
                raise
            # The primary that took it may be gone before there are copies.
            done = partial(self._told, append, done)
            done = done_with_copies(self.storage.copies, self.stream, copies, wait_ms, done)
        number, behind = self._under_way.send(append)
        # Only Redis knows what has become of those ahead of it.
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
            # Redis has lost what it keeps beside the stream: evicted, or deleted by somebody, with the topic perhaps.
            if self._recovery is None:
                self._recovery = asyncio.get_running_loop().create_task(self._recover())
            result = StorageUnavailable(f"{self.topic}-{self.index}: Redis has lost the partition's state")
        self._told(append, done, result)

    def _told(self, append: Append, done: AppendDone, result: Appended | Exception) -> None:
        """Tell whoever appended, and remember which batch of its producer was the first to be refused for a moment.

        What is behind that one is to come again. That one itself is not, when it is out of order: what was ahead of
        it was acknowledged, and is lost.
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
            # Opened once more, a partition of a topic that somebody deletes would take records again.
            if await self.listed():
                self.learn(await self.storage.open(self.place))
        except TopicError as error:
            _log.error("partition not opened again", topic=self.topic, partition=self.index, reason=str(error))
        finally:
            self._recovery = None

    # Reading

    def check_readable(self, offset: int) -> None:
        """Raise UnknownTopic once it is deleted; whether an offset is there only Redis knows."""
        if self.deleted:
            raise gone(self)

    def visible_end(self, isolation: Isolation) -> int:
        """All there is."""
        return self.log_end

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Nothing is."""
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Nothing."""
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
        """Batches made of the entries from `offset` on, for a reader that is in no group.

        Where there are none up to the log end, an empty batch leads the reader there.

        Raises:
            OffsetOutOfRange: records from there on were removed, or the log ends before it.
            NeedsRoom: the first of them has more bytes than `first`.
        """
        return take(await self.read_to_end(offset, limit, first=first), limit)

    async def read_to_end(self, offset: int, limit: int, *, first: int | None = None) -> list[StoredBatch]:
        """As `read_range`; where no record is left up to the log end, an empty batch that ends there."""
        found, following = await self._read_on(offset, limit, None, first)
        return found or await self.empty_to_end(offset, following)

    async def empty_to_end(self, offset: int, following: int) -> list[StoredBatch]:
        """An empty batch from `offset` up to the log end; nothing if records may lie between.

        The last entries were deleted, or are not served: clients would wait forever at an offset below the log end.

        Args:
            offset: where the batch begins.
            following: up to here there are no records, as was read. No entry is added before the log end, but some may
                have been after that read.
        """
        end = self.log_end
        if not await self.storage.is_gap(self.place, following, end):
            end = following
        return [StoredBatch(max(offset, end - _MOST_SPAN), end, build_empty(offset, end))] if end > offset else []

    async def read_range(
        self, offset: int, limit: int, before: int | None = None, *, first: int | None = None
    ) -> list[StoredBatch]:
        """Entries from `offset` on, below `before`, about `limit` bytes of them; raises as `read_stored`."""
        return (await self._read_on(offset, limit, before, first))[0]

    async def _read_on(
        self, offset: int, limit: int, before: int | None, first: int | None
    ) -> tuple[list[StoredBatch], int]:
        """As `read_range`, and the first offset that was not looked at."""
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
        """Where to read for what lies from an offset on: an entry that is too large costs Redis much each time."""
        start, end = self._barren
        return end if start <= offset < end else offset

    def _note_barren(self, start: int, end: int) -> None:
        """No record lies from `start` up to `end`, and none ever will: new ones come behind the last."""
        self._barren = (self._barren[0] if self._barren[1] == start else start, end)

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """The first record with this timestamp (ms) or a later one; see `broker.partition.offset_lookup.find`."""
        self.check_readable(0)
        if timestamp not in tuple(Special):
            return await find_first(self.storage, self.place, timestamp, searcher)
        self.learn(await self.storage.extent(self.place))
        if timestamp == Special.MAX_TIMESTAMP:
            return await find_latest(self.storage, self.place, self.log_end, searcher)
        return FoundOffset(self.visible_end(isolation) if timestamp == Special.LATEST else self.log_start)

    @property
    def local_start(self) -> int:
        """All there is lies in Redis."""
        return self.log_start

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Retention: XTRIM by the time of the ids and by bytes. Native topics are not archived: no `up_to`."""
        self.learn(await self.storage.trim(self.place, before_ms=before_ms, max_bytes=max_bytes))

    async def delete_before(self, offset: int) -> None:
        """Move the log start up to `offset`. Raises OffsetOutOfRange."""
        self.learn(await self.storage.trim(self.place, before_offset=offset))

    # The rest of a partition

    def kept(self, offset: int, leader_epoch: int) -> int:
        """All of it: the offsets of a stream come from its clock, and none is that of another record later."""
        return offset

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset lies behind all that there is, as far as it was heard."""
        return offset > self.log_end

    async def ask_end(self) -> None:
        """Know where the log ends by now: what was heard may be behind what a client was given at another broker."""
        self.learn(await self.storage.extent(self.place))

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Whether a read would find nothing, as far as it was heard."""
        return offset == self.visible_end(isolation)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Where the only leader epoch ends."""
        return (0, self.log_end) if epoch == 0 else (-1, -1)

    async def size(self) -> int:
        """Bytes that the stream takes in Redis, about."""
        return await self.storage.size(self.place)

    async def settle(self) -> None:
        """Return when every append given before has its answer; where the log ends is known then.

        What a broker of an earlier view still sends is refused from then on: it may have been stopped, and wake.
        """
        await self.storage.settle(self.place)
        self.learn(await self.storage.open(self.place))

    def expire_producers(self, before_ms: int) -> None:
        """Nothing: Redis keeps them, and `trim` forgets those that were silent for long."""

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Nothing: the Redis group is the group."""

    def close(self) -> None:
        """The topic is gone: wake everyone who waits."""
        self.deleted = True
        self.storage.unwatch(self.place)
        # A stream of that name may be another topic's by the time that they are sent.
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
