"""Coordination of consumer groups in the running server."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from uuid import uuid4

import structlog
from msgspec import structs

from headrace.broker.coordinator.assignments import Assignments
from headrace.broker.coordinator.coordination import Coordination, of_one_server, topics_of
from headrace.broker.coordinator.coordinator import Coordinator, Unready
from headrace.broker.coordinator.event_log import MemberEvents
from headrace.broker.coordinator.group_runner import GroupMemory, GroupRunner, OffsetMirror, PartitionOf
from headrace.broker.coordinator.open_transactions import OpenTransactions, PendingOffsetCheck
from headrace.broker.coordinator.pattern_subscriptions import PatternSubscriptions
from headrace.broker.coordinator.subscribed_topics import NoTopics, SubscribedTopics
from headrace.broker.coordinator.topic_watch import TopicWatch
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler, TimeSlice
from headrace.groups.configs import Configs
from headrace.groups.consumers.events import ConsumerHeartbeat, Resolved, TopicsChanged
from headrace.groups.description import GroupDescription
from headrace.groups.effects import CommitResult, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, EndOffsets, Join, Request, TxnOffsetCommit
from headrace.groups.kinds import KindGroup
from headrace.groups.model import (
    JOIN_EPOCH,
    DropGroup,
    GroupKind,
    GroupSettings,
    OffsetAndMetadata,
    StoredGroup,
    TopicPartition,
    is_nothing,
)
from headrace.groups.sharing.events import AlterShareOffsets, ShareHeartbeat
from headrace.machines.effects import Now

_log = structlog.get_logger("headrace.broker.coordinator")

_SOON_MS = 100
"""Shortest interval of heartbeats of a member whose partitions are about to change."""
_SHORTEST_MS = 300
"""Shortest interval of others (Kafka: 5 s)."""
LONGEST_NAME = 1_024
"""Maximum bytes of a new group's name (Kafka: 32,767). All names are kept in memory and listed together."""


