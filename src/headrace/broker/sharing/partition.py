"""One partition of a log in one share group: records for members, their acknowledgements, and the stored state.

A decision counts after it is stored: see `headrace.groups.sharing.partition`. One write is in flight, and the next one
contains all decisions during it. Locks use the clock that pauses with this process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from headrace.aio.single_flight import SingleFlight
from headrace.broker.partition.cache import Buffer, producers_of, span_of
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.read import aborted_transactions
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED, Isolation, Watchers, aborted_are_known
from headrace.broker.ports import ShareStorage
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.sharing.dead_letters import DeadLetterCopies, DeadLetterTopics
from headrace.broker.sharing.share import ShareFound, log_given_up
from headrace.groups.configs import GroupConfig
from headrace.groups.sharing.partition import AckBatch, AckProblem, Acquired, SharePartition, ShareSettings
from headrace.groups.sharing.runs import Run
from headrace.groups.sharing.state import NOT_BEGUN, RecordState, ShareState
from headrace.metrics.counters import ShareCounters
from headrace.topics.committed_batches import HiddenBatches, is_control, is_transactional
from headrace.topics.errors import Fenced, NotLeader, StorageUnavailable, TopicError, UnknownTopic

_AGAIN_MS = 1_000
"""Delay before a refused write that no client retries, such as the end of a lock, is repeated."""
_MOST_PASSES = 16
"""Reads of one fetch that find only batches without records for members, such as markers of transactions."""
_NOTHING = HiddenBatches(())
_log = structlog.get_logger("headrace.broker.sharing")


class ShareLog:
    """A share partition of a log that this broker leads."""

    def __init__(
        self,
        group: str,
        log: LeaderPartition,
        storage: ShareStorage,
        config: Callable[[], GroupConfig],
        clock: Clock,
        begin: Callable[[LeaderPartition, GroupConfig], Awaitable[int]],
        dead_letters: DeadLetterTopics,
        counters: ShareCounters | None = None,
    ) -> None:
        """Create it; `ready` loads it.

        `config` returns the group's configuration. `begin` resolves `share.auto.offset.reset`.
        """
        self.group = group
        self.log = log
        self.watchers = Watchers()
        """Called with 1 when records may be available, and with 0 when the partition is closed."""
        self._storage = storage
        self._config = config
        self._clock = clock
        self._begin = begin
        self._counters = counters or ShareCounters()
        self._core: SharePartition | None = None
        self._settings = ShareSettings()
        self._leader_epoch = -1
        """Leader epoch of the log for which the state was loaded."""
        self._term = 0
        """Term of the leader, which fences its writes."""
        self._loading: SingleFlight[None, None] = SingleFlight(lambda _: self._load(), joins=True)
        self._reading = False
        self._retry: Timer | None = None
        """Wakes members after a read that failed."""
        self._waiting: list[asyncio.Future[Exception | None]] = []
        """Acknowledgements for the next write."""
        self._writing: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._retired: Callable[[], None] | None = None
        self._closed = False
        self._letters = DeadLetterCopies(group, log, dead_letters, config, clock, self._copied)

    # Life

    @property
    def is_ready(self) -> bool:
        """Whether the state is loaded, and this broker still leads the log."""
        return self._core is not None and self._leader_epoch == self.log.leader_epoch and self.log.is_leader

    async def ready(self) -> None:
        """Load the state if needed.

        Raises:
            NotLeader: this broker does not lead the log. UnknownTopic: the group has no state here, or it is closed.
            StorageUnavailable: it cannot be loaded now.
        """
        self.log.check_led()
        self._check_open()
        if not self.is_ready:
            await self._loading.get(None)
            if not self.is_ready:
                raise NotLeader(f"another broker leads {self.log.topic}-{self.log.index}")

    async def _load(self) -> None:
        if self.is_ready:
            return
        self._forget(NotLeader("the leader has changed"))
        log, leader_epoch = self.log, self.log.leader_epoch
        term, state = await self._storage.load(log.stream, self.group)
        if state is None:
            raise UnknownTopic(
                f"group {self.group!r} has no state in {log.topic}-{log.index}: no member has been assigned it"
            )
        if state.spso == NOT_BEGUN:
            log.check_led()
            state = ShareState(state.epoch, await self._begin(log, self._config()))
            self._check_open()
            if not await self._storage.save(log.stream, self.group, term, state, log.replication.min_insync):
                raise StorageUnavailable("the offset of the share group was altered in the meantime: try again")
        # Another one may have been opened since: both would give the same records to members.
        self._check_open()
        if log.leader_epoch != leader_epoch:
            raise NotLeader(f"the leader epoch of {log.topic}-{log.index} has changed")
        self._settings = self._wanted_settings()
        self._leader_epoch, self._term = leader_epoch, term
        self._core = SharePartition(state, self._settings)
        # A leader may have ended during the last delivery of a record, or before the copy of a dead letter.
        self._write_soon()
        self._letters.look(self._core)

    def retire(self, done: Callable[[], None]) -> None:
        """Call `done` when all decisions are stored, and dead letters are copied or cannot be.

        It may close the partition.
        """
        self._retired = done
        self._retire()

    def _retire(self) -> None:
        copying = self._letters.waiting and not self._letters.failing
        if self._retired is not None and self._writing is None and not copying:
            retired, self._retired = self._retired, None
            retired()

    def close(self) -> None:
        """Close permanently: the last session of the group has ended, or the topic was deleted or recreated."""
        self._closed = True
        self._forget(self._over())
        self.watchers.notify(0)

    def _check_open(self) -> None:
        if self._closed:
            raise self._over()

    def _over(self) -> UnknownTopic:
        return UnknownTopic(f"{self.log.topic}-{self.log.index} is closed")

    def _forget(self, error: TopicError) -> None:
        self._core = None
        self._leader_epoch = -1
        self._letters.close()
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None
        self._answer(self._waiting, error)
        self._waiting = []

    # Records for members

    @property
    def isolation(self) -> Isolation:
        """Isolation level of the group's members (`share.isolation.level`)."""
        return COMMITTED if self._config().share_read_committed else UNCOMMITTED

    @property
    def lock_ms(self) -> int:
        """Duration of a lock."""
        return self._config().share_record_lock_duration_ms

    def runs(self) -> tuple[Run, ...]:
        """Return the states of all records in flight. Empty until a member has fetched."""
        return () if self._core is None else tuple(self._core.runs)

    @property
    def start(self) -> int:
        """First offset that is not done (SPSO). Call it only if `is_ready`."""
        assert self._core is not None
        return max(self._core.spso, self.log.log_start)

    @property
    def lag(self) -> int:
        """Number of records that are not done. Call it only if `is_ready`."""
        start = self.start
        rest = [run for run in self.runs() if run.state is RecordState.DONE and run.last >= start]
        done = sum(run.last + 1 - max(run.first, start) for run in rest)
        return max(0, self.log.visible_end(UNCOMMITTED) - start - done)

    def has_some(self) -> bool:
        """Whether a fetch would find records, by the state in memory."""
        core = self._current()
        if core is None or self._reading:
            return False
        wanted = core.wanted()
        return wanted is not None and not self.log.at_end(wanted.first, self.isolation)

    async def fetch(self, member: str, most_records: int, most_bytes: int, *, exact: bool) -> ShareFound:
        """Acquire available records for a member: whole batches of about `most_bytes`.

        Stops before the batch that would exceed `most_records`, or exactly there (`exact`). Finds nothing while another
        fetch reads the log.

        Raises:
            TopicError: the log cannot be read.
        """
        for _ in range(_MOST_PASSES):
            core = self._current()
            wanted = None if core is None or self._reading else core.wanted()
            if core is None or wanted is None or self.log.at_end(wanted.first, self.isolation):
                return ShareFound()
            batches, aborted = await self._read(wanted.first, most_bytes)
            if core is not self._current():
                return ShareFound()
            found = self._acquire(core, member, wanted.first, batches, aborted, most_records, exact=exact)
            if found.acquired:
                return found
            following = core.wanted()
            if following is None or following.first == wanted.first:
                return ShareFound()
        return ShareFound(unfinished=True)

    async def _read(self, offset: int, most_bytes: int) -> tuple[list[Buffer], HiddenBatches]:
        log, isolation = self.log, self.isolation
        local_start = log.local_start
        log.check_readable(offset)
        if isolation == COMMITTED:
            log.check_stable()
        batches: list[Buffer] | None = None
        if log.cached(offset):
            batches, _ = log.read_cached(offset, most_bytes, whole_first=True, isolation=isolation)
            if isolation == UNCOMMITTED or not any(map(is_transactional, batches)):
                return batches, _NOTHING
        self._reading, failed = True, False
        try:
            if batches is None:
                batches, _ = await log.read_stored(offset, most_bytes, isolation=isolation)
            if isolation == UNCOMMITTED or not any(map(is_transactional, batches)):
                return batches, _NOTHING
            end = span_of(batches[-1])[1] + 1
            aborted = await aborted_transactions(log, offset, end, partial(producers_of, batches))
            known = aborted_are_known(log, offset, end, local_start)
            failed = not known
            return (batches, HiddenBatches(aborted)) if known else ([], _NOTHING)
        except TopicError:
            failed = True
            raise
        finally:
            self._reading = False
            self._wake_others(later=failed)

    def _wake_others(self, *, later: bool) -> None:
        """Wake members that found nothing during a read. After a failure, they would read again without a pause."""
        if not later:
            self.watchers.notify(1)
        elif self._retry is None:
            self._retry = self._clock.call_at(self._clock.ticks_ms() + _AGAIN_MS, self._read_again)

    def _read_again(self) -> None:
        self._retry = None
        self.watchers.notify(1)

    def _acquire(
        self,
        core: SharePartition,
        member: str,
        read_from: int,
        batches: Sequence[Buffer],
        aborted: HiddenBatches,
        most_records: int,
        *,
        exact: bool,
    ) -> ShareFound:
        spans = list(map(span_of, batches))
        hidden = [
            span
            for batch, span in zip(batches, spans, strict=True)
            if is_control(batch) or (is_transactional(batch) and batch in aborted)
        ]
        until = self._clock.ticks_ms() + self.lock_ms
        acquired = core.acquire(member, read_from, spans, most_records, until, exact=exact, skipped=hidden)
        for each in acquired:
            length = each.last - each.first + 1
            self._counters.acquired += length
            if each.delivery_count > 1:
                self._counters.redelivered += length
        if acquired:
            self._arm(until)
        else:
            self._write_soon()
        chunks = list(_overlapping(batches, spans, acquired))
        return ShareFound(chunks, sum(map(len, chunks)), acquired)

    def _current(self) -> SharePartition | None:
        """Return the state with the present configuration and log start offset."""
        core = self._core
        if core is None or not self.is_ready:
            return None
        settings = self._wanted_settings()
        if settings != self._settings:
            self._settings = settings
            core.configure(settings)
            self._write_soon()
        if core.spso < self.log.log_start:
            core.advance_log_start(self.log.log_start)
        return core

    def _wanted_settings(self) -> ShareSettings:
        config = self._config()
        return ShareSettings(
            config.share_delivery_count_limit, config.share_partition_max_record_locks, bool(config.dead_letter_topic)
        )

    @property
    def dead_letters_waiting(self) -> int:
        """Number of records that wait for their copies in the dead letter topic."""
        return self._letters.waiting

    # Decisions

    async def acknowledge(
        self, member: str, batches: Sequence[AckBatch], *, renewing: bool
    ) -> AckProblem | Exception | None:
        """Apply a member's list of acknowledgements, and return once it counts, or why none of it does.

        `renewing`: whether it may renew locks.
        """
        core = self._current()
        if core is None:
            return NotLeader("the leader of the partition has changed")
        now_ms = self._clock.ticks_ms()
        may_renew = renewing and self._config().share_renew_acknowledge_enable
        problem = core.acknowledge(member, batches, now_ms, renew_until=now_ms + self.lock_ms if may_renew else None)
        if problem is not None or not core.has_changes:
            return problem
        stored: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(stored)
        self._write_soon()
        return await stored

    async def give_back(self, member: str, acquired: Sequence[Acquired]) -> None:
        """See `Share`. The deliveries do not count: records that no member gets would reach the delivery limit."""
        core = self._current()
        if core is not None:
            core.give_back(member, [(each.first, each.last) for each in acquired])
            self.watchers.notify(1)

    def release(self, member: str) -> None:
        """Release all records of a member."""
        # At the end of a session, this is called for all partitions of its group.
        core = self._current() if self._core is not None and self._core.holds(member) else None
        if core is not None:
            core.release_member(member)
            self._write_soon()

    def _arm(self, until_ms: int) -> None:
        if self._timer is not None and self._timer_ms <= until_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = until_ms
        self._timer = self._clock.call_at(until_ms, self._lock_over)

    def _lock_over(self) -> None:
        self._timer = None
        core = self._current()
        if core is None:
            return
        now_ms = self._clock.ticks_ms()
        self._counters.expired += sum(run.length for run in core.runs if run.held and run.until <= now_ms)
        core.expire(now_ms)
        self._write_soon()
        deadline = core.deadline
        if deadline is not None:
            self._arm(max(deadline, self._clock.ticks_ms() + 1))

    # Writes

    def _write_soon(self) -> None:
        if self._core is not None:
            self._report_given_up(self._core.take_given_up())
        if self._writing is None and self._core is not None and (self._core.has_changes or self._core.is_behind):
            self._writing = asyncio.get_running_loop().create_task(self._write(self._core))

    def _report_given_up(self, count: int) -> None:
        if count:
            self._counters.given_up += count
            log_given_up(self.group, self.log, count, self._config())

    async def _write(self, core: SharePartition) -> None:
        error: Exception | None = None
        term = self._term
        try:
            while error is None and self._core is core and (state := core.prepare()) is not None:
                waiting, self._waiting = self._waiting, []
                error = await self._store(state, term)
                if error is None:
                    core.stored()
                else:
                    core.lost()
                self._answer(waiting, error)
                if error is None:
                    self.watchers.notify(1)
                    if self._core is core:
                        self._letters.look(core)
                elif self._core is core:
                    self._refused(error)
        finally:
            self._writing = None
        if error is None or self._waiting:
            # A state that was loaded in the meantime may have decisions too.
            self._write_soon()
        self._retire()

    def _copied(self) -> None:
        self._write_soon()
        self._retire()

    async def _store(self, state: ShareState, term: int) -> Exception | None:
        try:
            if await self._storage.save(self.log.stream, self.group, term, state, self.log.replication.min_insync):
                return None
        except TopicError as error:
            return error
        except Exception as error:  # acknowledgements would wait for ever
            _log.exception("a share partition was not stored", group=self.group, topic=self.log.topic)
            return StorageUnavailable(str(error))
        return Fenced("the offsets of the share group were altered")

    def _refused(self, error: Exception) -> None:
        if isinstance(error, Fenced):
            # Another leader, or another state epoch: the state in memory is outdated.
            self._forget(error)
            self.watchers.notify(1)
        else:
            self._arm(self._clock.ticks_ms() + _AGAIN_MS)

    @staticmethod
    def _answer(waiting: list[asyncio.Future[Exception | None]], error: Exception | None) -> None:
        for each in waiting:
            if not each.done():
                each.set_result(error)


def _overlapping(
    batches: Sequence[Buffer], spans: Sequence[tuple[int, int]], acquired: Sequence[Acquired]
) -> "list[Buffer]":
    """Return the batches with acquired records."""
    found: list[Buffer] = []
    at = 0
    for batch, (first, last) in zip(batches, spans, strict=True):
        while at < len(acquired) and acquired[at].last < first:
            at += 1
        if at == len(acquired):
            break
        if acquired[at].first <= last:
            found.append(batch)
    return found
