"""The leader's log partition: it places batches and completes their requests."""

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.aio.tasks import log_unhandled
from headrace.broker.log_ports import LogStorage
from headrace.broker.partition import offset_lookup
from headrace.broker.partition.admission import Admission, AdmissionEvents, Held
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.high_watermark import ReplicationEvents
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.partition.recovery import ExhaustionReport, log_given_up, log_lost, rebuilt, reopened
from headrace.broker.partition.saved_log import SavedLog
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED, Isolation, changing, gone, outside
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.membership.view import Leader
from headrace.records.accelerator import stamp
from headrace.records.markers import Marker, build_marker
from headrace.topics.append import EndStep, OffsetAssigner
from headrace.topics.errors import (
    Fenced,
    NotEnoughReplicas,
    NotLeader,
    OffsetsExhausted,
    PartitionOffline,
    StorageNotWritten,
    StorageUnavailable,
    UnknownTopic,
)
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Appended, OpenedLog, PlaceDone
from headrace.topics.transactions import UNNUMBERED, Transactions


class LeaderPartition(SavedLog):
    """A log partition that this server leads or may lead.

    The log end is the high watermark: the end of the acknowledged and sufficiently replicated batches. It never
    decreases unless Redis loses acknowledged batches.
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
        """Prepare the partition; call `open` before any other method.

        `reads` is the budget for read-ahead (None: a separate one), `total` counts all logs' producers.
        """
        super().__init__(topic, index, stream, storage, budget, clock, snapshots, reads, total)
        self.leader_epoch = 0
        self.paused = False
        self.leader: int | None = None
        self.named = Leader(-1, -1)
        self.opened: Callable[[LeaderPartition], None] = lambda _: None
        """Called whenever this server becomes leader."""
        self._view: int | None = None
        """Broker epoch by which this server leads; None for a single server."""
        self.admission = Admission(storage.allow_transactions)
        """Transactional batches that wait for their coordinator."""
        self._index_rebuild: asyncio.Task[None] | None = None
        self._epochs: LeaderEpochs | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._exhaustion = ExhaustionReport()

    @property
    def log(self) -> "LeaderPartition":
        """See `Partition.log`."""
        return self

    async def open(self, *, create: bool = False) -> None:
        """Become leader and recover the log's start and end; `create` creates a missing log.

        Raises:
            UnknownTopic: the log is missing.
            Fenced, StorageUnavailable, StorageFull: the log cannot be opened.
        """
        view = self._view
        opened = await self._storage.open(self.stream, self.on_lost, create=create, view=view)
        # Another broker may have opened it by a newer broker epoch.
        if self.leader is None and view == self._view:
            self._take_over(opened)
        if self.deleted:
            self._storage.forget(self.stream, self.on_lost)

    def _take_over(self, opened: OpenedLog) -> None:
        # Placed while the log was in doubt: a producer's retry finds them.
        self._fail_waiting(StorageUnavailable(f"{self.topic}-{self.index} was recovered again"))
        before, known = self.log_end, self._epochs is not None and self._elsewhere is None
        # After a data loss, a broker that this one missed may have led the log and restored its length.
        kept = min(opened.epochs.kept(before, self.leader_epoch), opened.next_offset) if known else 0
        count, producers = (lambda: None) if self._total is None else self._total.take, self.producers
        transactions = opened.transactions
        self._owner = OffsetAssigner(
            opened.next_offset, opened.producers, opened.unsaved, self.refusals, count, transactions
        )
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
        self._use_transactions(transactions)
        if transactions is None:
            self._index_rebuild = asyncio.get_running_loop().create_task(self._rebuild_index())
        if self.replication.min_insync > 1:
            # The next leader must know this.
            self.save_soon()
        same = known and kept == self.log_end == before
        if not same:
            self._clear(self.log_end)
        if known and not same:
            self._notify(1 if self.log_end > before else 0)
        self.replication.hold_opened(opened.next_offset, self._events())
        self.opened(self)

    @property
    def is_open(self) -> bool:
        """Whether it accepts writes now or will soon without intervention."""
        return self._fenced_reason is None or self._recovery is not None

    @property
    def fenced_reason(self) -> Exception | None:
        """Why appends fail; None if it is open here or led by another broker."""
        return None if self.deleted or self.leader is not None else self._fenced_reason

    @property
    def offline(self) -> str | None:
        """See `Partition.offline`."""
        fenced_reason = self.fenced_reason
        return str(fenced_reason) if isinstance(fenced_reason, PartitionOffline) else None

    def go_offline(self, reason: Exception) -> None:
        """Mark the partition offline: it has no leader until storage can open it."""
        if self.deleted or self.leader is not None:  # deleted, or led by another broker
            return
        self._fenced_reason = PartitionOffline(str(reason) or type(reason).__name__)
        # If never opened here, it cannot be read either.
        if self._epochs is None:
            self._elsewhere = NotLeader(f"{self.topic}-{self.index} is offline")
        self.named = Leader(self.leader_epoch if self._epochs is not None else -1, -1)

    async def try_again(self) -> None:
        """Do nothing: `Leadership` opens logs."""

    def lead(self, view: int, last_epoch: int = -1) -> None:
        """Lead the partition from this broker epoch on. If it is not open, call `open` next.

        `last_epoch`: the highest leader epoch that any broker reported.
        """
        self._view = view
        if self.leader is None and self._epochs is not None and last_epoch > self.leader_epoch:
            self._saving.overtake()
            self.on_lost(StorageUnavailable(f"another broker has opened {self.topic}-{self.index} in the meantime"))
        if self.leader is not None or self._epochs is None:
            self._fenced_reason = self._elsewhere = NotLeader(f"{self.topic}-{self.index} is being opened")
        self.leader = None

    def release(self, leader: int) -> None:
        """Hand the partition over to the broker `leader`."""
        if self.leader is None:
            self._fenced_reason = self._elsewhere = NotLeader(f"another broker leads {self.topic}-{self.index}")
            if self._recovery is not None:
                self._recovery.cancel()
                self._recovery = None
            self._fail_waiting(self._fenced_reason)
            self._snapshots.discard(self)
            self._save_due = False
            self.replication.high_watermark_known = True
            self._clear(self.log_end)
            self._notify(0)
        self.leader = leader

    def led_elsewhere(self) -> None:
        """Note that another broker may have led it and failed. Storage confirms this within 1 s."""
        if self._elsewhere is None:
            self._saving.led_elsewhere()
            self.save_soon()

    @property
    def is_leader(self) -> bool:
        """Whether it is open here."""
        return self._elsewhere is None

    def check_led(self) -> None:
        """See `Partition.check_led`."""
        if self._elsewhere is not None:
            raise NotLeader(str(self._elsewhere))

    def on_lost(self, error: Exception) -> None:
        """Recover the log before any further append: its ownership is in doubt."""
        if self._fenced_reason is not None or self.deleted:
            return
        self._fenced_reason = error
        self._fail_waiting(error)
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
            # The log was deleted or has another leader: accept nothing more.
            self._fenced_reason = error
            self._recovery = None
            log_given_up(self.topic, self.index, error, self._view)
            return
        self._recovery = None
        self._take_over(opened)

    def append(
        self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0, number: int | None = None
    ) -> None:
        """See `Partition.append`. `number` is that of a transaction that its coordinator has confirmed.

        Raises:
            StorageUnavailable, StorageFull: storage accepts nothing now.
            UnknownTopic: the topic was deleted.
            NotEnoughReplicas: too few replicas follow.
            OutOfOrderSequence, InvalidProducerEpoch: the producer's sequence does not fit.
            OffsetsExhausted: the partition has no offsets left.
            InvalidTransactionState, MissingTransactionalId, InvalidRecord: a transactional batch, or one of a producer
                with an open transaction, does not fit.
        """
        if self._fenced_reason is not None or self.paused or self.deleted:
            self.refusals.refuse(append)
            raise self._refusal()
        if number is None:
            if (append.transaction is not None or self.admission.guards) and self._must_wait(
                Held(append, done, copies, wait_ms)
            ):
                return
            number = UNNUMBERED
        replication = self.replication
        queue = replication.queue
        if copies > 1 or (queue is not None and queue.holds):
            try:
                replication.check(copies if wait_ms else 1)
            except NotEnoughReplicas:
                self.refusals.refuse(append)
                raise
        try:
            placed = self._owner.assign(append, self._clock.now_ms(), number)
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

    def _must_wait(self, held: Held) -> bool:
        if held.append.transaction is not None:
            self.admission.check(held.append)
            self.check_stable()
        events = AdmissionEvents(self._append_held, self.refusals.refuse)
        return self.admission.takes(self._owner, self.topic, self.index, held, events)

    def _append_held(self, held: Held, number: int | None) -> None:
        self.append(*held, number)

    def _refusal(self) -> Exception:
        if self.deleted:
            return gone(self)
        if self.paused:
            return changing(self)
        assert self._fenced_reason is not None
        # An exception keeps its traceback, so create a new one each time.
        return type(self._fenced_reason)(f"{self.topic}-{self.index}: {self._fenced_reason}")

    def finish_append(self, append: Append, placed: Appended, done: AppendDone, error: Exception | None) -> None:
        """Make a batch readable and complete its request, or report an error."""
        if error is not None:
            self.refusals.refuse(append)
            done(error)
            return
        if self.deleted:  # unreadable batches must not take cache memory
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
        transactions = self._owner.transactions
        if transactions.used:
            self._stable_watchers.grown(transactions, placed.base_offset, log_end, size)
        elif self._stable_watchers:
            self._stable_watchers.notify(size)
        try:
            done(placed)
        except Exception:
            # Also completes requests with a duplicate of the batch.
            log_unhandled("an append")
        if replication.repeated.waiting is not None:
            replication.answer_repeated(log_end)

    def want_copies(self, copies: int) -> None:
        """See `Partition.want_copies`."""
        if copies != self.replication.min_insync:
            self.replication.want(copies, self._events())
            self.save_soon()

    def learn_high_watermark(self, end: int, epoch: int) -> None:
        """Record a high watermark and its leader epoch while the log is not open here."""
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
        self.replication.high_watermark_known = True
        if end != self.log_end:
            self.log_end = end
            self._clear(end)
            self.save_soon()
        self._owner.transactions.finish(end)
        self._notify(0)

    def _fail_waiting(self, error: Exception) -> None:
        self.replication.fail(error, self._events())
        self.admission.fail(error)
        if self._index_rebuild is not None:
            self._index_rebuild.cancel()
            self._index_rebuild = None

    def _use_transactions(self, transactions: Transactions | None) -> None:
        if self.transactions is not None:
            self.transactions.aborted.release()
        self.transactions = transactions
        if transactions is not None:
            self._owner.transactions = transactions
            transactions.aborted.trim(self.local_start)
            transactions.finish(self.log_end)
            self._stable_watchers.begin()

    async def _rebuild_index(self) -> None:
        """Read all batches, because the index of transactions is lost. Aborted ones must not appear as committed."""
        found = await rebuilt(self.topic, self.index, self._storage.rebuild_transactions, self.stream, self._clock)
        self._index_rebuild = None
        self._use_transactions(found)
        self.save_soon()
        self._notify(0)

    # Ends of transactions: see `headrace.broker.participants`

    def end_step(self, marker: Marker) -> EndStep:
        """Return what the end of a transaction requires; see `OffsetAssigner.check_end`.

        Raises:
            InvalidProducerEpoch: a higher epoch is known.
            NotLeader, StorageUnavailable, UnknownTopic: it cannot be written here now.
        """
        if self._fenced_reason is not None or self.paused or self.deleted:
            raise self._refusal()
        self.check_stable()
        step = self._owner.check_end(marker)
        if step is not EndStep.REPEATED:
            self.admission.invalidate(marker)
        return step

    def append_marker(self, marker: Marker, done: AppendDone, wait_ms: int) -> None:
        """Append the marker of an open transaction. `done` waits at most `wait_ms` for replicas.

        A negative number is replaced by that of the producer's last transaction. Raises OffsetsExhausted,
        TooManyProducers.
        """
        if marker.number < 0:
            known = self._owner.producers.get(marker.producer_id)
            marker = marker._replace(number=UNNUMBERED if known is None else known.ended)
        now_ms = self._clock.now_ms()
        offset = self._owner.assign_marker(marker, now_ms)
        append, placed = Append(build_marker(marker, now_ms), 1, now_ms), Appended(offset)
        stamp(append.batch, offset, self.leader_epoch)
        self.save_soon()
        copies, queue = self.replication.min_insync, self.replication.queue
        if copies == 1 and queue is None:
            then: PlaceDone = partial(self.finish_append, append, placed, done)
        else:
            then = partial(self._hold, append, placed, done, copies, wait_ms)
        self._storage.place(self.stream, append, offset, then)

    def _notify(self, size: int) -> None:
        self._watchers.notify(size)
        self._stable_watchers.notify(size)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange if `offset` is certainly not in the log; UnknownTopic once it is deleted."""
        if self.deleted:
            raise gone(self)
        self.check_led()
        if offset < self.log_start or (offset > self.log_end and self.certainly_past_end(offset)):
            raise outside(self, offset, self.log_start, self.log_end)

    def certainly_past_end(self, offset: int) -> bool:
        """See `Source.certainly_past_end`."""
        end = self.log_end if self.replication.queue is None else max(self.log_end, self._owner.next_offset)
        return self.is_end_known and offset > end

    @property
    def is_end_known(self) -> bool:
        """Whether no client can have seen a higher end."""
        return self._saving.proven and self.replication.high_watermark_known

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """See `offset_lookup.find`."""
        self.check_led()
        if isolation == COMMITTED:
            self.check_stable()
        return await offset_lookup.find(self._storage, self, timestamp, searcher, self.cold, isolation)

    async def ask_end(self) -> None:
        """Raise NotLeader if the high watermark is not known. Only this server appends."""
        self.check_end()

    def check_end(self) -> None:
        """See `Replication.check_end`."""
        self.replication.check_end()
        if not self._saving.proven:
            raise NotLeader(f"{self.topic}-{self.index}: it is not known yet whether another broker has led it")

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """See `Partition.end_of_epoch`."""
        self.check_end()
        return (-1, -1) if self._epochs is None else self._epochs.end_of(epoch, self.log_end)

    def kept(self, offset: int, leader_epoch: int) -> int:
        """See `Source.kept`."""
        return offset if self._epochs is None else self._epochs.kept_for(offset, leader_epoch)

    def close(self) -> None:
        """See `Partition.close`."""
        self.deleted = True
        self._use_transactions(Transactions())
        self._clear(self.log_end)
        self._fail_waiting(gone(self))
        self._saving.end()
        self._snapshots.discard(self)
        if self._recovery is not None:
            self._recovery.cancel()
        self._storage.forget(self.stream, self.on_lost)
        self._notify(0)
