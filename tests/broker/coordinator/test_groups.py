"""The runner of a group: order of effects, durability before answers, storage that fails. The rules: tests/groups."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import cast
from uuid import UUID

import msgspec
import pytest
import structlog
from tests.broker.members import PARTITION, commit, join, stable
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.group_runner import OffsetMirror
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import CommitResult, DeleteGroupResult, HeartbeatResult, JoinResult, Result
from headrace.groups.errors import GroupError
from headrace.groups.events import DeleteGroup, DropTopic, Heartbeat, Leave, Leaving
from headrace.groups.model import GroupSettings, OffsetAndMetadata, SaveOffsets, TopicPartition
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable


async def _very_many_join(table: GroupCoordinator, clock: ManualClock) -> "Sequence[asyncio.Future[Result]]":
    """A thousand members that are being answered."""
    joins = [msgspec.structs.replace(join(), token=object(), new_member_id=f"c-{each}") for each in range(1_000)]
    joining = [asyncio.ensure_future(table.request("g", each)) for each in joins]
    # A slow machine takes them in several slices of the event loop.
    while (group := table.describe("g")) is None or len(group.members) < len(joins):
        await asyncio.sleep(0)
    for _ in range(2):  # some of them were late for the first wait
        clock.advance(100)
    return joining


async def test_requests_given_up_before_they_reach_their_group_are_not_processed(table: GroupCoordinator) -> None:
    """Its client is gone, and may have committed more since."""
    told = await table.request("g", commit(7), lambda: True)
    assert isinstance(told, CommitResult)
    assert told.partitions == {PARTITION: GroupError.COORDINATOR_NOT_AVAILABLE}
    assert not table.exists("g")


async def test_very_many_members_are_answered_in_several_turns_of_the_loop(
    table: GroupCoordinator, clock: ManualClock
) -> None:
    """All answers of a large group in one turn of the loop would delay every other client."""
    joining = await _very_many_join(table, clock)
    answered = [0]
    while answered[-1] < len(joining):
        await asyncio.sleep(0)
        answered.append(sum(each.done() for each in joining))
    assert [later - before for before, later in pairwise(answered) if later != before] == [200] * 5
    results = [each.result() for each in joining]
    assert all(isinstance(each, JoinResult) and each.generation == 1 for each in results)


@pytest.mark.parametrize("how", ["handed over", "stopped"])
async def test_answers_that_wait_for_their_turn_come_though_the_group_is_given_up(
    table: GroupCoordinator, clock: ManualClock, how: str
) -> None:
    """Their content was decided and stored. A member that continues with it is redirected to another broker."""
    joining = await _very_many_join(table, clock)
    while not any(each.done() for each in joining):
        await asyncio.sleep(0)
    assert not all(each.done() for each in joining)
    runner = table.runner("g")
    assert runner is not None
    if how == "handed over":
        runner.hand_over()
    else:
        runner.stop()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*joining)
    assert all(isinstance(each, JoinResult) and each.generation == 1 for each in results)


async def test_a_commit_is_stored_before_it_is_answered_and_mirrored_after(
    table: GroupCoordinator, storage: MemoryStorage
) -> None:
    result = await table.request("g", commit(7))

    assert isinstance(result, CommitResult)
    assert result.partitions == {PARTITION: None}
    assert storage.groups.stored["g"].stored.positions[PARTITION].offset == 7
    await table.mirror.settle()
    assert storage.logs.mirrored == {("headrace:t:0", "g"): 7}


async def test_what_is_over_is_tried_again_a_second_after_storage_has_refused_it(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Not at once: a full disk would be filled up with lines of the log that say so."""
    await table.request("g", commit(7))
    storage.unavailable = True
    with structlog.testing.capture_logs() as lines:
        clock.advance(30 * 24 * 3_600_000)
        for _ in range(30):
            for _ in range(3):
                await asyncio.sleep(0)
            clock.advance(50)
    assert [line["event"] for line in lines] == ["group not stored"] * 2
    storage.unavailable = False
    clock.advance(1_000)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not table.exists("g")


