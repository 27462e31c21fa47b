"""Runner of one consumer group on the generic `runtime`.

Also limits the memory of all groups and mirrors committed offsets to Redis consumer groups.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from time import perf_counter_ns
from typing import Protocol

import structlog

from headrace.aio.tasks import end
from headrace.broker.coordinator.assignments import Assignments
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.event_log import GroupEventLog, MemberEvents
from headrace.broker.coordinator.pattern_subscriptions import PatternSubscriptions
from headrace.broker.coordinator.runtime import Host, Runner
from headrace.broker.coordinator.topic_watch import TopicWatch
from headrace.broker.partition.partition import Partition
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.clock import Timer
from headrace.groups.configs import Configs
from headrace.groups.consumers.events import Assign, ConsumerHeartbeat, Resolve
from headrace.groups.effects import Effect, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, Event, Heartbeat, Notice, Request, TimerFired
from headrace.groups.group import Group
from headrace.groups.instances.model import Reservation
from headrace.groups.model import (
    DropField,
    GroupChange,
    GroupSettings,
    OffsetAndMetadata,
    SaveField,
    SaveHeader,
    SaveOffsets,
    StoredGroup,
    TopicPartition,
)
from headrace.groups.pending_offsets import Guard, OpenTransaction
from headrace.groups.sharing.events import ShareHeartbeat
from headrace.groups.snapshot import Snapshot
from headrace.groups.timers import TimerKey
from headrace.groups.turn import Room
from headrace.machines.effects import Command, Now
from headrace.metrics.counters import Durations
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.broker.coordinator")


PartitionOf = Callable[[TopicPartition], Partition | None]


_STOP_S = 3.0
"""Maximum seconds that a stopping server waits for the mirror."""


_AT_ONCE = 64
"""Committed offsets mirrored per round trip. Redis takes 1 to 2 ms for these, and other requests wait for it."""


class Total:
    """One memory limit."""

    __slots__ = ("_setting", "_short", "limit", "used")

    def __init__(self, setting: str, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._setting = setting
        self._short = False

    @property
    def left(self) -> int:
        """Remaining bytes."""
        return max(self.limit - self.used, 0)

    def add(self, size: int) -> None:
        """Add bytes, which may be negative. A shortage is logged once."""
        self.used += size
        short = self.left <= self.limit // _SHORT
        if short and not self._short:
            _log.error("group memory limit reached", setting=self._setting, used=self.used, limit=self.limit)
        self._short = short


class GroupMemory:
    """Memory limits of one server."""

    def __init__(self, members: int = 256 << 20, offsets: int = 512 << 20) -> None:
        """Limits: `headrace.groups.max.bytes` and `headrace.offsets.max.bytes`."""
        self.newer_members = 0
        """Members of the newer kinds of groups, whose heartbeats the server paces."""
        self.assignments = Durations()
        """Events that computed an assignment by the server."""
        self.members = Total("headrace.groups.max.bytes", members)
        self.offsets = Total("headrace.offsets.max.bytes", offsets)

    @property
    def room(self) -> Room:
        """Remaining memory."""
        return Room(self.members.left, self.offsets.left)


class Held:
    """Memory of one group."""

    __slots__ = ("_members", "_memory", "_newer", "_offsets")

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self._members = self._offsets = self._newer = 0

    def now(self, members: int, offsets: int, newer: int = 0) -> None:
        """Replace the group's usage: bytes of its members and offsets, and the number of members of a newer kind."""
        self._memory.newer_members += newer - self._newer
        self._newer = newer
        if members != self._members:
            self._memory.members.add(members - self._members)
            self._members = members
        if offsets != self._offsets:
            self._memory.offsets.add(offsets - self._offsets)
            self._offsets = offsets


