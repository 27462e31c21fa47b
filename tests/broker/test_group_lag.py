"""Members and their partitions are listed in pieces, since a group may have thousands of members."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.config.settings import BrokerSettings
from headrace.broker.group_lag import Share, plan_reset, reset, shares
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.groups.classic.states import GroupState
from headrace.groups.consumer_subscription import assignment
from headrace.groups.description import GroupDescription, MemberDescription
from headrace.groups.model import TopicPartition
from headrace.groups.offsets import Target
from headrace.testing.clock import ManualClock


def described(assignments: Iterator[bytes]) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member_id=f"m{number:05}",
            instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            metadata=b"",
            assignment=assigned,
        )
        for number, assigned in enumerate(assignments)
    )
    return GroupDescription(
        name="g",
        state=GroupState.STABLE,
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader=None,
        members=members[::-1],
    )


async def turns_while(work: "asyncio.Future[list[Share]]") -> int:
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_members_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 members with a hundred partitions each delayed every other client by a quarter of a second."""
    monkeypatch.setattr("headrace.broker.runtime.scheduler.SLICE_S", 0)
    found = described(assignment({"u": [number], "t": [3, 1]}) for number in range(300))
    reading = asyncio.ensure_future(shares(found, CooperativeScheduler().pace()))
    assert await turns_while(reading) >= 300
    told = reading.result()
    assert [each.member for each in told] == [f"m{number:05}" for number in range(300)]
    assert told[7].partitions == (TopicPartition("t", 1), TopicPartition("t", 3), TopicPartition("u", 7))
    assert told[7].host == "127.0.0.1"


async def test_one_member_with_very_many_partitions_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.runtime.scheduler.SLICE_S", 0)
    found = described(iter([assignment({"t": range(100_000)})]))
    reading = asyncio.ensure_future(shares(found, CooperativeScheduler().pace()))
    assert await turns_while(reading) >= 200
    [share] = reading.result()
    assert len(share.partitions) == 100_000


async def test_what_is_no_assignment_is_no_partitions() -> None:
    [share] = await shares(described(iter([b"no assignment"])), CooperativeScheduler().pace())
    assert share.partitions == ()


async def test_a_reset_is_of_the_topics_that_there_were_when_it_was_planned(storage: MemoryStorage) -> None:
    """A topic that is created again has other records at these offsets."""
    clusters = VirtualClusters(
        storage,  # type: ignore[arg-type]
        BrokerSettings.of({}),
        ManualClock(),
        cluster_id="c",
        stream_of=lambda _, *place: ":".join(map(str, place)),
    )
    broker = clusters.default
    for name in ("stays", "made-again"):
        await broker.topics.create(name, 1, {})
    moves = [
        move for name in ("stays", "made-again") for move in await plan_reset(broker, "g", Target(latest=True), name)
    ]
    await broker.topics.delete("made-again")
    await broker.topics.create("made-again", 1, {})
    assert await reset(broker, "g", moves) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert {place.topic for place in broker.groups.positions("g")} == {"stays"}
    await clusters.stop()
