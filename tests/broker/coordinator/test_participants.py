"""Participants of transactions on three brokers: who is asked, what counts as ended, and what is asked again."""

from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.participants import MOST_BYTES, ClusterParticipants
from headrace.broker.coordinator.remote_transactions import RemoteAnswer, RemoteEnd, RemoteEnded, RemoteQuestion, packed
from headrace.broker.topics.live import LiveTopic
from headrace.groups.effects import EndOffsetsResult
from headrace.groups.errors import GroupError
from headrace.groups.events import EndOffsets
from headrace.membership.view import FEATURES, Member, View
from headrace.testing.clock import ManualClock
from headrace.topics.errors import NotLeader, StorageUnavailable
from headrace.transactions.effects import EndParticipants
from headrace.transactions.model import GroupId, Participant, PartitionId

TOPIC, MOVED, GONE = UUID(int=1), UUID(int=2), UUID(int=3)


class NativePartition:
    """A partition without a log: it ends at once where it is led."""

    log = None

    def __init__(self, leader: int | None) -> None:
        self.leader = leader

    def check_led(self) -> None:
        if self.leader is not None:
            raise NotLeader("another broker leads it")


class Cluster:
    """Broker 1 of three, with what the others respond."""

    def __init__(self) -> None:
        self.ownership = Ownership(1)
        members = [
            Member(node_id=node, incarnation="a", process="", host="h", port=node, features=FEATURES)
            for node in (1, 2, 3)
        ]
        self.ownership.adopt(View(1, tuple(members)), inside=True)
        self.leaders: dict[PartitionId, int | None] = {}
        self.asked: list[tuple[int, list[Participant]]] = []
        self.away: dict[int, Exception] = {}
        self.left_out: set[Participant] = set()
        self.current = True
        self.loads: dict[UUID, int | None] = {}
        self.groups: list[str] = []
        self.group_error: GroupError | None = None
        self.connected = True
        self.participants = ClusterParticipants(
            self.ownership, "default", ManualClock(), lambda: self if self.connected else None
        )
        self.participants.connect(self, self.end_group)

    # Topics

    def named(self, name: str) -> LiveTopic:
        raise AssertionError("participants are found by topic ID, and ask no coordinator")

    def anywhere(self, topic_id: UUID) -> LiveTopic | None:
        found = {each.index: leader for each, leader in self.leaders.items() if each.topic_id == topic_id}
        return cast("Any", Topic(found)) if found else None

    async def end_group(self, name: str, event: EndOffsets) -> EndOffsetsResult:
        self.groups.append(name)
        return EndOffsetsResult(error=self.group_error)

    # Other brokers

    async def end(self, member: Member, call: RemoteEnd) -> RemoteEnded:
        some = call.participants.as_list()
        self.asked.append((member.node_id, some))
        if member.node_id in self.away:
            raise self.away[member.node_id]
        return RemoteEnded(packed([each for each in some if each not in self.left_out]), "not the leader")

    async def ask(self, member: Member, question: RemoteQuestion) -> RemoteAnswer:
        raise AssertionError("participants are found by topic ID, and ask no coordinator")

    async def is_current(self) -> bool:
        self.leaders |= {PartitionId(topic_id, 0): leader for topic_id, leader in self.loads.items()}
        return self.current

    async def calls(self, *participants: Participant) -> set[Participant]:
        call = EndParticipants(
            producer_id=7, epoch=0, commit=True, number=1, copies=1, version=1, participants=participants
        )
        return set(await self.participants.end(call))


class Topic:
    def __init__(self, leaders: dict[int, int | None]) -> None:
        self._leaders = leaders

    def partition(self, index: int) -> NativePartition:
        return NativePartition(self._leaders[index])