async def test_a_commit_that_storage_refuses_is_answered_with_an_error_and_forgotten(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    joined = await stable(table, clock)
    storage.unavailable = True
    result = await table.request("g", commit(7, joined.generation, joined.member_id))

    assert isinstance(result, CommitResult)
    assert result.partitions == {PARTITION: GroupError.COORDINATOR_NOT_AVAILABLE}
    assert table.positions("g") == {}

    # The group itself goes on: its member is still in it, and the next commit is taken.
    storage.unavailable = False
    beat = await table.request(
        "g",
        Heartbeat(token=object(), generation=joined.generation, member_id=joined.member_id, instance_id=None),
    )
    assert beat == HeartbeatResult()
    await table.request("g", commit(8, joined.generation, joined.member_id))
    assert storage.groups.stored["g"].stored.positions[PARTITION].offset == 8
    assert [member.member_id for member in storage.groups.stored["g"].stored.members] == [joined.member_id]


async def test_a_stable_group_goes_on_after_a_restart(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition
) -> None:
    joined = await stable(table, clock)
    await table.request("g", commit(3, joined.generation, joined.member_id))
    await table.stop()

    again = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition)
    assert await again.load() == 1
    description = again.describe("g")
    assert description is not None
    assert (description.state, description.generation) == (GroupState.STABLE, joined.generation)
    assert again.positions("g")[PARTITION].offset == 3
    # No member returns: it is removed when its session ends.
    clock.advance(10_001)
    while description.state is not GroupState.EMPTY:
        await asyncio.sleep(0)
        description = again.describe("g")
        assert description is not None


async def test_asking_a_group_that_does_not_exist_leaves_no_group_behind(
    table: GroupCoordinator, storage: MemoryStorage
) -> None:
    beat = await table.request("g", Heartbeat(token=object(), generation=1, member_id="m", instance_id=None))

    assert beat == HeartbeatResult(error=GroupError.UNKNOWN_MEMBER_ID)
    assert not table.exists("g")
    assert list(table.describe_all()) == []
    assert not storage.groups.stored


async def test_requests_that_come_during_a_write_wait_for_their_turn(
    table: GroupCoordinator, storage: MemoryStorage
) -> None:
    results = await asyncio.gather(*(table.request("g", commit(offset)) for offset in range(20)))

    assert all(isinstance(result, CommitResult) and result.partitions[PARTITION] is None for result in results)
    assert storage.groups.stored["g"].stored.positions[PARTITION].offset == 19


async def test_positions_in_a_deleted_topic_go(table: GroupCoordinator, storage: MemoryStorage) -> None:
    await table.request("g", commit(5))
    await table.topic_deleted(DropTopic("t"), CooperativeScheduler().pace())
    while storage.groups.stored["g"].stored.positions:
        await asyncio.sleep(0)

    assert table.positions("g") == {}


async def test_positions_in_a_deleted_topic_go_though_storage_is_away(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    """The deletion is announced once. Without it, consumers of a new topic would begin at the old offset."""
    await table.request("g", commit(5))
    storage.unavailable = True
    await table.topic_deleted(DropTopic("t"), CooperativeScheduler().pace())
    for _ in range(3):
        await asyncio.sleep(0)
        clock.advance(2_000)
        assert table.positions("g") == {}
    assert storage.groups.stored["g"].stored.positions
    storage.unavailable = False
    while storage.groups.stored["g"].stored.positions:
        await asyncio.sleep(0)
        clock.advance(500)
    assert table.positions("g") == {}
    result = await table.request("g", commit(1))
    assert isinstance(result, CommitResult)
    assert table.positions("g")[PARTITION].offset == 1


async def test_positions_of_an_earlier_topic_are_gone_after_a_start(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition
) -> None:
    """A crash came between the deletion and the group's write, and the topic was made again."""
    old, new = UUID(int=1), UUID(int=2)
    await storage.groups.save("g", [SaveOffsets({PARTITION: OffsetAndMetadata(offset=5, topic_id=old)})])
    coordination = Coordination(Ownership(0), "default", lambda _: new, _no_topic)
    again = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition, coordination)
    await again.load()
    assert again.positions("g") == {}
    while storage.groups.stored["g"].stored.positions:
        await asyncio.sleep(0)


