"""One partition of a native topic in one share group: the Redis consumer group of the group's name.

Redis decides which member has which records, so nothing is loaded or stored here. A lock ends by the clock of Redis,
without a notification. A broker searches once a second for ended locks of Redis programs and of other brokers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.native.dead_letters import NativeDeadLetters
from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Watchers
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.sharing.share import ShareFound, log_given_up
from headrace.groups.configs import GroupConfig, ResetStrategy
from headrace.groups.sharing.partition import AckBatch, AcknowledgeType, AckProblem, Acquired, are_valid, equal_types
from headrace.metrics.counters import ShareCounters
from headrace.topics.errors import TopicError, UnknownTopic
from headrace.topics.native import (
    DEAD,
    RELEASED,
    Acknowledgement,
    Delivered,
    GroupGone,
    Limits,
    Outcome,
    SharePosition,
    ShareRead,
)

_LEAST_READ = 1 << 20
"""Bytes of a first record that every fetch has room for."""
_MOST_HELD = 10_000
"""Records that a member has at most, by the largest `share.partition.max.record.locks`."""
_LONGEST_ID = 255
"""Maximum bytes of a member ID, which is a consumer's name in Redis. Clients use 22 to 36."""
_POLL_MS = 1_000
_APART_MS = 20
"""Locks that end within this time are searched together."""
_LATER_MS = 2
"""Redis rounds its clock."""
_RELEASED = bytes((AcknowledgeType.RELEASE.value,))
_OUTCOMES = {
    AcknowledgeType.GAP.value: Outcome.GAP,
    AcknowledgeType.ACCEPT.value: Outcome.DONE,
    AcknowledgeType.RELEASE.value: Outcome.RELEASE,
    AcknowledgeType.REJECT.value: Outcome.REJECT,
    AcknowledgeType.RENEW.value: Outcome.RENEW,
}
_log = structlog.get_logger("headrace.broker.native")


