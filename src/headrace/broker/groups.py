"""Consumer groups in the running server: one runner per group, which alone touches the group's machine.

A runner takes one event at a time: it asks the machine for effects, carries them out in order, and only then takes
the next one. What has to be durable is durable before the answer that promises it.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from contextvars import Context
from uuid import uuid4

import structlog
from msgspec import structs

from headrace.broker.answering import AT_ONCE, Late, answer_soon
from headrace.broker.clock import Clock, Timer
from headrace.broker.coordination import Coordination, of_one_server
from headrace.broker.dropping import Dropping
from headrace.broker.group_timers import Firing, GroupTimers
from headrace.broker.mirror import Mirror, PartitionOf
from headrace.broker.pace import Pace
from headrace.broker.ports import GroupStorage
from headrace.broker.taking_over import take_over_all
from headrace.broker.telling import GroupTeller
from headrace.groups.balanced.model import Reservation
from headrace.groups.description import GroupDescription
from headrace.groups.effects import CancelTimer, CommitResult, Effect, Persist, Reply, Result, SetTimer, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, Event, Join, Request, TimerFired
from headrace.groups.group import Group
from headrace.groups.model import (
    DropGroup,
    GroupChange,
    Position,
    SavePositions,
    StoredGroup,
    TopicPartition,
    is_nothing,
)
from headrace.groups.now import Now
from headrace.groups.settings import GroupSettings
from headrace.groups.snapshot import Snapshot
from headrace.topics.errors import StorageUnavailable, TopicError

_log = structlog.get_logger("headrace.groups")

_AGAIN_MS = 1_000
"""How soon storage is told again of a deleted topic that it did not hear of."""
_LATELY_MS = 10_000
"""Within that a member's heartbeat has told it to look for the coordinator anew: Kafka's default is one in 3 s."""


class Runner:
    """The one owner of a group's machine."""

    def __init__(self, stored: StoredGroup, table: "GroupTable") -> None:
        self.name = stored.name
        self.view = table.coordination.number
        """The number of the view by which this server coordinates it; None: it is alone."""
        self._table = table
        self._snapshot = Snapshot(stored)
        self._queue: deque[tuple[Event, int]] = deque()
        """Events with the time of their arrival (ticks)."""
        self._waiting: dict[Hashable, tuple[Request, asyncio.Future[Result]]] = {}
        self._timers = GroupTimers(table, lambda key: self.post(TimerFired(key)))
        self._writing: asyncio.Task[None] | None = None
        self._rewrite = False
        self._dropping = Dropping()
        self._again: Timer | None = None
        self._closed = False
        self._why_closed = GroupError.COORDINATOR_NOT_AVAILABLE
        self.machine, effects = Group.restore(stored, table.settings, table.now())
        self._teller = GroupTeller(stored.name, self.machine)
        self._carry_out(effects)

    # Events in

    def request(self, event: Request) -> "asyncio.Future[Result]":
        """Queue a request; the future gets its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(refusal(event, self._why_closed))
            return future
        self._waiting[event.token] = (event, future)
        self.post(event)
        return future

    def post(self, event: Event) -> None:
        """Queue an event nobody waits for, and work through the queue unless a write is under way."""
        if self._closed:
            return
        if isinstance(event, DropTopic):
            self._dropping.begin(event)
        self._queue.append((event, self._table.clock.ticks_ms()))
        self._work()

    def _work(self) -> None:
        while self._queue and self._writing is None:
            event, arrived_ms = self._queue.popleft()
            effects = self.machine.handle(event, self._table.now(), arrived_ms)
            self._teller.look(self.machine, event)
            self._carry_out(effects)
        if self._writing is None:
            if self._again is None:
                self._dropping.end()
            self._table.settled(self)

    # Effects out

    def _carry_out(self, effects: list[Effect]) -> None:
        late = Late()
        for index, effect in enumerate(effects):
            if isinstance(effect, Persist):
                # In a context of its own: what is done after the write, and told, is not all of who asked for it.
                writing = self._write(effect, effects[index + 1 :])
                self._writing = asyncio.get_running_loop().create_task(writing, context=Context())
                break
            if index < AT_ONCE:
                self._act(effect)
            elif isinstance(effect, Reply):
                _, future = self._waiting.pop(effect.token, (None, None))
                if future is not None:
                    late.append((future, effect.result))
            elif isinstance(effect, SetTimer):
                self._timers.set_late(effect.key, effect.deadline_ms)
            else:
                self._act(effect)
        answer_soon(late)

    def _act(self, effect: Effect) -> None:
        match effect:
            case Reply(token, result):
                _, future = self._waiting.pop(token, (None, None))
                if future is not None and not future.done():
                    future.set_result(result)
            case SetTimer(key, deadline_ms):
                self._timers.set(key, deadline_ms)
            case CancelTimer(key):
                self._timers.cancel(key)

    async def _write(self, persist: Persist, rest: list[Effect]) -> None:
        changes: tuple[GroupChange, ...] = persist.changes
        try:
            before = self._snapshot.rewrite() if self._rewrite else ()
            await self._table.storage.save(self.name, (*before, *changes), self.view)
        except TopicError as error:
            self._start_over()
            _log.error("group not stored", group=self.name, reason=str(error))
        else:
            self._rewrite = False
            self._snapshot.apply(changes)
            if len(changes) > AT_ONCE:
                # As much again is done for as many members now: not in one piece.
                await asyncio.sleep(0)
            for change in changes:
                if isinstance(change, SavePositions):
                    self._table.mirror.show(self.name, change.positions)
            self._writing = None
            self._carry_out(rest)
        if self._writing is asyncio.current_task() or self._writing is None:
            self._writing = None
            if self._closed:
                # What it went on with: timers, of which nobody wants to hear any more.
                self._refuse_all()
                return
            self._work()

    def _start_over(self) -> None:
        """Storage refused: whoever waits is told so, and the machine goes back to what storage has."""
        self._refuse_all()
        # The write may have happened all the same: the next one says everything anew.
        self._rewrite = True
        self._writing = None
        self.machine, effects = Group.restore(self._snapshot.stored, self._table.settings, self._table.now())
        self._teller = GroupTeller(self.name, self.machine)
        self._carry_out(effects)
        if self._dropping:
            clock = self._table.clock
            self._again = clock.call_at(clock.ticks_ms() + _AGAIN_MS, self._drop_again)

    def _drop_again(self) -> None:
        self._again = None
        for drop in self._dropping.end():
            if not self._table.coordination.has_again(drop):
                self.post(drop)

    def _call_off(self) -> None:
        self._timers.cancel_all()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _refuse_all(self) -> None:
        """Call every timer off, and tell whoever waits that the coordinator is not available."""
        self._call_off()
        for request, future in self._waiting.values():
            if not future.done():
                future.set_result(refusal(request, self._why_closed))
        self._waiting.clear()
        self._queue.clear()

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
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
        return self._snapshot.nothing and not (self._waiting or self._timers or self._queue or self._rewrite)

    def hand_over(self) -> None:
        """Another broker coordinates it from now on. What is under way to storage lands, or is refused there."""
        self._closed = True
        self._why_closed = GroupError.NOT_COORDINATOR
        self._refuse_all()

    async def close(self) -> None:
        """Take no more events, refuse whoever waits, and wait for a write under way."""
        self._closed = True
        self._refuse_all()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def stop(self) -> None:
        """Cancel every timer and drop what waits."""
        self._call_off()
        for _, future in self._waiting.values():
            future.cancel()
        self._waiting.clear()


class GroupTable:
    """Every group of this server."""

    def __init__(
        self,
        storage: GroupStorage,
        clock: Clock,
        settings: GroupSettings,
        partition_of: PartitionOf,
        coordination: Coordination | None = None,
    ) -> None:
        self.coordination = coordination or of_one_server()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._loading_all: asyncio.Task[None] | None = None
        self._deleted_meanwhile: dict[str, list[DropTopic]] = {}
        """Group that is being loaded -> topics that were deleted since its loading began."""
        self.storage = storage
        self.clock = clock
        self.settings = settings
        self.partition_of = partition_of
        self.mirror = Mirror(partition_of)
        self._runners: dict[str, Runner] = {}
        self._refusing = False
        self.firing = Firing()
        self.doubted_ms: int | None = None
        """When this server was last in doubt about its groups (ticks): it refused somebody, or put a timer off."""
        self._adopted_ms: int | None = None
        """When the present view was adopted (ticks)."""

    def now(self) -> Now:
        """The time, as groups' machines are told it."""
        return Now(self.clock.now_ms(), self.clock.ticks_ms())

    async def load(self) -> int:
        """Bring the stored groups back; how many there were. Positions in topics that are gone are dropped.

        Where there are other brokers they come soon, in the background, as far as they are this server's.
        """
        if self.coordination.shared:
            self.adopt()
            return 0
        stored = await self.storage.load()
        for group in stored:
            runner = self._runners[group.name] = Runner(group, self)
            # A crash may have come between a topic's deletion and that of the positions in it.
            # One that is there with fewer partitions is another one, or has lost some: the rest stays.
            names = {place.topic for place in group.positions} | {section.topic for section in group.balanced}
            gone = {name for name in names if not self.coordination.has(name)}
            for drop in self.coordination.outlived(group, gone):
                runner.post(drop)
        return len(stored)

    # Other brokers

    def in_doubt(self) -> bool:
        """Whether somebody may have taken its groups over by now."""
        if doubted := not self.coordination.certain:
            self.doubted_ms = self.clock.ticks_ms()
        return doubted

    def moved_lately(self) -> bool:
        """Whether a group that is not here may have been until a moment ago, so that its members do not know yet."""
        now_ms = self.clock.ticks_ms()
        return self.in_doubt() or (self._adopted_ms is not None and now_ms < self._adopted_ms + _LATELY_MS)

    def adopt(self) -> None:
        """Go by another view from now on: give up the groups that are others' now, take over those that are ours.

        Where this server has missed a view, others may have had any of them: what they stored is loaded.
        """
        self._adopted_ms = self.clock.ticks_ms()
        number, unbroken = self.coordination.number, self.coordination.unbroken
        for name, runner in tuple(self._runners.items()):
            if unbroken and self.coordination.owns(name):
                runner.view = number
            else:
                del self._runners[name]
                runner.hand_over()
                self.storage.forget(name)
        if self._loading_all is not None:
            self._loading_all.cancel()
        self._loading_all = asyncio.get_running_loop().create_task(
            take_over_all(self.storage, self.coordination.owns, self.ready, self.clock), name="groups"
        )

    async def ready(self, name: str) -> GroupError | None:
        """Return once a group can be asked here; why it cannot be, otherwise."""
        coordination = self.coordination
        if not coordination.shared:
            return None
        if not coordination.owns(name) or self.in_doubt():
            return GroupError.NOT_COORDINATOR
        if name in self._runners:
            return None
        loading = self._loads.get(name)
        if loading is None:
            loading = self._loads[name] = asyncio.get_running_loop().create_task(self._take_over(name))
            loading.add_done_callback(lambda _: self._loads.pop(name, None))
            loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited may be gone
        number = coordination.number
        try:
            await asyncio.shield(loading)
        except TopicError:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return None if number == coordination.number else GroupError.COORDINATOR_NOT_AVAILABLE

    async def _take_over(self, name: str) -> None:
        """Load a group as its coordinator, if there is one. Raises TopicError."""
        number = self.coordination.number
        assert number is not None
        # Of one that was there when it was asked for, or is there again, nobody tells a second time.
        deleted: list[DropTopic] = []
        self._deleted_meanwhile[name] = deleted
        try:
            stored = await self.storage.load_one(name, number)
            gone = await self.coordination.gone(stored)
            if self.coordination.number != number or not self.coordination.owns(name):
                # It may be another's by now; who still wants it takes it over by the present view.
                raise StorageUnavailable("the view has changed")
        except TopicError:
            # Its members' fetches would be taken for those of members here.
            self.storage.forget(name)
            raise
        finally:
            del self._deleted_meanwhile[name]
        if not is_nothing(stored):
            runner = self._runners[name] = Runner(stored, self)
            for drop in gone + deleted:
                runner.post(drop)

    def new_member_id(self, client_id: str) -> str:
        """A member id nobody has had: the client's id and a random part, as Kafka makes them."""
        return f"{client_id}-{uuid4()}"

    def runner(self, name: str) -> Runner | None:
        """The runner of a group that is known."""
        return self._runners.get(name)

    def runners(self) -> Iterable[Runner]:
        """Every group's runner, in name order."""
        return [self._runners[name] for name in sorted(self._runners)]

    def runner_or_new(self, name: str) -> Runner:
        """A group's runner; a new group's leaves no trace until something is stored.

        Where there are other brokers, `ready` comes right before.
        """
        runner = self._runners.get(name)
        if runner is None:
            empty = StoredGroup(name=name, header=None, members=(), positions={})
            runner = self._runners[name] = Runner(empty, self)
        return runner

    async def request(self, group: str, event: Request) -> Result:
        """Send a request to a group and wait for its result. A group that leaves no trace is forgotten again."""
        if not group and not isinstance(event, Commit):
            return refusal(event, GroupError.INVALID_GROUP_ID)
        if isinstance(event, Commit):
            # Before the first wait: what it says is of the topics that there are now.
            event = self.coordination.stamped(event)
        if self.coordination.shared:
            refused = await self.ready(group)
            if refused is not None:
                return refusal(event, refused)
        if isinstance(event, Join | Commit) and not self.has_room_for(group):
            return refusal(event, GroupError.POLICY_VIOLATION)
        if not isinstance(event, Commit):
            return await self.runner_or_new(group).request(event)
        event, refusals = self.coordination.still_there(event)
        result = await self.runner_or_new(group).request(event)
        if refusals and isinstance(result, CommitResult):
            result = structs.replace(result, partitions={**result.partitions, **refusals})
        return result

    def has_room_for(self, group: str) -> bool:
        """Whether a group exists or may be made; the first refusal of several in a row has a line in the log."""
        has_room = group in self._runners or len(self._runners) < self.settings.max_groups
        if not has_room and not self._refusing:
            _log.error("new groups are refused", groups=len(self._runners), setting="headrace.max.groups")
        self._refusing = not has_room
        return has_room

    def settled(self, runner: Runner) -> None:
        """A runner has nothing to do: forget it if its group is nothing."""
        if runner.idle_and_empty and self._runners.get(runner.name) is runner:
            del self._runners[runner.name]

    async def drop_all(self) -> None:
        """Delete every group, whoever is in it: members are told that their coordinator is not available.

        Raises:
            StorageUnavailable, Fenced.
        """
        for name, runner in tuple(self._runners.items()):
            await runner.close()
            await self.storage.save(name, [DropGroup()])
            if self._runners.get(name) is runner:
                del self._runners[name]

    async def topic_deleted(self, drop: DropTopic, pace: Pace) -> None:
        """Positions in a deleted topic go; a group may have as many as there were partitions."""
        for deleted in self._deleted_meanwhile.values():
            deleted.append(drop)
        async for runner in pace.each(tuple(self._runners.values())):
            runner.post(drop)

    def positions(self, group: str) -> Mapping[TopicPartition, Position]:
        """Committed positions, those that are durable; empty for a group that does not exist."""
        runner = self._runners.get(group)
        return runner.positions if runner is not None else {}

    def exists(self, group: str) -> bool:
        """Whether the group is known."""
        return group in self._runners

    def size(self, group: str) -> int:
        """About how many bytes a description of the group takes; 0 for one that does not exist."""
        runner = self._runners.get(group)
        return 0 if runner is None else runner.machine.classic.described_bytes

    def names(self) -> list[str]:
        """All groups, sorted."""
        return sorted(self._runners)

    def describe(self, group: str) -> GroupDescription | None:
        """The group as tools see it, None when there is none."""
        runner = self._runners.get(group)
        return runner.machine.describe() if runner is not None else None

    def describe_all(self) -> Iterable[GroupDescription]:
        """Every group, in name order."""
        return [self._runners[name].machine.describe() for name in sorted(self._runners)]

    async def stop(self) -> None:
        """Stop the timers; what is stored stays."""
        if self._loading_all is not None:
            self._loading_all.cancel()
        for runner in self._runners.values():
            runner.stop()
        await self.mirror.settle()