async def _no_topic(_: str) -> UUID | None:
    return None


async def test_a_deleted_topic_of_many_groups_delays_no_client(
    table: GroupCoordinator, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group may have thousands of positions in it: 20 groups of 9 000 took 1.6 s in one go."""
    monkeypatch.setattr("headrace.broker.runtime.scheduler.SLICE_S", 0)
    names = [f"g{number}" for number in range(20)]
    for name in names:
        await table.request(name, commit(5))
    deleting = asyncio.ensure_future(table.topic_deleted(DropTopic("t"), CooperativeScheduler().pace()))
    turns = 0
    while not deleting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= len(names)
    while any(storage.groups.stored[name].stored.positions for name in names if name in storage.groups.stored):
        await asyncio.sleep(0)


async def test_pending_offsets_of_a_deleted_topic_delay_no_client() -> None:
    mirror = OffsetMirror(lambda _: None)
    mirror.show("g", {TopicPartition("t", index): OffsetAndMetadata(offset=5) for index in range(1_000)})
    turns = 0
    shown = asyncio.ensure_future(mirror.settle())
    while not shown.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 1_000 // 64


class _Shown:
    """A partition that shows committed offsets when the test lets it."""

    stream = "s"

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.under_way = self.most = 0
        self.shown: dict[str, int] = {}

    async def mirror_offset(self, group: str, offset: int) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.may.wait()
        self.under_way -= 1
        self.shown[group] = offset


def _mirror_of(shown: _Shown) -> OffsetMirror:
    return OffsetMirror(lambda _: cast("LeaderPartition", shown))


def _show_many(mirror: OffsetMirror, count: int) -> None:
    for number in range(count):
        mirror.show(f"g{number}", {PARTITION: OffsetAndMetadata(offset=number)})


async def test_positions_are_shown_many_in_a_round_trip_but_not_all() -> None:
    partition = _Shown()
    mirror = _mirror_of(partition)
    _show_many(mirror, 200)
    settling = asyncio.ensure_future(mirror.settle())
    while not partition.under_way:
        await asyncio.sleep(0)
    mirror.show("g199", {PARTITION: OffsetAndMetadata(offset=1_000)})
    partition.may.set()
    await settling
    assert partition.most == 64
    assert partition.shown == {f"g{number}": number for number in range(199)} | {"g199": 1_000}


async def test_a_stop_waits_for_positions_to_be_shown() -> None:
    partition = _Shown()
    mirror = _mirror_of(partition)
    _show_many(mirror, 200)
    partition.may.set()
    with structlog.testing.capture_logs() as lines:
        await mirror.stop()
    assert len(partition.shown) == 200
    assert not lines


async def test_a_stop_does_not_wait_for_ever_for_positions_to_be_shown() -> None:
    partition = _Shown()
    mirror = _mirror_of(partition)
    _show_many(mirror, 200)
    with structlog.testing.capture_logs() as lines:
        await mirror.stop(within_s=0.01)
        _show_many(mirror, 1)
    partition.may.set()
    await mirror.settle()
    assert not partition.shown
    [line] = lines
    assert line["positions"] == 200


async def test_positions_that_cannot_be_shown_are_one_line_for_many() -> None:
    class Away(_Shown):
        async def mirror_offset(self, group: str, offset: int) -> None:
            raise StorageUnavailable("away")

    mirror = _mirror_of(Away())
    _show_many(mirror, 100)
    with structlog.testing.capture_logs() as lines:
        await mirror.settle()
    assert [line["positions"] for line in lines] == [64, 36]


async def test_positions_in_a_topic_that_is_gone_at_the_start_are_dropped(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    await table.request("g", commit(5))
    await storage.groups.save(
        "g", [SaveOffsets({TopicPartition("t", 1): OffsetAndMetadata(offset=5, topic_id=UUID(int=1))})]
    )
    coordination = Coordination(Ownership(0), "default", lambda _: None, _no_topic)
    again = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: None, coordination)
    await again.load()
    assert again.positions("g") == {}
    while storage.groups.stored["g"].stored.positions:
        await asyncio.sleep(0)


async def test_at_a_start_a_topic_made_again_with_fewer_partitions_keeps_what_is_its_own(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    """What was stored for the earlier one goes: dropping it may have failed."""
    old, new = UUID(int=1), UUID(int=2)
    positions = {
        TopicPartition("t", 0): OffsetAndMetadata(offset=5, topic_id=new),
        TopicPartition("t", 2): OffsetAndMetadata(offset=7, topic_id=old),
    }
    await storage.groups.save("g", [SaveOffsets(positions)])
    coordination = Coordination(Ownership(0), "default", lambda _: new, _no_topic)
    again = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: None, coordination)
    await again.load()
    while len(storage.groups.stored["g"].stored.positions) > 1:
        await asyncio.sleep(0)
    assert {place.partition: each.offset for place, each in again.positions("g").items()} == {0: 5}


async def test_an_offset_is_visible_only_once_it_is_durable(table: GroupCoordinator) -> None:
    committing = asyncio.ensure_future(table.request("g", commit(5)))
    await asyncio.sleep(0)
    before = dict(table.positions("g"))
    await committing

    assert before == {}
    assert table.positions("g")[PARTITION].offset == 5


async def test_a_group_with_a_very_long_name_is_not_made(table: GroupCoordinator, clock: ManualClock) -> None:
    await stable(table, clock, "n" * 1_024)
    for name in ("n" * 1_025, "\N{SNOWMAN}" * 342):
        refused = await table.request(name, commit(1))
        assert isinstance(refused, CommitResult)
        assert refused.partitions == {PARTITION: GroupError.INVALID_GROUP_ID}
        assert await table.request(name, join()) == JoinResult(error=GroupError.INVALID_GROUP_ID)
    assert table.names() == ["n" * 1_024]


async def test_a_group_beyond_the_limit_is_refused_and_logged_once(
    storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition
) -> None:
    table = GroupCoordinator(storage.groups, clock, GroupSettings(max_groups=2), lambda _: partition)
    await table.request("a", commit(1))
    await stable(table, clock, "b")
    with structlog.testing.capture_logs() as logged:
        for name in ("c", "d"):
            refused = await table.request(name, commit(1))
            assert isinstance(refused, CommitResult)
            assert refused.partitions == {PARTITION: GroupError.POLICY_VIOLATION}
            assert await table.request(name, join()) == JoinResult(error=GroupError.POLICY_VIOLATION)
    assert [line["setting"] for line in logged] == ["headrace.max.groups"]
    assert table.names() == ["a", "b"]
    stranger = Heartbeat(token=object(), generation=1, member_id="x", instance_id=None)
    assert await table.request("c", stranger) == HeartbeatResult(error=GroupError.UNKNOWN_MEMBER_ID)
    await table.request("a", commit(2))
    assert storage.groups.stored["a"].stored.positions[PARTITION].offset == 2
    assert await table.request("a", DeleteGroup(token=object())) == DeleteGroupResult()
    await table.request("c", commit(3))
    assert table.names() == ["b", "c"]


async def test_the_response_to_a_join_does_not_iterate_all_members(table: GroupCoordinator, clock: ManualClock) -> None:
    """One line for each member that joins or leaves, even between two checks."""
    with structlog.testing.capture_logs() as logged:
        joined = await stable(table, clock)
        others = [
            asyncio.ensure_future(table.request("g", msgspec.structs.replace(join(), new_member_id=f"c-{number}")))
            for number in range(2, 6)
        ]
        await asyncio.sleep(0)
        leave = Leave(token=object(), members=(Leaving(member_id="c-3", instance_id=None, reason="enough"),))
        await table.request("g", leave)
        clock.advance(60_000)
        await asyncio.gather(*others)
    assert joined.member_id == "c-1"
    lines = [(line["event"], line["member"]) for line in logged if line["event"].startswith("member")]
    assert [member for event, member in lines if event == "member joined"] == ["c-1", "c-2", "c-3", "c-4", "c-5"]
    assert ("member left", "c-3") in lines
    assert len(lines) == len({*lines})
