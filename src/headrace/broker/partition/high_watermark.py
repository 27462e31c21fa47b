"""How far one log can be read where a topic's `min.insync.replicas` is above 1, and who waits for its copies."""

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

from headrace.aio.callbacks import tell
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.partition import Watchers
from headrace.broker.partition.reader import LogReader
from headrace.broker.partition.replication_queue import ReplicationQueue
from headrace.broker.ports import Copies, LogLook
from headrace.topics.config import MIN_INSYNC, TopicConfig
from headrace.topics.errors import (
    InvalidConfig,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    StorageUnavailable,
)
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Appended, OpenedLog, PlaceDone

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


_READER_MS = 500
"""How long a reader waits for copies before it is shown what is known to have them."""


class ReplicatedLog(Protocol):
    """A log whose copies are waited for."""

    topic: str
    index: int
    stream: str
    log_end: int

    @property
    def is_leader(self) -> bool:
        """Whether it is open here."""

    def finish_append(self, append: Append, placed: Appended, done: AppendDone, error: Exception | None) -> None:
        """Make a batch readable and tell whoever appended it; or only tell of an error."""

    def lost(self, error: Exception) -> None:
        """The primary may be another one by now: the log is to be opened anew."""

    def save_soon(self) -> None:
        """Have its high watermark written down within a second."""


class Replication:
    """The high watermark of one log: which of its batches can be read, and who is told of them when.

    With one copy, which is the default, nothing is asked or held here.
    """

    __slots__ = (
        "_budget", "_copies", "_log", "_reader", "_watchers", "high_watermark_epoch", "high_watermark_known",
        "min_insync", "queue", "repeated",
    )  # fmt: skip

    def __init__(
        self, log: ReplicatedLog, copies: Copies, budget: CacheBudget, reader: LogReader, watchers: Watchers
    ) -> None:
        """Want one copy.

        Args:
            log: the log.
            copies: waits for replicas.
            budget: of the batches that all partitions hold.
            reader: reads the log, up to where that is allowed.
            watchers: those who wait for more of it.
        """
        self._log = log
        self._copies = copies
        self._budget = budget
        self._reader = reader
        self._watchers = watchers
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

    def want(self, copies: int) -> None:
        """So many servers are to have what can be read from now on (`min.insync.replicas`)."""
        if copies != self.min_insync:
            self.min_insync = copies
            if self.queue is not None or copies > 1:
                self._made_queue().want(copies)
            self._log.save_soon()

    def _made_queue(self) -> ReplicationQueue:
        if self.queue is None:
            log = self._log
            self.queue = ReplicationQueue(
                self._copies, log.stream, self._budget, log.finish_append, self._show_opened, log.lost
            )
            self.queue.want(self.min_insync)
        return self.queue

    def high_watermark_at_opening(self, before: int, opened: OpenedLog) -> int:
        """How far a log can be read that was opened just now; `before`: the high watermark that was known here."""
        end = opened.next_offset
        if self.min_insync > 1:
            end = least_high_watermark(before, self.high_watermark_epoch, opened, opened.epochs)
            # Whoever opens it next is to know.
            self._log.save_soon()
        self.high_watermark_epoch = opened.epochs.rows[-1].epoch
        return end

    def hold_opened(self, end: int) -> None:
        """What was in the log when it was opened, up to `end`, waits for its copies, if it has to."""
        self.high_watermark_known = self.min_insync == 1
        if not self.high_watermark_known:
            self._made_queue().hold_opened(end)

    def _show_opened(self, end: int) -> None:
        """What was in the log when it was opened, up to `end`, has its copies."""
        log = self._log
        self.high_watermark_known = True
        if end != log.log_end:
            log.log_end = end
            self._reader.clear(end)
            log.save_soon()
        self._watchers.tell(0)

    def learn_high_watermark(self, end: int, epoch: int) -> None:
        """All up to an offset was seen to have its copies, by this leader epoch, in a log that is not led here."""
        if not self._log.is_leader:
            self._log.log_end, self.high_watermark_epoch = end, epoch

    def check(self, copies: int) -> None:
        """Raise NotEnoughReplicas where a batch cannot be taken whose sender waits for so many copies."""
        check_room(self._budget)
        if copies > 1:
            check_replicas(self._copies, self._log.stream, copies)

    def holding(self, append: Append, placed: Appended, done: AppendDone, copies: int, wait_ms: int) -> PlaceDone:
        """What takes in a batch when Redis has answered; all that are placed from now on go that way, in order."""
        self._made_queue()
        return partial(self._hold, append, placed, done, copies, wait_ms)

    def _hold(
        self, append: Append, placed: Appended, done: AppendDone, copies: int, wait_ms: int, error: Exception | None
    ) -> None:
        self._made_queue().hold(append, placed, done, copies, wait_ms, error)
        self.answer_repeated()

    def repeat(self, end: int, placed: Appended, done: AppendDone, copies: int, wait_ms: int) -> None:
        """Tell whoever sent a batch again, which ends before offset `end`, when it is stored and has its copies."""
        if copies > 1 and wait_ms:
            # What can be read may still lack copies.
            done = done_with_copies(self._copies, self._log.stream, copies, wait_ms, done)
        self.repeated.add(end, placed, done)
        self.answer_repeated()

    def answer_repeated(self) -> None:
        """Answer those whose batches Redis has by now."""
        queue = self.queue
        self.repeated.answer(queue.end if queue is not None and queue.holds else self._log.log_end)

    def fail(self, error: Exception) -> None:
        """Tell everybody who waits: the log is in doubt, or another's."""
        if self.queue is not None:
            self.queue.fail(error)
        self.repeated.fail(error)

    def end(self, ended: ReplicatedLog, error: Exception) -> None:
        """Tell everybody who waits, and forget the log: what is under way ends with what is left of it."""
        self.fail(error)
        self._log, self.queue = ended, None

    def check_end(self) -> None:
        """Raise NotLeader where it is not known yet how far the log can be read."""
        if not self.high_watermark_known:
            raise high_watermark_unknown(f"{self._log.topic}-{self._log.index}")

    async def settle(self) -> None:
        """Wait for a moment until all that Redis has can be read. Raises StorageUnavailable where it cannot."""
        queue = self.queue
        if queue is not None and queue.holds:
            await copies_have_come(self._copies, self._log.stream, self.min_insync)
            if queue.holds:
                raise StorageUnavailable(
                    f"{self._log.topic}-{self._log.index}: the replicas of Redis have not got all yet"
                )


