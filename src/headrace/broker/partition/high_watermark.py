"""How far one log can be read where a topic's `min.insync.replicas` is above 1, and who waits for its copies."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.aio.tasks import tell
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.in_sync_replicas import check_replicas, check_room, done_with_copies, replicas_caught_up
from headrace.broker.ports import InSyncReplicas, LogLook
from headrace.topics.errors import NotLeader, StorageUnavailable
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Appended, Lost, OpenedLog

# Batches that came again before the first copy of them was acknowledged.
_BATCH = "a repeated batch"


class _Waiting(NamedTuple):
    end: int
    appended: Appended
    done: AppendDone


class DuplicateWaiters:
    """Those of one partition, in order."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        # Seldom more than a few, though a log whose storage is slow may have 100,000. An empty deque takes 700 bytes of
        # each partition.
        self.waiting: deque[_Waiting] | None = None
        """None: nobody waits."""

    def add(self, end: int, appended: Appended, done: AppendDone) -> None:
        """Tell `done` where the batch is, which ends before offset `end`, once storage has it."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(_Waiting(end, appended, done))

    def answer(self, stored_end: int) -> None:
        """Storage has everything before this offset."""
        # Whoever is told may have more added, answered, or all the others fail.
        while self.waiting and self.waiting[0].end <= stored_end:
            first = self.waiting.popleft()
            tell(first.done, first.appended, _BATCH)
        if not self.waiting:
            self.waiting = None

    def fail(self, error: Exception) -> None:
        """It is in doubt what storage has."""
        waiting, self.waiting = self.waiting or (), None
        for each in waiting:
            tell(each.done, error, _BATCH)


# What Redis has and may not be read yet: as in Kafka, the high watermark waits with it, for as long as it takes. What
# nobody can read yet, nobody can miss when a replica takes over that has not got it. The sender of a batch waits for
# `replica.lag.time.max.ms` at most.
_HELD_BATCH = "a batch that waits for copies"


class ReplicationEvents(NamedTuple):
    """What a log does with what its replication comes to know.

    Each call that may wait for copies is given them, and only the callbacks of that wait hold them.
    """

    placed: Callable[[Append, Appended, AppendDone, Exception | None], None]
    """Make a batch readable, then call its `AppendDone`; or call that with an error. Called in log order."""
    opened: Callable[[int], None]
    """Makes readable what was in the log when it was opened, up to an offset."""
    on_lost: Lost
    """Called if another primary may have taken over. The leader must recover the log."""


class _Held:
    """A batch that nobody can read yet, or all that was in the log when it was opened."""

    __slots__ = ("append", "done", "end", "overdue", "placed", "result")

    def __init__(self, append: Append | None, placed: Appended, end: int, done: AppendDone | None) -> None:
        self.append = append
        """None: what was in the log when it was opened."""
        self.placed = placed
        self.end = end
        """The offset behind it."""
        self.done = done
        """None: whoever appended it has been told."""
        self.overdue = append is None
        """Whether nobody waits for its copies any more but those who want to read it."""
        self.result: Appended | Exception | None = None
        """How it went; None: it is not known yet."""


class ReplicationQueue:
    """What waits in one log, in order: it lies between the high watermark and the offset that the next batch gets."""

    __slots__ = ("_asked", "_budget", "_copies", "_held", "_stream", "_wanted")

    def __init__(self, copies: InSyncReplicas, stream: str, budget: CacheBudget, wanted: int) -> None:
        """Hold nothing yet.

        Args:
            copies: waits for replicas.
            stream: the partition's.
            budget: of the batches that all partitions hold.
            wanted: how many servers are to have what can be read.
        """
        self._held: deque[_Held] = deque()
        self._copies = copies
        self._stream = stream
        self._budget = budget
        self._wanted = wanted
        self._asked: _Held | None = None
        """Up to which batch copies are waited for however long it takes."""

    @property
    def holds(self) -> bool:
        """Whether a batch waits: all that come behind it wait, too."""
        return bool(self._held)

    @property
    def end(self) -> int:
        """The offset behind what waits last."""
        return self._held[-1].end

    def want(self, copies: int, events: ReplicationEvents) -> None:
        """So many servers are to have what can be read from now on, what waits already included."""
        self._wanted = copies
        if copies == 1 and self._held:
            self._asked = None
            self._reached(self.end, events)
        elif self._asked is not None:
            self._asked = None
            self._ask_on(events)

    def hold_opened(self, end: int, events: ReplicationEvents) -> None:
        """The log was opened: what is in it, up to `end`, can be read when so many servers have it as are wanted."""
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
        """Redis has a batch, unless there is an error: it can be read when so many servers have it.

        Args:
            append: the batch.
            placed: where it is.
            done: told when so many servers have it, or time is over; or now, where `wait_ms` is 0.
            wanted: how many servers shall have it.
            wait_ms: how long `done` waits at most.
            error: why Redis has not got it.
            events: what comes of it.
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
            # Somebody else's copies came behind it, or the log was recovered again meanwhile.
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
        """Wait for the copies of all that is here: once for all of it, and however long it takes."""
        if self._asked is None and self._held:
            last = self._asked = self._held[-1]
            self._copies.confirm(self._stream, self._wanted, None, partial(self._have_come, last, self._wanted, events))

    def _have_come(self, last: _Held, wanted: int, events: ReplicationEvents, error: Exception | None) -> None:
        if self._asked is not last or wanted != self._wanted:
            # Asked once more since.
            return
        self._asked = None
        if isinstance(error, StorageUnavailable):
            self._doubted(error, events)
        elif error is None:
            self._reached(last.end, events)

    def _doubted(self, error: StorageUnavailable, events: ReplicationEvents) -> None:
        # A replica that takes over may lack it, so nobody reads it before an opening has told what there is.
        events.on_lost(error)
        # A log that is deleted, or in doubt already, tells nobody.
        self.fail(error, events)

    def _reached(self, end: int, events: ReplicationEvents) -> None:
        """There are enough copies of all up to an offset: what comes last was written last."""
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
        """The log is to be opened anew, or is another's: whoever opens it shows what is in it."""
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
"""Bytes charged for each batch beside its own: Python objects of the batch, and of whoever waits for it."""
_LONGEST_MS = 2**31 - 1
"""`replica.lag.time.max.ms` bounds it."""


