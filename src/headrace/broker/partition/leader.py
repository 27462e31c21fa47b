"""A partition whose records lie in a log that this server owns: it decides where a batch goes, and who is told."""

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.aio.tasks import log_unhandled
from headrace.broker.partition import offset_lookup
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.high_watermark import Replication, ReplicationEvents
from headrace.broker.partition.producer_snapshots import ProducerStateSnapshots, SnapshotSchedule
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.partition.reader import ReadableLog
from headrace.broker.partition.recovery import ExhaustionReport, log_given_up, log_lost, reopened
from headrace.broker.partition.source import UNCOMMITTED, Isolation, changing, gone, outside
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.broker.ports import LogStorage
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.membership.view import Leader
from headrace.records.accelerator import stamp
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import (
    Fenced,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OffsetsExhausted,
    PartitionOffline,
    StorageNotWritten,
    StorageUnavailable,
    UnknownTopic,
)
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Appended, OpenedLog, PlaceDone
from headrace.topics.rejected_batches import RejectedBatches


class LeaderPartition(ReadableLog):
    """A partition's owner, its cached tail, and those who wait for it.

    The log end is the high watermark: where the acknowledged batches end, as far as they have their copies. It never
    moves back, unless Redis itself comes back with less than it had acknowledged.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        stream: str,
        storage: LogStorage,
        budget: CacheBudget,
        clock: Clock,
        snapshots: SnapshotSchedule,
        reads: ReadBudget | None = None,
        total: ProducerTotal | None = None,
    ) -> None:
        """Prepare; `open` must come before anything else.

        Args:
            topic: the topic's name.
            index: the partition's number.
            stream: the Redis key of its stream.
            storage: where the log is.
            budget: of all cached tails together.
            clock: tells when a producer was last heard of, and how long a refused batch is waited for.
            snapshots: see to it that what changes of the producers is written down.
            reads: budget of what is read ahead; None: one of its own.
            total: counts the producers of all logs together; None: nothing does.
        """
        super().__init__(stream, storage, budget, reads)
        self.topic = topic
        self.index = index
        self.leader_epoch = 0
        self.deleted = self.paused = False
        self.leader: int | None = None
        self.named = Leader(-1, -1)
        self.opened: Callable[[LeaderPartition], None] = lambda _: None
        """Called whenever this server has become the owner."""
        self._view: int | None = None
        """The number of the view by which this server is the owner; None: it is alone."""
        self._elsewhere: NotLeader | None = None
        """Why it can be neither read nor written here."""
        self._clock = clock
        self.replication = Replication(f"{topic}-{index}", stream, storage.copies, budget)
        self._saving = ProducerStateSnapshots(topic, index, stream, storage)
        self._snapshots = snapshots
        self._save_due = False
        self._writing = asyncio.Lock()
        self.refusals = RejectedBatches(clock.ticks_ms, *(() if total is None else (total.try_take,)))
        self._total = total
        if total is not None:
            total.add(self)
        self._owner = OffsetAssigner(0, refused=self.refusals)
        self._epochs: LeaderEpochs | None = None
        self._fenced_reason: Exception | None = StorageUnavailable(f"{topic}-{index} is not open")
        """Why nothing can be appended just now."""
        self._recovery: asyncio.Task[None] | None = None
        self._exhaustion = ExhaustionReport()

    @property
    def producers(self) -> int:
        """How many idempotent producers it knows, those included that it has refused for a moment."""
        return len(self._owner.producers) + len(self.refusals.first)

    def expire_silent(self, silent_ms: int) -> None:
        """Forget producers that were silent for so long."""
        self.expire_producers(self._clock.now_ms() - silent_ms)
        self.refusals.expire(silent_ms)

    @property
    def log(self) -> "LeaderPartition":
        """Itself; see `Partition.log`."""
        return self

    # Owning

    async def open(self, *, create: bool = False) -> None:
        """Become the owner, and learn where the log starts and ends; `create` makes it where it is missing.

        Raises:
            UnknownTopic: it is missing; Fenced, StorageUnavailable, StorageFull.
        """
        view = self._view
        opened = await self._storage.open(self.stream, self.on_lost, create=create, view=view)
        # By a later view another broker may have opened it in the meantime: it is opened by that one.
        if self.leader is None and view == self._view:
            self._take_over(opened)
        if self.deleted:
            self._storage.forget(self.stream, self.on_lost)

    def _take_over(self, opened: OpenedLog) -> None:
        # Placed while the log was in doubt: whoever sends it again finds it.
        self.replication.fail(StorageUnavailable(f"{self.topic}-{self.index} was recovered again"), self._events())
        before, known = self.log_end, self._epochs is not None and self._elsewhere is None
        # Behind a loss another broker may have led it, in a view that this one has missed: it may be as long again.
        kept = min(opened.epochs.kept(before, self.leader_epoch), opened.next_offset) if known else 0
        count, producers = (lambda: None) if self._total is None else self._total.take, self.producers
        self._owner = OffsetAssigner(opened.next_offset, opened.producers, opened.unsaved, self.refusals, count)
        if self._total is not None:
            self._total.opened(self.producers - producers)
        self._epochs = opened.epochs
        self._saving.begin(self._owner, opened.epochs)
        self.leader_epoch = opened.epochs.rows[-1].epoch
        self._fenced_reason = self._elsewhere = None
        if known and kept < before:
            log_lost(self.topic, self.index, before - kept, self.leader_epoch)
        self.local_start = opened.log_start
        self.log_end = self.replication.high_watermark_at_opening(before, opened)
        if self.replication.min_insync > 1:
            # The next leader needs it.
            self.save_soon()
        same = known and kept == self.log_end == before
        if not same:
            self._clear(self.log_end)
        if known and not same:
            self._watchers.notify(1 if self.log_end > before else 0)
        self.replication.hold_opened(opened.next_offset, self._events())
        self.opened(self)

    @property
    def is_open(self) -> bool:
        """Whether it can be written to here, or will be soon without anybody's doing."""
        return self._fenced_reason is None or self._recovery is not None

    @property
    def is_writable(self) -> bool:
        """Whether a batch can be stored here just now, unless the topic is being changed."""
        return self._fenced_reason is None and not self.deleted

    @property
    def fenced_reason(self) -> Exception | None:
        """Why nothing can be appended to it; None: it is open here, or is another broker's."""
        return None if self.deleted or self.leader is not None else self._fenced_reason

    @property
    def offline(self) -> str | None:
        """Why storage cannot open it, where it holds something else than this log; None: it is not known to be so."""
        fenced_reason = self.fenced_reason
        return str(fenced_reason) if isinstance(fenced_reason, PartitionOffline) else None

    def go_offline(self, reason: Exception) -> None:
        """Storage holds something else than this log: clients are named no leader until it can be opened."""
        if self.deleted or self.leader is not None:  # it is gone, or another broker's by now
            return
        self._fenced_reason = PartitionOffline(str(reason) or type(reason).__name__)
        # Of one that never was open here nothing is known: it cannot be read either.
        if self._epochs is None:
            self._elsewhere = NotLeader(f"{self.topic}-{self.index} is offline")
        self.named = Leader(self.leader_epoch if self._epochs is not None else -1, -1)

    async def try_again(self) -> None:
        """Nothing: `Leadership` opens it."""

    def lead(self, view: int, last_epoch: int = -1) -> None:
        """By the view of this number it is this server's. Where it is not open, `open` comes next.

        `last_epoch`: the highest leader epoch that any broker has told.
        """
        self._view = view
        if self.leader is None and self._epochs is not None and last_epoch > self.leader_epoch:
            self._saving.overtake()
            self.on_lost(StorageUnavailable(f"another broker has opened {self.topic}-{self.index} in the meantime"))
        if self.leader is not None or self._epochs is None:
            self._fenced_reason = self._elsewhere = NotLeader(f"{self.topic}-{self.index} is being opened")
        self.leader = None

    def release(self, leader: int) -> None:
        """It is another broker's from now on."""
        if self.leader is None:
            self._fenced_reason = self._elsewhere = NotLeader(f"another broker leads {self.topic}-{self.index}")
            if self._recovery is not None:
                self._recovery.cancel()
                self._recovery = None
            self.replication.fail(self._fenced_reason, self._events())
            self._snapshots.discard(self)
            self._save_due = False
            self.replication.high_watermark_known = True
            self._clear(self.log_end)
            self._watchers.notify(0)
        self.leader = leader

    def led_elsewhere(self) -> None:
        """Note that another broker may have led it and ended. Storage reports it within a second."""
        if self._elsewhere is None:
            self._saving.led_elsewhere()
            self.save_soon()

    @property
    def is_leader(self) -> bool:
        """Whether it is open here."""
        return self._elsewhere is None

    def check_led(self) -> None:
        """Raise NotLeader unless it is open here."""
        if self._elsewhere is not None:
            raise NotLeader(str(self._elsewhere))

    def on_lost(self, error: Exception) -> None:
        """Storage has put the ownership in doubt: open the log anew before anything else is placed."""
        if self._fenced_reason is not None or self.deleted:
            return
        self._fenced_reason = error
        self.replication.fail(error, self._events())
        self._recovery = asyncio.get_running_loop().create_task(self._recover(error))

    async def _recover(self, reason: Exception) -> None:
        async def open_by(view: int | None) -> OpenedLog:
            try:
                return await self._storage.open(self.stream, self.on_lost, view=view)
            except StorageNotWritten:
                await self._saving.look_who_led()
                raise

        try:
            opened = await reopened(
                self.topic, self.index, open_by, lambda: self._view, reason, self._clock, self.go_offline
            )
        except (Fenced, UnknownTopic) as error:
            # Another server has it, or it was deleted: this partition takes nothing any more.
            self._fenced_reason = error
            self._recovery = None
            log_given_up(self.topic, self.index, error, self._view)
            return
        self._recovery = None
        self._take_over(opened)

    # Appending

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Decide where a checked batch goes and have it stored there; see `Partition.append`.

        Raises:
            StorageUnavailable, StorageFull: just now nothing can be stored. UnknownTopic: the topic has been deleted.
            NotEnoughReplicas: there would not be enough copies.
            OutOfOrderSequence, InvalidProducerEpoch: its producer's sequence does not fit.
            OffsetsExhausted: nothing can be stored ever again.
        """
        if self._fenced_reason is not None or self.paused or self.deleted:
            self.refusals.refuse(append)
            raise self._refusal()
        replication = self.replication
        queue = replication.queue
        if copies > 1 or (queue is not None and queue.holds):
            try:
                replication.check(copies if wait_ms else 1)
            except NotEnoughReplicas:
                self.refusals.refuse(append)
                raise
        try:
            placed = self._owner.assign(append, self._clock.now_ms())
        except OffsetsExhausted as error:
            self._exhaustion.report(self.topic, self.index, error)
            raise
        base_offset = placed.base_offset
        if placed.duplicate:
            replication.repeat(base_offset + append.span, placed, done, copies, wait_ms, self.log_end)
            return
        if not self._save_due:
            self.save_soon()
        stamp(append.batch, base_offset, self.leader_epoch)
        if copies == 1 and queue is None:
            then: PlaceDone = partial(self.finish_append, append, placed, done)
        else:
            replication.made_queue()
            then = partial(self._hold, append, placed, done, copies, wait_ms)
        self._storage.place(self.stream, append, base_offset, then)

    def _refusal(self) -> Exception:
        if self.deleted:
            return gone(self)
        if self.paused:
            return changing(self)
        assert self._fenced_reason is not None
        # A new one each time: what is raised keeps where it was raised.
        return type(self._fenced_reason)(f"{self.topic}-{self.index}: {self._fenced_reason}")

    def finish_append(self, append: Append, placed: Appended, done: AppendDone, error: Exception | None) -> None:
        """Make a batch readable and tell whoever appended it; or only tell of an error."""
        if error is not None:
            self.refusals.refuse(append)
            done(error)
            return
        if self.deleted:  # no client can read it: its batches must not take memory of others
            done(placed)
            return
        batch = append.batch
        size = len(batch)
        self._index.append(placed.base_offset, size)
        self.log_end = log_end = placed.base_offset + append.span
        self._tail.append(log_end, batch)
        replication = self.replication
        if replication.queue is not None:
            self.save_soon()
        if self._watchers:
            self._watchers.notify(size)
        try:
            done(placed)
        except Exception:
            # As `tell`, without a call for each batch: whoever sent it again waits as well.
            log_unhandled("an append")
        if replication.repeated.waiting is not None:
            replication.answer_repeated(log_end)

    # Copies

    def want_copies(self, copies: int) -> None:
        """So many servers are to have what can be read from now on (`min.insync.replicas`)."""
        if copies != self.replication.min_insync:
            self.replication.want(copies, self._events())
            self.save_soon()

    def learn_high_watermark(self, end: int, epoch: int) -> None:
        """All up to an offset was seen to have its copies, by this leader epoch, where it is not open here."""
        if self._elsewhere is not None:
            self.log_end, self.replication.high_watermark_epoch = end, epoch

    def _events(self) -> ReplicationEvents:
        return ReplicationEvents(self.finish_append, self._show_opened, self.on_lost)

    def _hold(
        self, append: Append, placed: Appended, done: AppendDone, copies: int, wait_ms: int, error: Exception | None
    ) -> None:
        self.replication.made_queue().hold(append, placed, done, copies, wait_ms, error, self._events())
        self.replication.answer_repeated(self.log_end)

    def _show_opened(self, end: int) -> None:
        """What was in the log when it was opened, up to `end`, has its copies."""
        self.replication.high_watermark_known = True
        if end != self.log_end:
            self.log_end = end
            self._clear(end)
            self.save_soon()
        self._watchers.notify(0)

    # Reading

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange where an offset is not in the log for certain; UnknownTopic once it is deleted."""
        if self.deleted:
            raise gone(self)
        self.check_led()
        if offset < self.log_start or (offset > self.log_end and self.certainly_past_end(offset)):
            raise outside(self, offset, self.log_start, self.log_end)

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is beyond all that another server may have shown. Readers wait below that."""
        end = self.log_end if self.replication.queue is None else max(self.log_end, self._owner.next_offset)
        return self.is_end_known and offset > end

    @property
    def is_end_known(self) -> bool:
        """Whether nobody can have seen this log longer than it is known to be here."""
        return self._saving.proven and self.replication.high_watermark_known

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """See `broker.partition.offset_lookup.find`."""
        self.check_led()
        return await offset_lookup.find(self._storage, self, timestamp, searcher, self.cold, isolation)

    async def ask_end(self) -> None:
        """Known: nobody else appends. Raises NotLeader where its copies are waited for, or another may have led it."""
        self.check_end()

    def check_end(self) -> None:
        """Raise NotLeader where it is not known how far it can be read."""
        self.replication.check_end()
        if not self._saving.proven:
            raise NotLeader(f"{self.topic}-{self.index}: it is not known yet whether another broker has led it")

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest leader epoch up to this one, and where it ends; -1 and -1 for none. Raises NotLeader."""
        self.check_end()
        return (-1, -1) if self._epochs is None else self._epochs.end_of(epoch, self.log_end)

    def kept(self, offset: int, leader_epoch: int) -> int:
        """How far the log is what it was for who came to `offset` under this leader epoch."""
        return offset if self._epochs is None else self._epochs.kept_for(offset, leader_epoch)

    # Producers

    def save_soon(self) -> None:
        """Have written down within a second what has changed: of the producers, and the high watermark."""
        if not self._save_due:
            self._save_due = True
            self._snapshots.add(self)

    def use(self, snapshots: SnapshotSchedule) -> None:
        """Have others see to it from now on: those before may end with the virtual cluster that the log was in."""
        if snapshots is self._snapshots:
            return
        self._snapshots.discard(self)
        self._snapshots = snapshots
        # Also what those before are just writing down: they may fail. Where there is nothing to write, nothing is.
        snapshots.add(self)

    async def save_producers(self) -> None:
        """Store changed producers. Raises TopicError; the log is recovered if necessary."""
        async with self._writing:  # who comes next writes a later offset, for which all of this has to be there
            self._save_due = False
            if self.is_writable:
                try:
                    await self._saving.save(self.log_end if self.replication.min_insync > 1 else None)
                except Fenced as error:
                    self.on_lost(StorageUnavailable(str(error)))
                    raise

    def expire_producers(self, before_ms: int) -> None:
        """Forget idempotent producers that were last heard of before this time (ms)."""
        if self._saving.expire_producers(before_ms):
            self._snapshots.add(self)

    # Removing, and what lies beside

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Retention; what producers of trimmed batches sent last is written down first, what waits for copies stays."""
        if (before_ms is None and max_bytes is None) or self._elsewhere is not None:
            return
        await self.save_producers()
        if self.replication.queue is not None:
            up_to = self.log_end if up_to is None else min(up_to, self.log_end)
        trimmed = await self._storage.trim(self.stream, before_ms=before_ms, max_bytes=max_bytes, up_to=up_to)
        self._trimmed(trimmed)

    async def delete_before(self, offset: int) -> None:
        """Move the log start up to `offset`, also into the middle of a batch. Raises OffsetOutOfRange."""
        self.check_led()
        if offset > self.log_end:
            raise OffsetOutOfRange(f"{self.topic}-{self.index}: offset {offset} is beyond {self.log_end}")
        if self.cold is not None:
            await self.cold.raise_start(offset)
        await self._storage.settle(self.stream)
        await self.save_producers()
        self._trimmed(await self._storage.trim(self.stream, before_offset=offset))

    async def settle(self) -> None:
        """Return when every append given before has its answer and can be read. Raises StorageUnavailable."""
        await self.save_producers()
        await self._storage.settle(self.stream)
        await self.replication.settle()
        if self._fenced_reason is not None:
            # What waited was given up: the opening tells what there is.
            raise StorageUnavailable(f"{self.topic}-{self.index}: {self._fenced_reason}")

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Show a group's position in the Redis consumer group of the stream."""
        if offset >= 0 and self._elsewhere is None:
            await self._storage.mirror_offset(self.stream, group, offset)

    def close(self) -> None:
        """The topic is gone: free the memory, wake everyone who waits."""
        self.deleted = True
        self._clear(self.log_end)
        self.replication.fail(gone(self), self._events())
        self._saving.end()
        self._snapshots.discard(self)
        if self._recovery is not None:
            self._recovery.cancel()
        self._storage.forget(self.stream, self.on_lost)
        self._watchers.notify(0)
