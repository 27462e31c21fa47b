"""Maintain the high watermark of one log and its batches that wait for replicas (`min.insync.replicas`)."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.aio.tasks import tell
from headrace.broker.log_ports import InSyncReplicas, LogLook
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.in_sync_replicas import check_replicas, check_room, done_with_copies, replicas_caught_up
from headrace.topics.errors import NotLeader, StorageUnavailable
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Appended, Lost, OpenedLog

_BATCH = "a repeated batch"


class _Waiting(NamedTuple):
    end: int
    appended: Appended
    done: AppendDone


class DuplicateWaiters:
    """Requests of one partition that wait for a duplicate of an unacknowledged batch, in order."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        # Usually few, but up to 100,000 with slow storage. An empty deque would cost 700 bytes per partition.
        self.waiting: deque[_Waiting] | None = None
        """None if no request waits."""

    def add(self, end: int, appended: Appended, done: AppendDone) -> None:
        """Call `done` with `appended` once storage has everything before offset `end`."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(_Waiting(end, appended, done))

    def answer(self, stored_end: int) -> None:
        """Complete requests whose batches end at or before `stored_end`."""
        # A callback may append, complete or fail other requests.
        while self.waiting and self.waiting[0].end <= stored_end:
            first = self.waiting.popleft()
            tell(first.done, first.appended, _BATCH)
        if not self.waiting:
            self.waiting = None

    def fail(self, error: Exception) -> None:
        """Fail all requests, because the contents of storage are in doubt."""
        waiting, self.waiting = self.waiting or (), None
        for each in waiting:
            tell(each.done, error, _BATCH)


# As in Kafka, the high watermark waits for batches without enough replicas, without a time limit. A promoted replica
# can therefore only lack unreadable batches. The sender waits at most `replica.lag.time.max.ms`.
_HELD_BATCH = "a batch that waits for copies"


class ReplicationEvents(NamedTuple):
    """Callbacks for replication events of a log.

    Each call that may wait receives them. Only that wait's callbacks hold references to them.
    """

    placed: Callable[[Append, Appended, AppendDone, Exception | None], None]
    """Makes a batch readable and completes its request, or only reports an error. Called in log order."""
    opened: Callable[[int], None]
    """Makes the log readable up to an offset after a recovery."""
    on_lost: Lost
    """Called when the primary may have changed and the log must be recovered."""


class _Held:
    """An unreadable batch, or everything that the log held when it was opened."""

    __slots__ = ("append", "done", "end", "overdue", "placed", "result")

    def __init__(self, append: Append | None, placed: Appended, end: int, done: AppendDone | None) -> None:
        self.append = append
        """None for the contents of the log when it was opened."""
        self.placed = placed
        self.end = end
        """The offset after it."""
        self.done = done
        """None if its request was completed."""
        self.overdue = append is None
        """Whether only readers still wait for its replicas."""
        self.result: Appended | Exception | None = None
        """The outcome; None while it is unknown."""


class ReplicationQueue:
    """Batches of one log between the high watermark and the next offset, in order."""

    __slots__ = ("_asked", "_budget", "_copies", "_held", "_stream", "_wanted")

    def __init__(self, copies: InSyncReplicas, stream: str, budget: CacheBudget, wanted: int) -> None:
        """`wanted` servers must have a batch before it is readable."""
        self._held: deque[_Held] = deque()
        self._copies = copies
        self._stream = stream
        self._budget = budget
        self._wanted = wanted
        self._asked: _Held | None = None
        """The last batch of the current wait without a time limit."""

    @property
    def holds(self) -> bool:
        """Whether a batch waits. All later ones then wait as well."""
        return bool(self._held)

    @property
    def end(self) -> int:
        """The offset after the last waiting batch."""
        return self._held[-1].end

    def want(self, copies: int, events: ReplicationEvents) -> None:
        """See `Partition.want_copies`. Waiting batches included."""
        self._wanted = copies
        if copies == 1 and self._held:
            self._asked = None
            self._reached(self.end, events)
        elif self._asked is not None:
            self._asked = None
            self._ask_on(events)

    def hold_opened(self, end: int, events: ReplicationEvents) -> None:
        """Hold the contents of an opened log up to `end` until enough servers have them."""
        self._hold(_Held(None, Appended(end), end, None))
        self._ask_on(events)

    def hold(
        self,
        append: Append,
        placed: Appended,
        done: AppendDone,
        wanted: int,
        wait_ms: int,
        error: Exception | None,
        events: ReplicationEvents,
    ) -> None:
        """Hold a batch that Redis stored, or refused with `error`, until `wanted` servers have it.

        `done` is called then or after `wait_ms`; at once if that is 0.
        """
        if error is not None:
            events.placed(append, placed, done, error)
            return
        held = _Held(append, placed, placed.base_offset + append.span, done if wait_ms else None)
        self._hold(held)
        if not wait_ms:
            tell(done, placed, _HELD_BATCH)
        if wanted == 1:
            held.result = placed
            self._flush(events)
        else:
            self._copies.confirm(self._stream, wanted, wait_ms or _LONGEST_MS, partial(self._confirmed, held, events))

    def _hold(self, held: _Held) -> None:
        self._held.append(held)
        self._budget.held += _size(held)

    def _confirmed(self, held: _Held, events: ReplicationEvents, error: Exception | None) -> None:
        if held.result is not None:
            # Later batches were replicated, or the log was recovered.
            return
        if isinstance(error, StorageUnavailable):
            self._doubted(error, events)
        elif error is None:
            self._reached(held.end, events)
        else:
            done, held.done, held.overdue = held.done, None, True
            if done is not None:
                tell(done, error, _HELD_BATCH)
            self._ask_on(events)

    def _ask_on(self, events: ReplicationEvents) -> None:
        if self._asked is None and self._held:
            last = self._asked = self._held[-1]
            self._copies.confirm(self._stream, self._wanted, None, partial(self._have_come, last, self._wanted, events))

    def _have_come(self, last: _Held, wanted: int, events: ReplicationEvents, error: Exception | None) -> None:
        if self._asked is not last or wanted != self._wanted:
            # A newer wait replaced this one.
            return
        self._asked = None
        if isinstance(error, StorageUnavailable):
            self._doubted(error, events)
        elif error is None:
            self._reached(last.end, events)

    def _doubted(self, error: StorageUnavailable, events: ReplicationEvents) -> None:
        # A promoted replica may lack it, so it stays unreadable until the log is recovered.
        events.on_lost(error)
        # A log that is deleted or already in doubt reports nothing.
        self.fail(error, events)

    def _reached(self, end: int, events: ReplicationEvents) -> None:
        for held in self._held:
            if held.end > end:
                break
            held.result = held.placed
        self._flush(events)

    def _flush(self, events: ReplicationEvents) -> None:
        waiting = self._held
        while waiting and waiting[0].result is not None:
            first = waiting.popleft()
            self._budget.held -= _size(first)
            if first.append is None:
                events.opened(first.end)
            else:
                events.placed(first.append, first.placed, partial(_tell, first.done, first.result), None)
        if waiting and waiting[0].overdue:
            self._ask_on(events)

    def fail(self, error: Exception, events: ReplicationEvents) -> None:
        """Drop everything that waits. The next recovery makes it readable."""
        waiting, self._held, self._asked = self._held, deque(), None
        for held in waiting:
            self._budget.held -= _size(held)
            held.result = error
        for held in waiting:
            if held.append is not None and held.done is not None:
                events.placed(held.append, held.placed, partial(tell, held.done, to=_HELD_BATCH), error)


def _size(held: _Held) -> int:
    return 0 if held.append is None else len(held.append.batch) + _HELD_OVERHEAD


_HELD_OVERHEAD = 1_024
"""Bytes charged for each batch in addition to its size: objects of the batch and its request."""
_LONGEST_MS = 2**31 - 1
"""`replica.lag.time.max.ms` bounds it."""


def _tell(done: AppendDone | None, result: Appended | Exception | None, _placed: Appended | Exception) -> None:
    if done is not None:
        assert result is not None
        tell(done, result, _HELD_BATCH)


class Replication:
    """The high watermark of one log.

    With `min.insync.replicas` 1, the default, it neither queries replicas nor holds batches.
    """

    __slots__ = (
        "_budget", "_copies", "_name", "_stream", "high_watermark_epoch", "high_watermark_known", "min_insync", "queue",
        "repeated",
    )  # fmt: skip

    def __init__(self, name: str, stream: str, copies: InSyncReplicas, budget: CacheBudget) -> None:
        self._name = name
        self._stream = stream
        self._copies = copies
        self._budget = budget
        self.min_insync = 1
        """Servers that must have a batch before it is readable (`min.insync.replicas`). Set by `want`."""
        self.high_watermark_known = True
        """Whether `log_end` is the high watermark, which may otherwise be higher.

        False after a recovery until enough replicas have the log's contents.
        """
        self.high_watermark_epoch = -1
        """Leader epoch of the known `log_end`."""
        self.queue: ReplicationQueue | None = None
        """Batches that wait for replicas, from the first that had to."""
        self.repeated = DuplicateWaiters()
        """Requests with a duplicate of a batch that Redis has not stored yet."""

    def want(self, copies: int, events: ReplicationEvents) -> None:
        """See `Partition.want_copies`."""
        self.min_insync = copies
        if self.queue is not None or copies > 1:
            self.made_queue().want(copies, events)

    def made_queue(self) -> ReplicationQueue:
        """Return the queue for all later batches, created if necessary."""
        if self.queue is None:
            self.queue = ReplicationQueue(self._copies, self._stream, self._budget, self.min_insync)
        return self.queue

    def high_watermark_at_opening(self, before: int, opened: OpenedLog) -> int:
        """Return the high watermark of a log just opened. `before` is the one known until now."""
        end = opened.next_offset
        if self.min_insync > 1:
            end = least_high_watermark(before, self.high_watermark_epoch, opened, opened.epochs)
        self.high_watermark_epoch = opened.epochs.rows[-1].epoch
        return end

    def hold_opened(self, end: int, events: ReplicationEvents) -> None:
        """As `ReplicationQueue.hold_opened`, if required."""
        self.high_watermark_known = self.min_insync == 1
        if not self.high_watermark_known:
            self.made_queue().hold_opened(end, events)

    def check(self, copies: int) -> None:
        """Raise NotEnoughReplicas if a batch that requires `copies` servers must be rejected."""
        check_room(self._budget)
        if copies > 1:
            check_replicas(self._copies, self._stream, copies)

    def repeat(self, end: int, placed: Appended, done: AppendDone, copies: int, wait_ms: int, log_end: int) -> None:
        """Complete a duplicate request once its batch, which ends before `end`, is stored and replicated."""
        if copies > 1 and wait_ms:
            # Readable batches may still lack replicas.
            done = done_with_copies(self._copies, self._stream, copies, wait_ms, done)
        self.repeated.add(end, placed, done)
        self.answer_repeated(log_end)

    def answer_repeated(self, log_end: int) -> None:
        """Complete duplicate requests with stored batches, in a log readable up to `log_end`."""
        queue = self.queue
        self.repeated.answer(queue.end if queue is not None and queue.holds else log_end)

    def fail(self, error: Exception, events: ReplicationEvents) -> None:
        """Fail all waiting requests: the log is in doubt or has another leader."""
        if self.queue is not None:
            self.queue.fail(error, events)
        self.repeated.fail(error)

    def check_end(self) -> None:
        """Raise NotLeader if the high watermark is not known yet."""
        if not self.high_watermark_known:
            raise high_watermark_unknown(self._name)

    async def settle(self) -> None:
        """Wait briefly until everything in Redis is readable. Raise StorageUnavailable if it is not."""
        queue = self.queue
        if queue is not None and queue.holds:
            await replicas_caught_up(self._copies, self._stream, self.min_insync)
            if queue.holds:
                raise StorageUnavailable(f"{self._name}: the replicas of Redis have not got all yet")


def least_high_watermark(end: int, epoch: int, log: LogLook | OpenedLog, epochs: LeaderEpochs) -> int:
    """Return the lowest possible high watermark of a log, given what readers may have seen.

    This server knew the high watermark `end`, with leader epoch `epoch`.
    """
    # Trimmed records were readable, too.
    return min(max(epochs.kept(end, epoch), log.log_start, log.high_watermark), log.next_offset)


def high_watermark_unknown(partition: str) -> NotLeader:
    """Return the error for an unknown high watermark (KIP-207).

    Some clients do not retry after OFFSET_NOT_AVAILABLE.
    """
    return NotLeader(f"{partition}: how far it can be read is known when its replicas have what is in it")