class NativeShare:
    """A native partition for one share group, as `sharing.share.Share`."""

    isolation: Isolation = UNCOMMITTED
    is_ready = True

    def __init__(
        self,
        group: str,
        partition: NativePartition,
        config: Callable[[], GroupConfig],
        clock: Clock,
        large_reads: ReadBudget,
        dead_letters: DeadLetterTopics,
        counters: ShareCounters | None = None,
    ) -> None:
        self.group = group
        self.log = partition
        self.watchers = Watchers()
        """Called with 1 when records may be available, and with 0 when the partition is closed."""
        self._config = config
        self._clock = clock
        self._large_reads = large_reads
        self._counters = counters or ShareCounters()
        self._ends: deque[int] = deque()
        """When locks of records that were acquired here end (ticks), in order."""
        self._search_ms = clock.ticks_ms()
        """When to look for other ended locks (ticks)."""
        self._pending = 0
        self._full = False
        """Whether the window left no room at the last read."""
        self._news = True
        """Whether something has happened since a read found nothing."""
        self._timer: Timer | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._retired: Callable[[], None] | None = None
        self._letters = NativeDeadLetters(group, partition, dead_letters, config, clock, large_reads, self._copied)
        self._unsure = True
        """Whether Redis may have dead letters that are not known here: of another server, or by a lost response."""
        partition.watch(self._grown)

    async def ready(self) -> None:
        """Raise UnknownTopic if the topic is deleted."""
        self.log.check_readable(0)

    def retire(self, done: Callable[[], None]) -> None:
        """Call `done` when everything is released, and dead letters are copied or cannot be.

        It may close the partition.
        """
        self._retired = done
        self._retire()

    def _retire(self) -> None:
        if self._retired is not None and not self._releases and not self._letters.busy:
            retired, self._retired = self._retired, None
            retired()

    def close(self) -> None:
        """Stop watching the partition."""
        self.log.unwatch(self._grown)
        self._letters.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watchers.notify(0)

    # Records for members

    @property
    def lock_ms(self) -> int:
        """Duration of a lock."""
        return self._config().share_record_lock_duration_ms

    def _limits(self) -> Limits:
        config = self._config()
        return Limits(
            self.lock_ms,
            config.share_delivery_count_limit,
            config.share_partition_max_record_locks,
            bool(config.dead_letter_topic),
        )

    def has_some(self) -> bool:
        """Whether a fetch would find records, by the state in memory."""
        return self._news or self._due_ms() <= self._clock.ticks_ms()

    async def fetch(self, member: str, most_records: int, most_bytes: int, *, exact: bool) -> ShareFound:
        """Acquire records of about `most_bytes`, at least one if any is available. Raises TopicError.

        `most_records` is always strict: each record is an entry.
        """
        del exact
        self.log.check_readable(0)
        if not _is_member(member) or most_records < 1:
            return ShareFound()
        # The client may disconnect. Then the end of its session releases what is acquired here.
        read = await to_the_end(self._acquire(member, most_records, most_bytes, max(most_bytes, _LEAST_READ)))
        if read.wants:
            async with self._large_reads.held(read.wants):
                read = await to_the_end(self._acquire(member, 1, read.wants, read.wants))
        chunks: list[Buffer] = [each.batch for each in read.batches]
        acquired = [Acquired(*each) for each in read.acquired]
        # Records that are not served, or a larger one since, may hide others.
        return ShareFound(chunks, sum(map(len, chunks)), acquired, not acquired and (read.more or read.wants > 0))

    async def _acquire(self, member: str, count: int, limit: int, first: int) -> ShareRead:
        limits, began = self._limits(), self._clock.ticks_ms()
        search = self._due_ms() <= began
        if search:
            self._searched(began)
        self._news = False
        try:
            read = await self.log.storage.shares.acquire(
                self.log.place,
                self.group,
                member,
                limits,
                count,
                limit,
                create_at=_begin(self._config(), self.log, self._clock),
                first=first,
                expired=search,
            )
        except TopicError:
            self._news = self._unsure = True
            raise
        self._look(read.spent)
        self.log.report(read)
        self._pending, self._full = read.pending, read.pending >= limits.window
        if read.more or read.wants:
            self._news = True
            if search:
                # The rest of the ended locks is next.
                self._search_ms = began
        for each in read.acquired:
            length = each.last - each.first + 1
            self._counters.acquired += length
            if each.deliveries > 1:
                self._counters.redelivered += length
        if read.acquired:
            self._lock_ends(limits.lock_ms)
        self._arm()
        return read

    # Decisions

    async def acknowledge(
        self, member: str, batches: Sequence[AckBatch], *, renewing: bool
    ) -> AckProblem | Exception | None:
        """Apply a member's list of acknowledgements, and return once it counts, or why none of it does.

        `renewing`: whether it may renew locks.
        """
        # Single types for more records than a member may have are costly.
        if not _is_member(member) or sum(len(batch.types) for batch in batches) > _MOST_HELD:
            return AckProblem.INVALID_RECORD_STATE
        if not are_valid(batches, renewing=renewing and self._config().share_renew_acknowledge_enable):
            return AckProblem.INVALID_REQUEST
        given = [
            Acknowledgement(first, last, _OUTCOMES[kind])
            for batch in batches
            for first, last, kind in equal_types(batch, batch.first, batch.last)
        ]
        limits = self._limits()
        try:
            self.log.check_readable(0)
            shares = self.log.storage.shares
            spent = await to_the_end(shares.acknowledge(self.log.place, self.group, member, limits, given))
        except GroupGone:
            # A program destroyed it, or the stream is lost.
            return AckProblem.INVALID_RECORD_STATE
        except TopicError as error:
            self._unsure = True
            return error
        if spent is None:
            return AckProblem.INVALID_RECORD_STATE
        outcomes = {each.outcome for each in given}
        self._look(spent, rejects=Outcome.REJECT in outcomes)
        if Outcome.RENEW in outcomes:
            self._lock_ends(limits.lock_ms)
        if Outcome.RELEASE in outcomes or (self._full and outcomes != {Outcome.RENEW}):
            self._wake()
        return None

    async def give_back(self, member: str, acquired: Sequence[Acquired]) -> None:
        """See `Share`. Redis counts the deliveries."""
        given = [AckBatch(each.first, each.last, _RELEASED) for each in acquired]
        await self.acknowledge(member, given, renewing=False)

    def release(self, member: str) -> None:
        """Release all records of a member."""
        if _is_member(member) and not self.log.deleted:
            task = asyncio.get_running_loop().create_task(self._release(member))
            self._releases.add(task)
            task.add_done_callback(self._released)

    async def _release(self, member: str) -> None:
        try:
            self._look(await self.log.storage.shares.release(self.log.place, self.group, member, self._limits()))
        except TopicError as error:
            self._unsure = True
            # The locks will end.
            _log.warning("records not released", group=self.group, stream=self.log.stream, reason=str(error))
        self._wake()

    def _released(self, task: "asyncio.Task[None]") -> None:
        self._releases.discard(task)
        self._retire()

    # Dead letters

    def _look(self, spent: Sequence[Delivered], *, rejects: bool = False) -> None:
        """Count what reached the delivery limit. Copy dead letters, if there may be some."""
        count = sum(each.last - each.first + 1 for each in spent)
        if count:
            self._counters.given_up += count
            log_given_up(self.group, self.log, count, self._config())
        if self._unsure or ((spent or rejects) and self._config().dead_letter_topic):
            self._unsure = False
            self._letters.look()

    def _copied(self) -> None:
        if self._full:
            self._wake()
        self._retire()

    # Waiting members

    def _grown(self, _size: int) -> None:
        # Members watch the partition as well.
        self._news = True

    def _wake(self) -> None:
        self._news = True
        self.watchers.notify(1)

    def _lock_ends(self, lock_ms: int) -> None:
        end = self._clock.ticks_ms() + lock_ms + _LATER_MS
        end += -end % _APART_MS
        # After the lock became shorter, the polls find the end of longer ones.
        while self._ends and self._ends[-1] >= end:
            self._ends.pop()
        self._ends.append(end)

    def _due_ms(self) -> int:
        return min(self._search_ms, self._ends[0]) if self._ends else self._search_ms

    def _searched(self, now: int) -> None:
        self._search_ms = now + _POLL_MS
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()

    def _arm(self) -> None:
        if self._timer is None and self._pending:
            self._timer = self._clock.call_at(max(self._due_ms(), self._clock.ticks_ms() + _APART_MS), self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._due_ms() <= self._clock.ticks_ms():
            # The next read arms it again.
            self._wake()
        else:
            self._arm()


class StreamShares:
    """Share groups on native topics; implements `NativeShareGroups`."""

    def __init__(self, clock: Clock, large_reads: ReadBudget, dead_letters: DeadLetterTopics) -> None:
        self._clock = clock
        self._large_reads = large_reads
        self._dead_letters = dead_letters

    def open(
        self, group: str, partition: Partition, config: Callable[[], GroupConfig], counters: ShareCounters
    ) -> NativeShare:
        """See `NativeShareGroups`."""
        return NativeShare(
            group, _native(partition), config, self._clock, self._large_reads, self._dead_letters, counters
        )

    async def begin(self, group: str, partition: Partition, config: GroupConfig, offset: int | None) -> None:
        """See `NativeShareGroups`."""
        log = _native(partition)
        log.check_readable(0)
        shares = log.storage.shares
        if offset is None:
            await to_the_end(shares.begin(log.place, group, _begin(config, log, self._clock)))
        else:
            await to_the_end(shares.alter(log.place, group, offset))

    async def drop(self, group: str, partition: Partition) -> None:
        """See `NativeShareGroups`."""
        log = _native(partition)
        await to_the_end(log.storage.shares.delete(log.place, group))

    async def position(self, group: str, partition: Partition) -> SharePosition | None:
        """See `NativeShareGroups`."""
        log = _native(partition)
        log.check_readable(0)
        return await log.storage.shares.describe(log.place, group)


def _is_member(member: str) -> bool:
    return member not in {RELEASED, DEAD} and len(member.encode()) <= _LONGEST_ID


def _native(partition: Partition) -> NativePartition:
    """Return a partition that Redis stores. Raises UnknownTopic for one of an internal topic, which has no records."""
    if not isinstance(partition, NativePartition):
        raise UnknownTopic(f"topic {partition.topic!r} has no records that a group could share")
    return partition


def _begin(config: GroupConfig, log: NativePartition, clock: Clock) -> int | None:
    """Return where a group begins. None: at the log end."""
    reset = config.share_auto_offset_reset
    match reset.strategy:
        case ResetStrategy.LATEST:
            return None
        case ResetStrategy.EARLIEST:
            return 0
        case ResetStrategy.BY_DURATION:
            return max(0, clock.now_ms() - reset.duration_ms) << log.place.bits