def _tell(done: AppendDone | None, result: Appended | Exception | None, _placed: Appended | Exception) -> None:
    if done is not None:
        assert result is not None
        tell(done, result, _HELD_BATCH)


class Replication:
    """The high watermark of one log: which of its batches can be read, and who is told of them when.

    With one copy, which is the default, nothing is asked or held here.
    """

    __slots__ = (
        "_budget", "_copies", "_name", "_stream", "high_watermark_epoch", "high_watermark_known", "min_insync", "queue",
        "repeated",
    )  # fmt: skip

    def __init__(self, name: str, stream: str, copies: InSyncReplicas, budget: CacheBudget) -> None:
        """Want one copy.

        Args:
            name: the partition, for errors.
            stream: the Redis key of its stream.
            copies: waits for replicas.
            budget: of the batches that all partitions hold.
        """
        self._name = name
        self._stream = stream
        self._copies = copies
        self._budget = budget
        self.min_insync = 1
        """How many servers are to have what can be read (`min.insync.replicas`); `want` sets it."""
        self.high_watermark_known = True
        """Whether `log_end` is the high watermark; else this may be higher.

        Not after an opening, until what was in the log then is known to have its copies: till then `log_end` is only
        how far readers were shown the log before.
        """
        self.high_watermark_epoch = -1
        """The leader epoch by which `log_end` is known."""
        self.queue: ReplicationQueue | None = None
        """Batches that wait for copies, from the first on that had to."""
        self.repeated = DuplicateWaiters()
        """Who sent a batch again that Redis has not got yet."""

    def want(self, copies: int, events: ReplicationEvents) -> None:
        """So many servers are to have what can be read from now on (`min.insync.replicas`)."""
        self.min_insync = copies
        if self.queue is not None or copies > 1:
            self.made_queue().want(copies, events)

    def made_queue(self) -> ReplicationQueue:
        """The queue that all batches take that are placed from now on, in order."""
        if self.queue is None:
            self.queue = ReplicationQueue(self._copies, self._stream, self._budget, self.min_insync)
        return self.queue

    def high_watermark_at_opening(self, before: int, opened: OpenedLog) -> int:
        """How far a log can be read that was opened just now; `before`: the high watermark that was known here."""
        end = opened.next_offset
        if self.min_insync > 1:
            end = least_high_watermark(before, self.high_watermark_epoch, opened, opened.epochs)
        self.high_watermark_epoch = opened.epochs.rows[-1].epoch
        return end

    def hold_opened(self, end: int, events: ReplicationEvents) -> None:
        """What was in the log when it was opened, up to `end`, waits for its copies, if it has to."""
        self.high_watermark_known = self.min_insync == 1
        if not self.high_watermark_known:
            self.made_queue().hold_opened(end, events)

    def check(self, copies: int) -> None:
        """Raise NotEnoughReplicas where a batch cannot be taken whose sender waits for so many copies."""
        check_room(self._budget)
        if copies > 1:
            check_replicas(self._copies, self._stream, copies)

    def repeat(self, end: int, placed: Appended, done: AppendDone, copies: int, wait_ms: int, log_end: int) -> None:
        """Tell whoever sent a batch again, which ends before offset `end`, when it is stored and has its copies."""
        if copies > 1 and wait_ms:
            # What can be read may still lack copies.
            done = done_with_copies(self._copies, self._stream, copies, wait_ms, done)
        self.repeated.add(end, placed, done)
        self.answer_repeated(log_end)

    def answer_repeated(self, log_end: int) -> None:
        """Answer those whose batches Redis has by now, in a log that can be read up to `log_end`."""
        queue = self.queue
        self.repeated.answer(queue.end if queue is not None and queue.holds else log_end)

    def fail(self, error: Exception, events: ReplicationEvents) -> None:
        """Tell everybody who waits: the log is in doubt, or another's."""
        if self.queue is not None:
            self.queue.fail(error, events)
        self.repeated.fail(error)

    def check_end(self) -> None:
        """Raise NotLeader where it is not known yet how far the log can be read."""
        if not self.high_watermark_known:
            raise high_watermark_unknown(self._name)

    async def settle(self) -> None:
        """Wait for a moment until all that Redis has can be read. Raises StorageUnavailable where it cannot."""
        queue = self.queue
        if queue is not None and queue.holds:
            await replicas_caught_up(self._copies, self._stream, self.min_insync)
            if queue.holds:
                raise StorageUnavailable(f"{self._name}: the replicas of Redis have not got all yet")


def least_high_watermark(end: int, epoch: int, log: LogLook | OpenedLog, epochs: LeaderEpochs) -> int:
    """How far the high watermark of a log has come at least, so what readers may have been shown of it.

    Args:
        end: the high watermark that this server has known.
        epoch: the leader epoch that the log had then.
        log: as Redis has it.
        epochs: its leader epochs.
    """
    # What was trimmed was shown, too.
    return min(max(epochs.kept(end, epoch), log.log_start, log.high_watermark), log.next_offset)


def high_watermark_unknown(partition: str) -> NotLeader:
    """Said to those who ask how far a partition can be read, before its copies have told (KIP-207).

    Not OFFSET_NOT_AVAILABLE: not every client takes that for a reason to ask again.
    """
    return NotLeader(f"{partition}: how far it can be read is known when its replicas have what is in it")
