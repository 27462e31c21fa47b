"""Balanced groups for APIs: cursors and records, by the rules of `headrace.groups.instances`.

Finds start offsets, reads the planned records, and reports reads before responses.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import msgspec

from headrace.broker.coordinator.coordinator import Unready
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.read import Sink, read
from headrace.broker.partition.source import Isolation, Source
from headrace.broker.partition.timestamps import FoundOffset, Searcher, Special
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.scheduler import CooperativeScheduler, TimeSlice
from headrace.broker.topics.live import LiveTopic
from headrace.groups.effects import Result
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import (
    Beat,
    CommitCursor,
    CreateCursor,
    CursorResult,
    Delivered,
    Get,
    InstanceRefused,
    InstanceRequest,
    Plan,
    ReadFrom,
    TopicFacts,
    Update,
)
from headrace.groups.instances.model import GroupCursor, Reservation, Start, StartKind
from headrace.groups.model import StoredStart
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, TopicError, UnknownTopic

__all__ = ["GroupCursor", "InstanceError", "InstanceProblem", "Instances", "Reservation", "Sink", "Start", "StartKind"]

MOST_GROUPS = 50
"""Maximum groups of a topic (OCI Streaming)."""
_WIDE = 1_000
"""Partitions from which requests for a whole topic are limited."""
_MOST_READING = 4
"""Maximum concurrent reads of such topics. Start lookups run one at a time."""
ISOLATION = Isolation.READ_COMMITTED
"""Isolation of the OCI API, whose clients could not recognize messages of aborted transactions."""
SourceOf = Callable[[Partition], Awaitable[Source]]
"""Returns the source to read a partition from."""
_Starts = tuple[tuple[StoredStart, ...], tuple[int, ...]]
"""Start and leader epoch of each partition."""


class Instances:
    """Requests of instances. Every call may raise InstanceError."""

    def __init__(
        self,
        groups: GroupCoordinator,
        searcher: Callable[[], Searcher],
        source: SourceOf,
        lane: CooperativeScheduler,
        large_reads: ReadBudget,
    ) -> None:
        self._groups = groups
        self._lane = lane
        self._large_reads = large_reads
        self._reading = asyncio.Semaphore(_MOST_READING)
        self._starting = asyncio.Semaphore(1)
        self._source = source
        self._searcher = searcher
        self._being_made: dict[tuple[str, str], int] = {}

    async def create_cursor(
        self,
        topic: LiveTopic,
        group: str,
        instance: str,
        start: Start,
        timeout_ms: int,
        commit_on_get: bool,
    ) -> GroupCursor:
        """Return a cursor for an instance, and create the group at `start` if it is missing.

        Each topic has separate group names. Names have 1 to 255 bytes. An existing instance restarts: it keeps its
        partitions, resumes at the committed offsets, and older cursors can no longer commit. It is removed after
        `timeout_ms` of inactivity. With `commit_on_get`, each get commits the previous delivery.

        Raises:
            InstanceError: TOO_MANY_GROUPS, UNAVAILABLE, or GROUP_IN_USE by a classic group with members.
        """
        while True:
            try:
                await self.ready(group)
                if self._has(topic, group):
                    return await self._create(topic, group, instance, None, timeout_ms, commit_on_get)
                with self._place_for(topic, group), _storage_errors():
                    async with self._among_few(topic, self._starting):
                        starts = await self._starts(topic, start)
                        return await self._create(topic, group, instance, starts, timeout_ms, commit_on_get)
            except InstanceError as error:
                # The unused group expired just now.
                if error.kind is not InstanceProblem.UNKNOWN_GROUP:
                    raise

    async def get(self, topic: LiveTopic, cursor: GroupCursor, sink: Sink, max_offsets: int) -> GroupCursor:
        """Rebalance if needed, commit if the cursor requests it, then read into `sink`. Return the next cursor.

        The cursor is from any earlier response to this instance; repeating the request returns the same records. The
        next one holds at most `max_offsets` partitions.

        Raises:
            InstanceError: UNRESERVED_PARTITION, UNKNOWN_GROUP, GROUP_IN_USE, BEHIND_LOG_START, INVALID_CURSOR,
                UNAVAILABLE. Discard the sink's content.
            UnknownTopic: the topic was deleted.
        """
        async with self._among_few(topic, self._reading):
            while True:
                await self.ready(cursor.group)
                following = await self._get(topic, cursor, sink, max_offsets)
                if following is not None:
                    return following

    async def _get(self, topic: LiveTopic, cursor: GroupCursor, sink: Sink, max_offsets: int) -> GroupCursor | None:
        """Return the next cursor. None: the group received its start offsets only now."""
        runner = self._runner(topic, cursor.group)
        # With thousands of partitions, the plan takes a whole time slice.
        pace = self._lane.pace()
        plan = await self._plan(runner, Get(token=object(), topic=_facts(topic), cursor=cursor))
        taken = _Taken()
        failed = True
        try:
            with _storage_errors():
                await self._read(topic, plan, sink, max_offsets, taken, pace)
            failed = False
        finally:
            # Always report the end: the partitions count as being read until then.
            delivered = () if failed else tuple(taken.offsets.items())
            epochs = () if failed else tuple(taken.leader_epochs.items())
            told = Delivered(topic.topic.name, plan.read, delivered, epochs, tuple(taken.cuts), token=object())
            stored = runner.request(told)
        if taken.risen:
            # The next cursor carries no leader epochs.
            _accepted(await stored)
        if taken.cuts and not taken.offsets:
            # An empty response would mean that no records exist.
            return None
        offsets = {**dict(plan.cursor.offsets), **taken.offsets}
        return msgspec.structs.replace(plan.cursor, offsets=tuple(offsets.items()))

    async def commit(self, topic: LiveTopic, cursor: GroupCursor) -> GroupCursor:
        """Commit the cursor's offsets, keep the instance alive, and return an empty cursor.

        Raises:
            InstanceError: as `get`, except BEHIND_LOG_START and GROUP_IN_USE.
        """
        await self.ready(cursor.group)
        runner = self._runner(topic, cursor.group)
        return await _cursor(runner, CommitCursor(token=object(), topic=_facts(topic), cursor=cursor))

    async def heartbeat(self, topic: LiveTopic, cursor: GroupCursor) -> GroupCursor:
        """Keep the instance alive or add it, without a commit. Return a cursor with the same offsets.

        Raises:
            InstanceError: UNKNOWN_GROUP, GROUP_IN_USE, INVALID_CURSOR, UNAVAILABLE.
        """
        await self.ready(cursor.group)
        runner = self._runner(topic, cursor.group)
        return await _cursor(runner, Beat(token=object(), topic=_facts(topic), cursor=cursor))

    async def update(self, topic: LiveTopic, group: str, start: Start) -> None:
        """Reset the whole group to a new start. Earlier deliveries cannot be committed.

        Raises:
            InstanceError: UNKNOWN_GROUP, UNAVAILABLE, or GROUP_IN_USE by classic members.
        """
        await self.ready(group)
        runner = self._runner(topic, group)
        async with self._among_few(topic, self._starting):
            with _storage_errors():
                starts, epochs = await self._starts(topic, start)
            request = Update(token=object(), topic=_facts(topic), starts=starts, leader_epochs=epochs)
            # Thousands of partitions take several time slices.
            await self._lane.turn()
            _accepted(await runner.request(request))

    async def describe(self, topic: LiveTopic, group: str) -> list[Reservation]:
        """Return all partitions with committed offset and instance.

        Raises InstanceError: UNKNOWN_GROUP, UNAVAILABLE.
        """
        await self.ready(group)
        return self.reservations(topic, group)

    def reservations(self, topic: LiveTopic, group: str) -> list[Reservation]:
        """As `describe`, after `ready`. Raises InstanceError: UNKNOWN_GROUP."""
        found = self._runner(topic, group).reservations(topic.topic.name)
        if found is None:
            raise _unknown(topic, group)
        return found

    def groups_of(self, topic: LiveTopic) -> list[str]:
        """Return the sorted names of the topic's balanced groups."""
        return [runner.name for runner in self._groups.runners() if topic.topic.name in runner.sections]

    async def ready(self, group: str) -> None:
        """Return once a group is available here.

        Raises InstanceError: another broker coordinates it, or storage cannot load it.
        """
        try:
            await self._groups.bring(group)
        except Unready as away:
            message = f"the group {group!r} is not available here: {away}"
            raise InstanceError(InstanceProblem.UNAVAILABLE, message) from away

    def _has(self, topic: LiveTopic, group: str) -> bool:
        runner = self._groups.runner(group)
        return runner is not None and topic.topic.name in runner.sections

    def _runner(self, topic: LiveTopic, group: str) -> GroupRunner:
        runner = self._groups.runner(group)
        if runner is None:
            raise _unknown(topic, group)
        return runner

    @contextmanager
    def _place_for(self, topic: LiveTopic, group: str) -> Iterator[None]:
        name = topic.topic.name
        wanted = (name, group)
        others = {each for made_on, each in self._being_made if made_on == name}
        others.update(self.groups_of(topic))
        others.discard(group)
        if len(others) >= MOST_GROUPS:
            raise InstanceError(
                InstanceProblem.TOO_MANY_GROUPS, f"{name!r} has {MOST_GROUPS} groups, the most it may have"
            )
        if not self._groups.has_room_for(group):
            raise InstanceError(
                InstanceProblem.TOO_MANY_GROUPS, "there are as many groups as the server takes (headrace.max.groups)"
            )
        self._being_made[wanted] = self._being_made.get(wanted, 0) + 1
        try:
            yield
        finally:
            self._being_made[wanted] -= 1
            if not self._being_made[wanted]:
                del self._being_made[wanted]

    async def _create(
        self,
        topic: LiveTopic,
        group: str,
        instance: str,
        starts: "_Starts | None",
        timeout_ms: int,
        commit_on_get: bool,
    ) -> GroupCursor:
        request = CreateCursor(
            token=object(),
            topic=_facts(topic),
            instance=instance,
            timeout_ms=timeout_ms,
            commit_on_get=commit_on_get,
            starts=None if starts is None else starts[0],
            leader_epochs=() if starts is None else starts[1],
        )
        await self.ready(group)
        return await _cursor(self._groups.runner_or_new(group), request)

    @asynccontextmanager
    async def _among_few(self, topic: LiveTopic, gate: asyncio.Semaphore) -> AsyncIterator[None]:
        if len(topic.partitions) <= _WIDE:
            yield
            return
        async with gate:
            await self._lane.turn()
            yield

    async def _starts(self, topic: LiveTopic, start: Start) -> "_Starts":
        ask = partial(self._start, start)
        found = [each async for _, each in self._lane.a_few_at_once(topic.partitions, ask)]
        return tuple(each for each, _ in found), tuple(epoch for _, epoch in found)

    async def _start(self, start: Start, led: Partition) -> tuple[StoredStart, int]:
        partition = await self._source(led)
        # Read the epoch first: the log may be recovered during the lookup.
        epoch = partition.leader_epoch
        return await self._beginning_of(partition, start), epoch

    async def _beginning_of(self, partition: Source, start: Start) -> StoredStart:
        if start.kind is StartKind.TRIM_HORIZON:
            return StoredStart((await self._find_offset(partition, Special.EARLIEST)).offset, start.kind)
        # First: records that arrive later are after it.
        end = (await self._find_offset(partition, Special.LATEST)).offset
        if start.kind is StartKind.LATEST:
            return StoredStart(end, start.kind)
        assert start.time_ms is not None, "AT_TIME without a time: the API lets none pass"
        found = await self._find_offset(partition, start.time_ms)
        if found.offset >= 0:
            return StoredStart(found.offset, start.kind)
        return StoredStart(end, start.kind, start.time_ms)

    async def _find_offset(self, partition: Source, timestamp: int) -> FoundOffset:
        return await partition.find_offset(timestamp, self._searcher(), ISOLATION)

    async def _plan(self, runner: GroupRunner, request: Get) -> Plan:
        answer = runner.request(request)
        try:
            plan = _accepted(await asyncio.shield(answer))
        except asyncio.CancelledError:
            # The client disconnected, but the group still plans a read.
            answer.add_done_callback(lambda done: _give_up_plan(runner, request, done))
            raise
        assert isinstance(plan, Plan)
        return plan

    async def _read(
        self, topic: LiveTopic, plan: Plan, sink: Sink, max_offsets: int, taken: "_Taken", pace: TimeSlice
    ) -> None:
        offsets = dict(plan.cursor.offsets)
        away: StorageUnavailable | None = None
        for each in plan.reads:
            if sink.room() <= 0:
                break
            if pace.over:
                # Most of thousands of partitions have no unread records.
                await pace.rest()
            if each.partition not in offsets and len(offsets) >= max_offsets:
                continue
            try:
                partition = await self._source(topic.partitions[each.partition])
                # First: the log may be recovered during the read.
                epoch = partition.leader_epoch
                if (kept := partition.kept(each.reached, each.leader_epoch)) < each.reached:
                    # The next get, which knows the epoch, reads it.
                    taken.cuts.append((each.partition, kept, epoch))
                    continue
                offset = await self._beginning(partition, each)
                following = -1 if offset is None else await _read_on(partition, offset, sink, each, self._large_reads)
            except StorageUnavailable as error:
                # Other shards may be available.
                away = away or error
                continue
            if offset is not None and following > offset:
                offsets[each.partition] = taken.offsets[each.partition] = following
                taken.leader_epochs[each.partition] = epoch
                taken.risen = taken.risen or epoch > each.leader_epoch
        if away is not None and not taken.offsets:
            raise away

    async def _beginning(self, partition: Source, each: ReadFrom) -> int | None:
        if each.offset >= partition.visible_end(ISOLATION) and not partition.deleted:
            return None
        if each.not_before_ms is None:
            return max(each.offset, partition.log_start) if each.follows_log_start else each.offset
        found = await self._find_offset(partition, each.not_before_ms)
        return None if found.offset < 0 else max(found.offset, each.offset)


