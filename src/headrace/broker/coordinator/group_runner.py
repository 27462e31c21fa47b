"""The runner of one consumer group: what the generic runtime (`runtime`) must know of groups.

That includes the memory that all groups of a server hold together, and committed offsets as Redis' consumer groups show
them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from headrace.aio.tasks import end
from headrace.broker.coordinator.event_log import GroupEventLog
from headrace.broker.coordinator.ownership import Coordination
from headrace.broker.coordinator.runtime import Host, Runner
from headrace.broker.partition.partition import Partition
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.clock import Timer
from headrace.groups.effects import Effect, HeartbeatResult, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, Event, Heartbeat, Request, TimerFired
from headrace.groups.group import Group
from headrace.groups.instances.model import Reservation
from headrace.groups.model import (
    GroupChange,
    GroupSettings,
    OffsetAndMetadata,
    SaveOffsets,
    StoredGroup,
    TopicPartition,
)
from headrace.groups.snapshot import Snapshot
from headrace.groups.timers import TimerKey
from headrace.groups.turn import Room
from headrace.machines.effects import Now
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.broker.coordinator")


PartitionOf = Callable[[TopicPartition], Partition | None]


_STOP_S = 3.0
"""How long a server that ends waits for what is not shown yet."""


_AT_ONCE = 64
"""Positions that are shown in one round trip: what is asked in one turn of the loop leaves in one write.

Redis takes a millisecond or two for as many, for which others' requests wait behind them.
"""


class Total:
    """One bound."""

    __slots__ = ("_setting", "_short", "limit", "used")

    def __init__(self, setting: str, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._setting = setting
        self._short = False

    @property
    def left(self) -> int:
        """Bytes that may still be added; never below 0."""
        return max(self.limit - self.used, 0)

    def add(self, size: int) -> None:
        """Count bytes more, or less. Running short is logged once, until there is room again."""
        self.used += size
        short = self.left <= self.limit // _SHORT
        if short and not self._short:
            _log.error("groups use up their memory", setting=self._setting, used=self.used, limit=self.limit)
        self._short = short


class GroupMemory:
    """The totals of one server."""

    def __init__(self, members: int = 256 << 20, offsets: int = 512 << 20) -> None:
        """Count nothing yet.

        Args:
            members: bytes of all members, `headrace.groups.max.bytes`.
            offsets: bytes of all committed offsets, `headrace.offsets.max.bytes`.
        """
        self.members = Total("headrace.groups.max.bytes", members)
        self.offsets = Total("headrace.offsets.max.bytes", offsets)

    @property
    def room(self) -> Room:
        """What is left."""
        return Room(self.members.left, self.offsets.left)


class Held:
    """What one group holds of it."""

    __slots__ = ("_members", "_memory", "_offsets")

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self._members = self._offsets = 0

    def now(self, members: int, offsets: int) -> None:
        """Count what the group holds now, in place of what it held before."""
        if members != self._members:
            self._memory.members.add(members - self._members)
            self._members = members
        if offsets != self._offsets:
            self._memory.offsets.add(offsets - self._offsets)
            self._offsets = offsets


class OffsetMirror:
    """Shows positions in the Redis consumer groups of the streams, after the commit and without holding it up."""

    def __init__(self, partition_of: PartitionOf) -> None:
        self._partition_of = partition_of
        self._pending: dict[tuple[str, TopicPartition], int] = {}
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def show(self, group: str, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Mirror these soon; a newer position of the same partition replaces one that has not been shown yet."""
        if self._stopped:
            return
        for partition, position in positions.items():
            self._pending[group, partition] = position.offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                # Those of one partition and group are never under way together, so the newest is shown last.
                taken = [self._pending.popitem() for _ in range(min(_AT_ONCE, len(self._pending)))]
                found = [(group, self._partition_of(place), offset) for (group, place), offset in taken]
                # Topics may have been deleted; there may be as many positions as partitions, in every group.
                there = [(group, partition, offset) for group, partition, offset in found if partition is not None]
                self._under_way = len(there)
                refused = await asyncio.gather(*(_show(*each) for each in there))
                self._under_way = 0
                why = [
                    (partition.stream, error) for (_, partition, _), error in zip(there, refused, strict=True) if error
                ]
                if why:
                    stream, error = why[0]
                    _log.warning("positions not mirrored", positions=len(why), first=stream, reason=str(error))
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def settle(self) -> None:
        """Wait until everything asked so far is shown."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Show what was asked so far, but wait no longer than so many seconds; show no more after that.

        Positions are stored elsewhere: one that is not shown is shown by the partition's next commit.
        """
        self._stopped = True
        task = self._task
        if task is None:
            return
        await asyncio.wait([task], timeout=within_s)
        missing = len(self._pending) + self._under_way
        if not task.done():
            await end(task)
            _log.warning(
                "the server ends before all positions are shown in Redis' consumer groups: "
                "what is missing there is shown by the next commits",
                positions=missing,
            )


async def _show(group: str, partition: Partition, offset: int) -> TopicError | None:
    """Show one; why that could not be."""
    try:
        await partition.mirror_offset(group, offset)
    except TopicError as error:
        return error
    return None