async def test_each_broker_ends_its_own_in_one_request() -> None:
    cluster = Cluster()
    places: list[Participant] = [PartitionId(TOPIC, index) for index in range(4)]
    cluster.leaders = dict(zip(cast("list[PartitionId]", places), (None, 2, 3, 2), strict=True))
    groups = [GroupId(f"group-{number}") for number in range(20)]
    assert await cluster.calls(*places, *groups) == {*places, *groups}
    assert sorted(node for node, _ in cluster.asked) == [2, 3]
    owner = {each: cluster.ownership.owner_of(f"group default/{each.name}") for each in groups}
    for node, some in cluster.asked:
        partitions = [each for each, leader in cluster.leaders.items() if leader == node]
        assert set(some) == {*partitions, *(each for each in groups if owner[each] == node)}
    assert set(cluster.groups) == {each.name for each in groups if owner[each] == 1}


async def test_only_what_a_broker_names_has_ended() -> None:
    cluster = Cluster()
    first, second, third = (PartitionId(TOPIC, index) for index in range(3))
    cluster.leaders = {first: 2, second: 2, third: 3}
    cluster.left_out = {second}
    cluster.away = {3: StorageUnavailable("away")}
    assert await cluster.calls(first, second, third) == {first}
    cluster.leaders |= {second: 3, third: None}
    cluster.away.clear()
    cluster.left_out.clear()
    assert await cluster.calls(second, third) == {second, third}, "the leader is looked up again"


@pytest.mark.parametrize("leader", [-1, 9])
async def test_a_partition_without_a_live_leader_is_asked_later(leader: int) -> None:
    cluster = Cluster()
    place = PartitionId(TOPIC, 0)
    cluster.leaders = {place: leader}
    assert await cluster.calls(place) == set()
    assert cluster.asked == []


async def test_an_unknown_topic_has_ended_only_if_the_metadata_is_current() -> None:
    cluster = Cluster()
    gone, moved = PartitionId(GONE, 0), PartitionId(MOVED, 0)
    cluster.loads = {MOVED: 2}
    cluster.current = False
    assert await cluster.calls(gone) == set()
    cluster.connected = False
    assert await cluster.calls(gone) == set()
    cluster.current = cluster.connected = True
    assert await cluster.calls(gone, moved) == {gone, moved}
    assert cluster.asked == [(2, [moved])]


async def test_a_single_broker_knows_its_topics() -> None:
    cluster = Cluster()
    cluster.ownership.view = None
    cluster.connected = False
    gone = PartitionId(GONE, 0)
    cluster.current = False
    assert await cluster.calls(gone) == {gone}


async def test_the_last_broker_may_not_know_what_a_dead_one_has_created() -> None:
    cluster = Cluster()
    gone, created = PartitionId(GONE, 0), PartitionId(MOVED, 0)
    me = cluster.ownership.member(1)
    assert me is not None
    cluster.ownership.adopt(View(2, (me,)), inside=True)
    assert not cluster.ownership.others
    cluster.current = False
    assert await cluster.calls(gone, created) == set()
    cluster.loads = {MOVED: None}
    cluster.current = True
    assert await cluster.calls(gone, created) == {gone, created}


async def test_another_broker_gets_what_has_ended_here() -> None:
    cluster = Cluster()
    led, other, unknown = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1), PartitionId(GONE, 0)
    cluster.leaders = {led: None, other: 3}
    call = RemoteEnd("default", 7, 0, True, 1, packed([led, other, unknown, GroupId("g")]))
    response = await cluster.participants.end_for_other(call)
    assert set(response.participants.as_list()) == {led, GroupId("g")}
    assert response.reason
    assert cluster.asked == [], "no further broker is asked"
    cluster.group_error = GroupError.NOT_COORDINATOR
    response = await cluster.participants.end_for_other(call)
    assert response.participants.as_list() == [led]


async def test_many_participants_take_several_messages() -> None:
    cluster = Cluster()
    some = [PartitionId(TOPIC, index) for index in range(MOST_BYTES // 50)]
    cluster.leaders = dict.fromkeys(some, 2)
    assert await cluster.calls(*some) == set(some)
    assert len(cluster.asked) == 2
    assert sum(len(each) for _, each in cluster.asked) == len(some)