def check_attainable(
    copies: Copies, config: Mapping[str, str], resolved: TopicConfig, before: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidConfig where a topic's own configuration asks for copies that there can never be.

    `before`: the configuration that it has; what does not change is not asked about.
    """
    wanted = resolved.min_insync_replicas
    asked = config.get(MIN_INSYNC) != (before or {}).get(MIN_INSYNC)
    if asked and wanted > 1 and not copies.can_replicate:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted}: the embedded Valkey has no replicas, so 1 is all there is; "
            "start the server over a Redis with replicas (--redis URL)"
        )


def check_replicas(copies: Copies, stream: str, wanted: int) -> None:
    """Raise NotEnoughReplicas where it is known that too few servers would have what is appended."""
    why = copies.why_too_few(stream, wanted)
    if why:
        raise NotEnoughReplicas(why)


def check_room(budget: CacheBudget) -> None:
    """Raise NotEnoughReplicas where as many batches as there is memory for wait for replicas already.

    Also for those who do not wait themselves and those whose clients are gone: what they sent is held all the same.
    """
    if budget.held >= budget.most_held:
        raise NotEnoughReplicas(f"{budget.held} bytes of batches wait for the replicas of Redis, which lag behind")


def done_with_copies(copies: Copies, stream: str, wanted: int, wait_ms: int, done: AppendDone) -> AppendDone:
    """Tells `done` of a batch that is there once so many servers have it, and of an error at once.

    Use it before the batch is sent: a primary that was promoted meanwhile would answer for replicas of its own.
    """
    primary = copies.primary(stream)

    def placed(result: Appended | Exception) -> None:
        if isinstance(result, Exception):
            done(result)
        elif copies.primary(stream) != primary:
            done(StorageUnavailable("another primary may have taken over since the records were acknowledged"))
        else:
            copies.confirm(stream, wanted, wait_ms, lambda error: done(error or result))

    return placed


async def copies_have_come(copies: Copies, stream: str, wanted: int) -> bool:
    """Whether so many servers have all that a stream's primary has; waits for it for a moment.

    Raises:
        StorageUnavailable: another primary may have taken over meanwhile.
    """
    if copies.why_too_few(stream, wanted):
        return False
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not told.done():
            told.set_result(error)

    copies.confirm(stream, wanted, _READER_MS, done)
    error = await told
    if isinstance(error, NotEnoughReplicasAfterAppend):
        return False
    if error is not None:
        raise error
    return True


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