class Dropping:
    """The drops that one group has before it."""

    def __init__(self) -> None:
        self._drops: dict[DropTopic, None] = {}

    def __bool__(self) -> bool:
        return bool(self._drops)

    def begin(self, drop: DropTopic) -> None:
        """A topic was deleted."""
        self._drops[drop] = None

    def end(self) -> list[DropTopic]:
        """Storage has all of it, or is to be told again; which they were."""
        drops, self._drops = self._drops, {}
        return list(drops)

    def without(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Those positions that stay."""
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
    """What a group's runner needs of the server that has it."""

    @property
    def coordination(self) -> Coordination:
        """Whose groups are whose, and which topics there are."""

    @property
    def storage(self) -> GroupStorage:
        """Where the group's changes go."""

    @property
    def settings(self) -> GroupSettings:
        """Limits of every group."""

    @property
    def memory(self) -> GroupMemory:
        """What all groups of the server hold."""

    @property
    def mirror(self) -> OffsetMirror:
        """Where stored positions are shown."""

    def now(self) -> Now:
        """The time, as groups' machines are told it."""


class GroupRunner(Runner[Event, Result, GroupChange, TimerKey]):
    """The one owner of a group's machine."""

    machine: Group

    def __init__(self, stored: StoredGroup, table: GroupHost) -> None:
        """Go on with a group as storage has it."""
        super().__init__(stored.name, table, table.coordination.number)
        self._table = table
        self._snapshot = Snapshot(stored)
        self._seen_alive: set[str] = set()
        """Members whose heartbeat was answered during a write, and is in the queue to keep them: once is enough."""
        self._dropping = Dropping()
        self._again: Timer | None = None
        self._held = Held(table.memory)
        self.begin()

    # Events in

    def request(self, event: Request) -> "asyncio.Future[Result]":
        """Queue a request; the future gets its result."""
        if (
            isinstance(event, Heartbeat)
            and self.writing_since_ms is not None
            and not self.closed
            and self.machine.classic.may_go_on(event)
        ):
            # A Redis that hangs must not cost members their sessions.
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            future.set_result(HeartbeatResult(error=None))
            if event.member_id not in self._seen_alive:
                self._seen_alive.add(event.member_id)
                self.post(event)
            return future
        return self.submit(event.token, event)

    def drop(self, drop: DropTopic) -> None:
        """A topic was deleted: what the group has of it is told to no client from now on."""
        if not self.closed:
            self._dropping.begin(drop)
            self.post(drop)

    def fired(self, key: TimerKey) -> Event:
        """See `Runner`."""
        return TimerFired(key)

    def handle(self, event: Event, arrived_ms: int) -> list[Effect]:
        """See `Runner`."""
        if isinstance(event, Heartbeat):
            self._seen_alive.discard(event.member_id)
        effects = self.machine.handle(event, self._table.now(), arrived_ms, self._table.memory.room)
        self._count()
        self._teller.look(self.machine, event)
        return effects

    def idle(self) -> None:
        """See `Runner`."""
        if self._again is None:
            self._dropping.end()

    def _count(self) -> None:
        self._held.now(self.machine.member_bytes, self.machine.offset_bytes)

    # Storage

    def restore(self) -> list[Effect]:
        """See `Runner`."""
        self.machine, effects = Group.restore(self._snapshot.stored, self._table.settings, self._table.now())
        if not self.closed:
            self._count()
        self._teller = GroupEventLog(self.name, self.machine)
        return effects

    async def store(self, changes: tuple[GroupChange, ...], *, everything: bool) -> None:
        """See `Runner`."""
        before = self._snapshot.rewrite() if everything else ()
        await self._table.storage.save(self.name, (*before, *changes), self.view)

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

    def _drop_again(self) -> None:
        self._again = None
        for drop in self._dropping.end():
            if not self._table.coordination.has_again(drop):
                self.drop(drop)

    def refusal(self, request: Event, reason: str) -> Result:
        """See `Runner`."""
        error = GroupError.NOT_COORDINATOR if self.moved else GroupError.COORDINATOR_NOT_AVAILABLE
        assert not isinstance(request, TimerFired | DropTopic), "no caller waits for those"
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

    # State

    @property
    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Positions that storage has, in topics that there are."""
        return self._dropping.without(self._snapshot.positions)

    def reservations(self, topic: str) -> list[Reservation] | None:
        """A balanced section's partitions as storage has them; None when there is no such section.

        Until when a partition is reserved is in memory only: it moves with every request.
        """
        section = self._snapshot.sections.get(topic)
        if section is None:
            return None
        present = self.machine.reservations(topic, self._table.now())
        until = {each.instance: each.reserved_until_ms for each in present or ()}
        positions = self.positions
        return [
            Reservation(
                partition=index,
                committed=None if index in section.starts or position is None else position.offset,
                instance=None if owner is None else owner.instance,
                reserved_until_ms=None if owner is None else until.get(owner.instance),
            )
            for index, owner in enumerate(section.owners)
            for position in (positions.get(TopicPartition(topic, index)),)
        ]

    @property
    def sections(self) -> Iterable[str]:
        """Topics that have a balanced section, as storage has them."""
        return self._snapshot.sections

    @property
    def idle_and_empty(self) -> bool:
        """Nothing stored, nobody waiting, no timer: the group need not exist."""
        return self._snapshot.nothing and not self.busy


_SHORT = 8
"""A total is logged as short when this part of it is left, or less."""