class _Taken:
    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        """Partition -> the next offset after its records, in read order."""
        self.leader_epochs: dict[int, int] = {}
        """As in `Delivered`, also for the next."""
        self.cuts: list[tuple[int, int, int]] = []
        self.risen = False
        """Whether a record has a newer leader epoch than the group knows."""


async def _read_on(partition: Source, offset: int, sink: Sink, each: ReadFrom, large_reads: ReadBudget) -> int:
    try:
        return await read(partition, offset, sink, large_reads=large_reads, isolation=ISOLATION)
    except OffsetOutOfRange:
        if not each.follows_log_start or offset >= partition.log_start:
            raise
        # Retention removed records.
        return await read(partition, partition.log_start, sink, large_reads=large_reads, isolation=ISOLATION)


def _give_up_plan(runner: GroupRunner, request: Get, answer: "asyncio.Future[Result]") -> None:
    if not answer.cancelled() and isinstance(plan := answer.result(), Plan):
        runner.post(Delivered(request.topic.name, plan.read, ()))


def _facts(topic: LiveTopic) -> TopicFacts:
    return TopicFacts(topic.topic.name, len(topic.partitions), topic.config.retention_ms, topic.topic.id)


def _accepted(result: Result) -> Result:
    if isinstance(result, InstanceRefused):
        raise result.error()
    return result


async def _cursor(runner: GroupRunner, request: InstanceRequest) -> GroupCursor:
    result = _accepted(await runner.request(request))
    assert isinstance(result, CursorResult)
    return result.cursor


def _unknown(topic: LiveTopic, group: str) -> InstanceError:
    return InstanceError(InstanceProblem.UNKNOWN_GROUP, f"no group {group!r} on {topic.topic.name!r}")


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except UnknownTopic:
        raise
    except OffsetOutOfRange as error:
        raise InstanceError(InstanceProblem.BEHIND_LOG_START, str(error)) from error
    except TopicError as error:
        raise InstanceError(InstanceProblem.UNAVAILABLE, str(error)) from error
