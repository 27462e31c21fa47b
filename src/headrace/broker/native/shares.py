"""One partition of a share group on a native topic: the Redis consumer group of the group's name.

Redis decides which member has which entries, so nothing is stored here. A lock ends by Redis' clock without a
notification. Locks of Redis programs and of other brokers are looked for once a second.
"""

from collections import deque
from collections.abc import Callable, Sequence

from headrace.aio.tasks import log_unhandled, to_the_end
from headrace.broker.native.partition import NativePartition
from headrace.broker.runtime.budget import NeedsRoom
from headrace.broker.runtime.clock import Clock, Timer
from headrace.groups.configs import GroupConfig, ResetStrategy
from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.native import (
    RELEASED,
    Acknowledgement,
    Delivered,
    GroupGone,
    Limits,
    Outcome,
    SharePosition,
    ShareRead,
)

_POLL_MS = 1_000
_APART_MS = 20
"""Locks that end within this time are searched together."""
_LATER_MS = 2
"""Redis rounds its clock."""

Waiter = Callable[[], None]


class NativeShare:
    """A native partition for one share group."""

    def __init__(self, group: str, partition: NativePartition, config: Callable[[], GroupConfig], clock: Clock) -> None:
        self.group = group
        self.partition = partition
        self._config = config
        self._clock = clock
        self._ends: deque[int] = deque()
        """When locks of entries that were acquired here end (ticks), in order."""
        self._search_ms = clock.ticks_ms()
        """When to look for other ended locks (ticks)."""
        self._pending = 0
        self._full = False
        """Whether the window left no room at the last read."""
        self._waiters: set[Waiter] = set()
        self._timer: Timer | None = None

    @property
    def _limits(self) -> Limits:
        config = self._config()
        return Limits(
            config.share_record_lock_duration_ms,
            config.share_delivery_count_limit,
            config.share_partition_max_record_locks,
        )

    async def acquire(self, member: str, count: int, limit: int, first: int | None = None) -> ShareRead:
        """Acquire at most `count` records of about `limit` bytes, at least one if any is available.

        Raises TopicError, and NeedsRoom if the first record exceeds `first` bytes and was not acquired.
        """
        # The client may disconnect. Then the end of its session releases what is acquired here.
        return await to_the_end(self._acquire(member, count, limit, LARGEST_ENTRY if first is None else first))

    async def _acquire(self, member: str, count: int, limit: int, first: int) -> ShareRead:
        self.partition.check_readable(0)
        if member == RELEASED:
            return _NOTHING
        limits, began = self._limits, self._clock.ticks_ms()
        search = self._due_ms() <= began
        if search:
            self._searched(began)
        read = await self.partition.storage.shares.acquire(
            self.partition.place,
            self.group,
            member,
            limits,
            count,
            limit,
            create_at=self._create_at(),
            first=first,
            expired=search,
        )
        self.partition.report(read)
        self._pending, self._full = read.pending, read.pending >= limits.window
        if search and read.more:
            # The rest of the ended locks is next.
            self._search_ms = began
        if read.acquired:
            self._lock_ends(limits.lock_ms)
        self._arm()
        if read.wants:
            raise NeedsRoom(read.wants)
        return read

    def _create_at(self) -> int | None:
        reset = self._config().share_auto_offset_reset
        match reset.strategy:
            case ResetStrategy.LATEST:
                return None
            case ResetStrategy.EARLIEST:
                return 0
            case ResetStrategy.BY_DURATION:
                return max(0, self._clock.now_ms() - reset.duration_ms) << self.partition.place.bits

    async def acknowledge(self, member: str, given: Sequence[Acknowledgement]) -> list[Delivered] | None:
        """See `NativeShares.acknowledge`. Raises TopicError: the outcome is unknown."""
        self.partition.check_readable(0)
        if member == RELEASED:
            return None
        limits = self._limits
        shares = self.partition.storage.shares
        try:
            spent = await to_the_end(shares.acknowledge(self.partition.place, self.group, member, limits, tuple(given)))
        except GroupGone:
            # A program destroyed it, or the topic's stream is lost.
            return None
        if spent is None:
            return None
        outcomes = {each.outcome for each in given}
        if Outcome.RENEW in outcomes:
            self._lock_ends(limits.lock_ms)
        if Outcome.RELEASE in outcomes or (self._full and Outcome.DONE in outcomes):
            self._wake()
        return spent

    async def release(self, member: str) -> list[Delivered]:
        """Release everything that a member has, as its session ends. See `NativeShares`. Raises TopicError."""
        if member == RELEASED or self.partition.deleted:
            return []
        shares = self.partition.storage.shares
        spent = await to_the_end(shares.release(self.partition.place, self.group, member, self._limits))
        self._wake()
        return spent

    async def begin(self) -> None:
        """Let the group begin where its configuration says, unless it exists. Raises TopicError."""
        self.partition.check_readable(0)
        await self.partition.storage.shares.begin(self.partition.place, self.group, self._create_at())

    async def alter(self, offset: int) -> None:
        """See `NativeShares`. Raises TopicError."""
        self.partition.check_readable(offset)
        await to_the_end(self.partition.storage.shares.alter(self.partition.place, self.group, offset))
        self._wake()

    async def describe(self) -> SharePosition | None:
        """See `NativeShares`. Raises TopicError."""
        self.partition.check_readable(0)
        return await self.partition.storage.shares.describe(self.partition.place, self.group)

    async def delete(self) -> bool:
        """See `NativeShares`. Raises TopicError."""
        self.partition.check_readable(0)
        return await to_the_end(self.partition.storage.shares.delete(self.partition.place, self.group))

    # Waiting requests

    def watch(self, waiter: Waiter) -> None:
        """Call `waiter` whenever records may be available, or the topic is deleted. Begin before the last `acquire`."""
        if not self._waiters:
            self.partition.watch(self._grown)
        self._waiters.add(waiter)
        self._arm()

    def unwatch(self, waiter: Waiter) -> None:
        """Stop calling `waiter`."""
        self._waiters.discard(waiter)
        if not self._waiters:
            self.close()

    def close(self) -> None:
        """Stop watching the partition."""
        self._waiters.clear()
        self.partition.unwatch(self._grown)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _grown(self, _size: int) -> None:
        self._wake()

    def _wake(self) -> None:
        for waiter in tuple(self._waiters):
            try:
                waiter()
            except Exception:
                # An error must not affect other members.
                log_unhandled("a share fetch that waits")

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiters and self._pending:
            due = max(self._due_ms(), self._clock.ticks_ms() + _APART_MS)
            self._timer = self._clock.call_at(due, self._fired)

    def _fired(self) -> None:
        self._timer = None
        self._wake()
        self._arm()


_NOTHING = ShareRead(batches=[], acquired=[], spent=[], unfit=(), pending=0, more=False)
