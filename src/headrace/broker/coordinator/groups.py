"""Consumer groups in the running server: which of them are here, and what is asked of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from uuid import uuid4

import structlog
from msgspec import structs

from headrace.aio.concurrency import in_slices
from headrace.aio.retry import retry
from headrace.aio.single_flight import SingleFlight
from headrace.broker.coordinator.group_memory import GroupMemory
from headrace.broker.coordinator.offset_mirror import Mirror, PartitionOf
from headrace.broker.coordinator.ownership import Coordination, of_one_server
from headrace.broker.coordinator.runner import Runner
from headrace.broker.coordinator.timers import Firing
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.broker.runtime.scheduler import CooperativeScheduler, TimeSlice
from headrace.groups.description import GroupDescription
from headrace.groups.effects import CommitResult, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, Join, Now, Request
from headrace.groups.model import (
    DropGroup,
    GroupSettings,
    Position,
    StoredGroup,
    TopicPartition,
    is_nothing,
)
from headrace.topics.errors import StorageUnavailable, TopicError

# Takes over every stored group of a broker that has become a coordinator: their members' time runs from then on.
_AT_ONCE = 64
_AGAIN_MS, _SELDOM_MS = 250, 1_000
"""How soon groups are tried again that could not be taken over: at first, and at last."""
_log = structlog.get_logger("headrace.broker.coordinator")


async def take_over_all(
    storage: GroupStorage, owns: Callable[[str], bool], ready: Callable[[str], Awaitable[object]], clock: Clock
) -> None:
    """Try until all are taken over, or are another broker's.

    Who has just joined is in doubt until its next heartbeat, and a shard may be away: none is left out for that.

    Args:
        storage: knows the names of all groups.
        owns: whether a group is this broker's.
        ready: takes a group over; answers why it cannot be, None: it is.
        clock: its ticks say when to try again.
    """
    again = backoff(clock, _AGAIN_MS, _SELDOM_MS)
    names = await retry(storage.names, TopicError, again)
    while names := [name for name in names if owns(name)]:
        later: list[str] = []
        async for part in in_slices(names, lambda name: _has_to_wait(name, ready), _AT_ONCE):
            later += [name for name, has_to_wait in part if has_to_wait]
            if all(has_to_wait for _, has_to_wait in part):
                await again.pause()
        names = later


async def _has_to_wait(name: str, ready: Callable[[str], Awaitable[object]]) -> bool:
    """Take a group over if that can be; whether it is to be tried again."""
    try:
        return await ready(name) is not None
    except Exception:  # the others are to be taken over all the same
        _log.exception("a group could not be taken over: it is tried again when somebody asks", group=name)
        return False


_LATELY_MS = 10_000
"""Within that a member's heartbeat has told it to look for the coordinator anew: Kafka's default is one in 3 s."""


LONGEST_NAME = 1_024
"""Bytes of a new group's name (Kafka: 32 767): all names of a server are kept, sorted and listed together."""


_VIEW_CHANGED = "another broker may coordinate it by now"


class Unready(Exception):
    """A group cannot be asked at this server."""

    def __init__(self, error: GroupError, why: str) -> None:
        super().__init__(why)
        self.error = error


class GroupTable:
    """Every group of this server."""

    def __init__(
        self,
        storage: GroupStorage,
        clock: Clock,
        settings: GroupSettings,
        partition_of: PartitionOf,
        coordination: Coordination | None = None,
        lane: CooperativeScheduler | None = None,
        memory: GroupMemory | None = None,
    ) -> None:
        self.memory = memory or GroupMemory()
        self.lane = lane or CooperativeScheduler()
        self.coordination = coordination or of_one_server()
        self._loads = SingleFlight(self._take_over, joins=True)
        self._loading_all: asyncio.Task[None] | None = None
        self._deleted_meanwhile: dict[str, list[DropTopic]] = {}
        """Group that is being loaded -> topics that were deleted since its loading began."""
        self.storage = storage
        self.clock = clock
        self.settings = settings
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
        try:
            await self.bring(name)
        except Unready as away:
            return away.error
        return None

    async def bring(self, name: str) -> None:
        """Return once a group can be asked here. Raises Unready."""
        coordination = self.coordination
        if not coordination.shared:
            if self.storage.is_offline(name):
                await self._try_again(name)
            return
        if not coordination.owns(name) or self.in_doubt():
            raise Unready(GroupError.NOT_COORDINATOR, "another broker coordinates it")
        if name in self._runners:
            return
        number = coordination.number
        try:
            await self._loads.get(name)
        except TopicError as error:
            raise Unready(GroupError.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if number != coordination.number:
            raise Unready(GroupError.COORDINATOR_NOT_AVAILABLE, _VIEW_CHANGED)

    async def _try_again(self, name: str) -> None:
        """Load a group that could not be read at the start. Raises Unready while that is so."""
        try:
            stored = await self.storage.load_one(name)
        except TopicError as error:
            raise Unready(GroupError.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if name not in self._runners and not is_nothing(stored):
            self._runners[name] = Runner(stored, self)

    async def drop_offline(self, name: str) -> bool:
        """Delete a group whose keys hold something else; whether it was one. Raises TopicError."""
        if not self.storage.is_offline(name):
            return False
        await self.storage.drop_offline(name)
        return True

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
                raise StorageUnavailable(_VIEW_CHANGED)
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

    async def request(self, group: str, event: Request, given_up: Callable[[], bool] = lambda: False) -> Result:
        """Send a request to a group and wait for its result. A group that leaves no trace is forgotten again.

        Args:
            group: its name.
            event: the request.
            given_up: asked once the group is there: whether nobody wants it any more. What was asked for since then
                may have come to the group before it.
        """
        if not group and not isinstance(event, Commit):
            return refusal(event, GroupError.INVALID_GROUP_ID)
        if isinstance(event, Commit):
            # Before the first wait: what it says is of the topics that there are now.
            event = self.coordination.stamped(event)
        refused = await self.ready(group)
        if refused is None and given_up():
            refused = GroupError.COORDINATOR_NOT_AVAILABLE
        if refused is not None:
            return refusal(event, refused)
        if isinstance(event, Join | Commit) and group not in self._runners and len(group.encode()) > LONGEST_NAME:
            return refusal(event, GroupError.INVALID_GROUP_ID)
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

    async def topic_deleted(self, drop: DropTopic, pace: TimeSlice) -> None:
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
        await self.mirror.stop()