class OffsetMirror:
    """Mirrors committed offsets to Redis consumer groups, without delaying commits."""

    def __init__(self, partition_of: PartitionOf) -> None:
        self._partition_of = partition_of
        self._pending: dict[tuple[str, TopicPartition], int] = {}
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def show(self, group: str, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Mirror these soon. A newer offset replaces an unsent one."""
        if self._stopped:
            return
        for partition, position in positions.items():
            self._pending[group, partition] = position.offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                # One write at a time per partition of a group, so that the newest offset wins.
                taken = [self._pending.popitem() for _ in range(min(_AT_ONCE, len(self._pending)))]
                found = [(group, self._partition_of(place), offset) for (group, place), offset in taken]
                # Topics may be deleted.
                there = [(group, partition, offset) for group, partition, offset in found if partition is not None]
                self._under_way = len(there)
                refused = await asyncio.gather(*(_show(*each) for each in there))
                self._under_way = 0
                why = [
                    (partition.stream, error) for (_, partition, _), error in zip(there, refused, strict=True) if error
                ]
                if why:
                    stream, error = why[0]
                    _log.warning(
                        "committed offsets not mirrored to Redis", positions=len(why), first=stream, reason=str(error)
                    )
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def settle(self) -> None:
        """Wait until all requested offsets are mirrored."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Mirror requested offsets for at most `within_s` seconds. The next commit mirrors missing ones."""
        self._stopped = True
        task = self._task
        if task is None:
            return
        await asyncio.wait([task], timeout=within_s)
        missing = len(self._pending) + self._under_way
        if not task.done():
            await end(task)
            _log.warning(
                "the server stops before all committed offsets are mirrored to Redis consumer groups: "
                "the next commits mirror the missing ones",
                positions=missing,
            )


async def _show(group: str, partition: Partition, offset: int) -> TopicError | None:
    try:
        await partition.mirror_offset(group, offset)
    except TopicError as error:
        return error
    return None


class Dropping:
    """Pending topic deletions of one group."""

    def __init__(self) -> None:
        self._drops: dict[DropTopic, None] = {}

    def __bool__(self) -> bool:
        return bool(self._drops)

    def begin(self, drop: DropTopic) -> None:
        """Add a deleted topic."""
        self._drops[drop] = None

    def end(self) -> list[DropTopic]:
        """Remove and return all: they are stored, or must be submitted again."""
        drops, self._drops = self._drops, {}
        return list(drops)

    def without(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that remain."""
        if not self._drops:
            return positions
        drops: dict[str, list[DropTopic]] = {}
        for drop in self._drops:
            drops.setdefault(drop.topic, []).append(drop)
        return {
            place: position
            for place, position in positions.items()
            if not any(drop.takes(position.topic_id) for drop in drops.get(place.topic, ()))
        }


class GroupHost(Host, Protocol):
    """What a group's runner needs from its server."""

    @property
    def coordination(self) -> Coordination:
        """Ownership of groups, and existing topics."""

    @property
    def storage(self) -> GroupStorage:
        """Storage of groups."""

    @property
    def settings(self) -> GroupSettings:
        """Limits of groups."""

    @property
    def configs(self) -> Configs:
        """Groups' own configurations."""

    @property
    def memory(self) -> GroupMemory:
        """Memory of all groups."""

    @property
    def mirror(self) -> OffsetMirror:
        """Mirror of stored offsets."""

    @property
    def patterns(self) -> PatternSubscriptions:
        """Patterns of members."""

    @property
    def assignments(self) -> Assignments:
        """Computation of large targets."""

    @property
    def watch(self) -> TopicWatch:
        """Notices of changed topics."""

    @property
    def member_events(self) -> MemberEvents:
        """Events of all groups for the console."""

    def now(self) -> Now:
        """Return the time for state machines."""


def _target_epoch(machine: Group) -> int:
    header = None if machine.part is None else machine.part.header
    return 0 if header is None else header.target_epoch


class GroupRunner(Runner[Event, Result, GroupChange, TimerKey]):
    """Only owner of a group's state machine."""

    machine: Group

    def __init__(self, stored: StoredGroup, table: GroupHost) -> None:
        super().__init__(stored.name, table, table.coordination.number)
        self._table = table
        self._snapshot = Snapshot(stored)
        self._seen_alive: set[str] = set()
        """Members with an answered heartbeat queued during a write."""
        self._dropping = Dropping()
        self._again: Timer | None = None
        self._held = Held(table.memory)
        self._aimed = 0
        self.begin()

    def request(self, event: Request) -> "asyncio.Future[Result]":
        """Queue a request."""
        beats = isinstance(event, _HEARTBEATS) and self.writing_since_ms is not None and not self.closed
        result = self.machine.at_once(event) if beats else None
        if isinstance(event, _HEARTBEATS) and result is not None:
            # A blocked Redis must not expire members.
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            future.set_result(result)
            if event.member_id not in self._seen_alive:
                # It renews the session after the write.
                self._seen_alive.add(event.member_id)
                self.post(event)
            return future
        return self.submit(event.token, event)

    def drop(self, drop: DropTopic) -> None:
        """Stop serving the state of a deleted topic."""
        if not self.closed:
            self._dropping.begin(drop)
            self.post(drop)

    def fired(self, key: TimerKey) -> Event:
        """See `Runner`."""
        return TimerFired(key)

    def handle(self, event: Event, arrived_ms: int) -> list[Effect]:
        """See `Runner`."""
        if isinstance(event, _HEARTBEATS):
            self._seen_alive.discard(event.member_id)
        began_ns = perf_counter_ns()
        effects = self.machine.handle(event, self._table.now(), arrived_ms, self._table.memory.room)
        if self._aimed != (aimed := _target_epoch(self.machine)):
            self._aimed = aimed
            self._table.memory.assignments.add((perf_counter_ns() - began_ns) // 1_000)
        if isinstance(event, ConsumerHeartbeat | ShareHeartbeat) and event.topics:
            self._check_facts(event, event.topics)
        self._count()
        self._teller.look(self.machine, event)
        return effects

    def idle(self) -> None:
        """See `Runner`."""
        if self._again is None:
            self._dropping.end()

    def _count(self) -> None:
        part = self.machine.part
        self._held.now(self.machine.member_bytes, self.machine.offset_bytes, 0 if part is None else part.size)

    def _check_facts(self, event: ConsumerHeartbeat | ShareHeartbeat, topics: Iterable[str]) -> None:
        """Topics of a first subscription may have changed while the request waited."""
        notice = self._table.watch.notice(topics)
        if notice is not None and any(event.facts.get(name) != facts for name, facts in notice.facts.items()):
            asyncio.get_running_loop().call_soon(self.post, notice)

    def perform(self, command: Command) -> None:
        """See `Runner`."""
        if isinstance(command, Resolve):
            self._table.patterns.resolve(self.name, command.patterns)
        elif isinstance(command, Assign):
            self._table.assignments.begin(command, self.post)
        else:
            super().perform(command)

    def watches(self, topic: str) -> bool:
        """See `topic_watch.Watcher`."""
        part = self.machine.part
        return part is not None and part.reads(topic)

    def restore(self) -> list[Effect]:
        """See `Runner`."""
        self.machine, effects = Group.restore(
            self._snapshot.stored, self._table.settings, self._table.now(), self._table.configs, self._table.watch.facts
        )
        self._aimed = _target_epoch(self.machine)
        if not self.closed:
            self._count()
        self._teller = GroupEventLog(self.name, self.machine, self._table.member_events)
        return effects

    async def store(self, changes: tuple[GroupChange, ...], *, everything: bool) -> None:
        """See `Runner`."""
        before = self._snapshot.rewrite() if everything else ()
        await self._table.storage.save(self.name, (*before, *changes), self.view)

    def merges(self, changes: tuple[GroupChange, ...]) -> bool:
        """See `Runner`. Thousands of members may join together."""
        return all(isinstance(change, _OF_MEMBERS) for change in changes)

    def stored(self, changes: tuple[GroupChange, ...]) -> None:
        """See `Runner`."""
        self._snapshot.apply(changes)
        for change in changes:
            if isinstance(change, SaveOffsets):
                self._table.mirror.show(self.name, change.positions)

    def not_stored(self, reason: str, again_ms: int) -> None:
        """See `Runner`."""
        if self._dropping:
            self._again = self._table.clock.call_at(again_ms, self._drop_again)
        _log.error("group not stored", group=self.name, reason=reason)
        part = self.machine.part
        notice = None if part is None else self._table.watch.notice(part.subscribed())
        if notice is not None:
            # The restored machine knows only the topics of assigned partitions.
            self.post(notice)

    def _drop_again(self) -> None:
        self._again = None
        for drop in self._dropping.end():
            if not self._table.coordination.has_again(drop):
                self.drop(drop)

    def refusal(self, request: Event, reason: str) -> Result:
        """See `Runner`."""
        error = GroupError.NOT_COORDINATOR if self.moved else GroupError.COORDINATOR_NOT_AVAILABLE
        assert not isinstance(request, Notice), "no caller waits for those"
        return refusal(request, error, reason)

    def call_off(self) -> None:
        """See `Runner`."""
        super().call_off()
        self._seen_alive.clear()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def released(self) -> None:
        """See `Runner`."""
        self._held.now(0, 0)

    @property
    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Stored offsets of existing topics."""
        return self._dropping.without(self._snapshot.positions)

    def unstable(self) -> Collection[TopicPartition]:
        """Return the partitions with durable pending offsets of existing topics."""
        pending = self._snapshot.pending
        if not self._dropping:
            return frozenset(pending.partitions())
        return {
            partition
            for partition in pending.partitions()
            for position in pending.positions(partition)
            if self._dropping.without({partition: position})
        }

    def open_transactions(self) -> set[OpenTransaction]:
        """Return the transactions with durable pending offsets."""
        return self._snapshot.pending.transactions()

    def guard(self, producer_id: int) -> Guard:
        """Return a producer's guard (`TxnOffsetCommit`)."""
        return self.machine.guard(producer_id)

    def reservations(self, topic: str) -> list[Reservation] | None:
        """Return the partitions of a balanced section, if it exists.

        Deadlines are only in memory, because every request moves them.
        """
        section = self._snapshot.sections.get(topic)
        if section is None:
            return None
        present = self.machine.reservations(topic, self._table.now()) or ()
        until = {each.instance: each.reserved_until_ms for each in present if not each.is_consumer}
        consumers = {each.partition: each for each in present if each.is_consumer}
        positions = self.positions
        return [
            Reservation(
                partition=index,
                committed=None if index in section.starts or position is None else position.offset,
                instance=shown.instance if owner is None else owner.instance,
                reserved_until_ms=shown.reserved_until_ms if owner is None else until.get(owner.instance),
            )
            for index, owner in enumerate(section.owners)
            for position in (positions.get(TopicPartition(topic, index)),)
            for shown in (consumers.get(index, _FREE),)
        ]

    @property
    def sections(self) -> Iterable[str]:
        """Topics with a stored balanced section."""
        return self._snapshot.sections

    @property
    def idle_and_empty(self) -> bool:
        """Whether the group can be dropped."""
        return self._snapshot.nothing and not (self.busy or self.machine.guarded)


_OF_MEMBERS = (SaveHeader, SaveField, DropField)
"""Changes of members of the newer kinds."""
_HEARTBEATS = (Heartbeat, ConsumerHeartbeat, ShareHeartbeat)
"""Requests that may be answered during a write."""
_FREE = Reservation(0, None, None, None)
_SHORT = 8
"""Fraction (1/8) of remaining memory at which a shortage is logged."""