class GroupCoordinator(Coordinator[GroupRunner]):
    """All groups of this server."""

    noun = "group"

    def __init__(
        self,
        storage: GroupStorage,
        clock: Clock,
        settings: GroupSettings,
        partition_of: PartitionOf,
        coordination: Coordination | None = None,
        lane: CooperativeScheduler | None = None,
        memory: GroupMemory | None = None,
        transactions: OpenTransactions | None = None,
        topics: SubscribedTopics | None = None,
        configs: Configs | None = None,
    ) -> None:
        self.coordination = coordination or of_one_server()
        super().__init__(clock, lane or CooperativeScheduler(), self.coordination)
        self.memory = memory or GroupMemory()
        self.storage = storage
        self.settings = settings
        self.mirror = OffsetMirror(partition_of)
        self._pending_offsets = PendingOffsetCheck(clock, transactions)
        self.member_events = MemberEvents(clock.now_ms)
        self._deleted_meanwhile: dict[str, list[DropTopic]] = {}
        """Group being loaded -> topics deleted since the load began."""
        self._refusing = False
        self.topics = topics or NoTopics()
        self.configs = Configs() if configs is None else configs
        self.patterns = PatternSubscriptions(
            self.topics.names,
            self.topics.facts,
            self.topics.may_describe,
            self._post,
            clock,
            self.lane,
            settings.newer.consumer_regex_refresh_interval_ms,
        )
        self.assignments = Assignments()
        self.watch = TopicWatch(self.topics.facts, self.topics.stored_facts, self._here.values, self.lane)

    def _post(self, group: str, event: Resolved) -> None:
        runner = self._here.get(group)
        if runner is not None:
            runner.post(event)

    def topic_changed(self, name: str) -> None:
        """See `TopicWatch.changed`."""
        self.watch.changed(name)
        self.patterns.topics_changed((name,))

    def heartbeat_interval_ms(self, group: str, kind: GroupKind, *, waits: bool) -> int:
        """Return the interval of a member's heartbeats (decision 0142).

        All members send about a thousand per second, or fewer, and twice as many while they wait. `waits`: the member's
        partitions are about to change.
        """
        config = self.configs.of(group)
        if kind is GroupKind.SHARE:
            longest_ms, fixed = config.share_heartbeat_interval_ms, config.share_heartbeat_fixed
        else:
            longest_ms, fixed = config.consumer_heartbeat_interval_ms, config.consumer_heartbeat_fixed
        if fixed:
            return longest_ms
        members = self.memory.newer_members
        return min(max(_SOON_MS, members // 2) if waits else max(_SHORTEST_MS, members), longest_ms)

    def now(self) -> Now:
        """Return the time for state machines."""
        return Now(self.clock.now_ms(), self.clock.ticks_ms())

    async def load(self) -> int:
        """Load the stored groups, in a cluster in the background. Return their number.

        Drops offsets of deleted topics.
        """
        if self.coordination.shared:
            self.adopt()
            return 0
        stored = await self.storage.load()
        for group in stored:
            runner = self.keep(GroupRunner(group, self))
            # A server may crash between the deletions of a topic and its offsets. Offsets of missing partitions in an
            # existing topic remain.
            gone = {name for name in topics_of(group) if not self.coordination.has(name)}
            for drop in self.coordination.outlived(group, gone):
                runner.drop(drop)
            _notify(runner, (await self.watch.load(group))())
            self._pending_offsets.begin(runner)
        return len(stored)

    async def stored_names(self) -> list[str]:
        """See `Coordinator`."""
        return await self.storage.names()

    async def prepare_alone(self, name: str) -> None:
        """See `Coordinator`."""
        if not self.storage.is_offline(name):
            return
        stored = await self.storage.load_one(name)
        first = await self.watch.load(stored)
        if name not in self._here and not is_nothing(stored):
            runner = self.keep(GroupRunner(stored, self))
            _notify(runner, first())
            self._pending_offsets.begin(runner)

    async def load_one(self, name: str, number: int) -> Callable[[], GroupRunner | None]:
        """See `Coordinator`."""
        # A deletion that was already reported is not reported again.
        deleted: list[DropTopic] = []
        self._deleted_meanwhile[name] = deleted
        try:
            stored = await self.storage.load_one(name, number)
            gone = await self.coordination.gone(stored)
            first = await self.watch.load(stored)
        finally:
            del self._deleted_meanwhile[name]

        def make() -> GroupRunner | None:
            if is_nothing(stored):
                return None
            runner = self.keep(GroupRunner(stored, self))
            for drop in gone + deleted:
                runner.drop(drop)
            _notify(runner, first())
            self._pending_offsets.begin(runner)
            return runner

        return make

    def forget(self, name: str) -> None:
        """Drop a group and its fetch state, which must not apply to later members."""
        self.storage.forget(name)
        self.patterns.forget(name)

    async def ready(self, name: str) -> GroupError | None:
        """Return the error if a group cannot be made available here."""
        try:
            await self.bring(name)
        except Unready as away:
            return GroupError.NOT_COORDINATOR if away.moved else GroupError.COORDINATOR_NOT_AVAILABLE
        return None

    async def drop_offline(self, name: str) -> bool:
        """Delete a group whose keys hold foreign data. Return whether it did. Raises TopicError."""
        if not self.storage.is_offline(name):
            return False
        await self.storage.drop_offline(name)
        return True

    def new_member_id(self, client_id: str) -> str:
        """Return a new id as in Kafka: the client id and a random part."""
        return f"{client_id}-{uuid4()}"

    def runner_or_new(self, name: str) -> GroupRunner:
        """Return a group's runner.

        A new group leaves no trace until something is stored. Call `ready` immediately before.
        """
        runner = self._here.get(name)
        if runner is None:
            empty = StoredGroup(name=name, header=None, members=(), positions={})
            runner = self.keep(GroupRunner(empty, self))
        return runner

    async def request(self, group: str, event: Request, given_up: Callable[[], bool] = lambda: False) -> Result:
        """Send a request to a group.

        `given_up`: whether the client abandoned it while the group was loaded, so that newer requests may be ahead.
        """
        if not group and not isinstance(event, Commit | EndOffsets):
            return refusal(event, GroupError.INVALID_GROUP_ID)
        if isinstance(event, Commit):
            # Before the first wait: it refers to the current topics.
            event = self.coordination.stamped(event)
        refused = await self.ready(group)
        if refused is None and given_up():
            refused = GroupError.COORDINATOR_NOT_AVAILABLE
        if refused is not None:
            return refusal(event, refused)
        if _may_create(event) and (refused := self._no_new(group)) is not None:
            return refusal(event, refused)
        if not isinstance(event, Commit):
            return await self.runner_or_new(group).request(event)
        event, refusals = self.coordination.still_there(event)
        return _with_refusals(await self.runner_or_new(group).request(event), refusals)

    def _no_new(self, group: str) -> GroupError | None:
        if group not in self._here and len(group.encode()) > LONGEST_NAME:
            return GroupError.INVALID_GROUP_ID
        return None if self.has_room_for(group) else GroupError.POLICY_VIOLATION

    async def commit_in_transaction(
        self,
        group: str,
        event: TxnOffsetCommit,
        verify: Callable[[], Awaitable[int]],
        given_up: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Store pending offsets once the transaction's coordinator has verified them. Raises what `verify` raises.

        `verify` returns the number of the transaction, to which the group has been added. If a transaction of the
        producer ends here during the verification, the result is COORDINATOR_NOT_AVAILABLE: the client tries again.
        """
        if not group:
            return refusal(event, GroupError.INVALID_GROUP_ID)
        event = self.coordination.stamped(event)
        refused = await self.ready(group)
        if refused is None:
            refused = self._no_new(group)
        if refused is not None:
            return refusal(event, refused)
        runner = self.runner_or_new(group)
        guard = runner.guard(event.producer_id)
        try:
            number = await verify()
            refused = await self.ready(group)
            if refused is None and (given_up() or self._here.get(group) is not runner):
                refused = GroupError.COORDINATOR_NOT_AVAILABLE
            if refused is not None:
                return refusal(event, refused)
            kept, refusals = self.coordination.still_there(structs.replace(event, number=number, guard=guard))
            return _with_refusals(await runner.request(kept), refusals)
        finally:
            del guard
            if self._here.get(group) is runner:
                self.settled(runner)

    def has_room_for(self, group: str) -> bool:
        """Whether a group exists or may be created. Logs the first of consecutive refusals."""
        has_room = group in self._here or len(self._here) < self.settings.max_groups
        if not has_room and not self._refusing:
            _log.error("new groups are rejected: limit reached", groups=len(self._here), setting="headrace.max.groups")
        self._refusing = not has_room
        return has_room

    def settled(self, runner: GroupRunner) -> None:
        """Drop the runner of an empty group."""
        if runner.idle_and_empty:
            self.drop(runner)
            self.patterns.forget(runner.name)

    async def drop_all(self) -> None:
        """Delete every group. Members receive COORDINATOR_NOT_AVAILABLE.

        Raises StorageUnavailable, Fenced.
        """
        for name, runner in tuple(self._here.items()):
            await runner.close()
            await self.storage.save(name, [DropGroup()])
            self.drop(runner)
            self.patterns.forget(name)

    async def topic_deleted(self, drop: DropTopic, pace: TimeSlice) -> None:
        """Drop committed offsets of a deleted topic."""
        for deleted in self._deleted_meanwhile.values():
            deleted.append(drop)
        async for runner in pace.each(tuple(self._here.values())):
            runner.drop(drop)

    def unstable(self, group: str) -> Collection[TopicPartition]:
        """Return the partitions with pending offsets. Read this before `positions`: a transaction may end."""
        runner = self._here.get(group)
        return () if runner is None else runner.unstable()

    def positions(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return durable committed offsets. Empty for an unknown group."""
        runner = self._here.get(group)
        return runner.positions if runner is not None else {}

    def exists(self, group: str) -> bool:
        """Whether the group is known."""
        return group in self._here

    def size(self, group: str) -> int:
        """Return the approximate bytes of a group's description."""
        runner = self._here.get(group)
        if runner is None:
            return 0
        machine = runner.machine
        return machine.classic.described_bytes if machine.part is None else machine.member_bytes

    def part(self, group: str) -> KindGroup | None:
        """Return the part of a group with members of a newer kind, if there is one."""
        runner = self._here.get(group)
        return None if runner is None else runner.machine.part

    def state_name(self, group: str) -> str:
        """Return the state of a known group with Kafka's name."""
        return self._here[group].machine.state_name

    def check_fetch(self, group: str, member_id: str | None, epoch: int) -> GroupError | None:
        """Return why a fetch of committed offsets by a member is rejected."""
        part = self.part(group)
        return None if part is None or not part.size else part.check_fetch(member_id, epoch)

    def describe(self, group: str) -> GroupDescription | None:
        """Return a known group's description."""
        runner = self._here.get(group)
        return runner.machine.describe() if runner is not None else None

    def describe_all(self) -> Iterable[GroupDescription]:
        """Return all descriptions in name order."""
        return [self._here[name].machine.describe() for name in sorted(self._here)]

    async def stop(self) -> None:
        """See `Coordinator.stop`."""
        await super().stop()
        await self.patterns.stop()
        await self.watch.stop()
        await self.assignments.stop()
        await self._pending_offsets.stop()
        await self.mirror.stop()


def _may_create(request: Request) -> bool:
    """Return whether a request may create a group, without those of instances."""
    if isinstance(request, ConsumerHeartbeat | ShareHeartbeat):
        return request.member_epoch == JOIN_EPOCH
    return isinstance(request, Join | Commit | AlterShareOffsets)


def _notify(runner: GroupRunner, notice: TopicsChanged | None) -> None:
    if notice is not None:
        runner.post(notice)


def _with_refusals(result: Result, refusals: Mapping[TopicPartition, GroupError | None]) -> Result:
    if refusals and isinstance(result, CommitResult):
        return structs.replace(result, partitions={**result.partitions, **refusals})
    return result
