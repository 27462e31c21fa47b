"""What all groups hold together is bounded: more is refused, and members and offsets that exist go on."""

import asyncio

import msgspec
import pytest
import structlog
from tests.broker.members import PARTITION, commit, join, stable
from tests.harness.memory import MemoryStorage

from headrace.broker.coordinator.group_runner import GroupMemory
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.partition.leader import LeaderPartition
from headrace.groups.effects import CommitResult, JoinResult, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DeleteGroup, Join, Leave, Leaving, Sync
from headrace.groups.model import GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.groups.turn import GROUP_BYTES
from headrace.testing.clock import ManualClock

_LIMIT = 1 << 20


@pytest.fixture
def memory() -> GroupMemory:
    return GroupMemory(_LIMIT, 2 * GROUP_BYTES + 4_000)


@pytest.fixture
def table(
    storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition, memory: GroupMemory
) -> GroupCoordinator:
    return GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition, memory=memory)


def _large(size: int, **fields: object) -> Join:
    return msgspec.structs.replace(join(), token=object(), protocols=(("range", bytes(size)),), **fields)


async def _attack(table: GroupCoordinator, size: int, first: int = 0) -> int:
    """Leave one member with that much metadata in each of many groups; return how many were accepted."""
    for number in range(first, first + 2_000):
        joining = asyncio.ensure_future(table.request(f"g{number}", _large(size)))
        await asyncio.sleep(0)
        if joining.done():
            assert joining.result() == JoinResult(error=GroupError.GROUP_MAX_SIZE_REACHED)
            assert not table.exists(f"g{number}")
            return number - first
        joining.cancel()
    raise AssertionError("no group was refused")


async def test_members_of_many_groups_have_a_total(
    table: GroupCoordinator, memory: GroupMemory, clock: ManualClock
) -> None:
    with structlog.testing.capture_logs() as logged:
        assert await _attack(table, 50_000) == 3
        assert await _attack(table, 8_000, 5_000)
        # Large members leave room for small ones.
        await stable(table, clock, "small")
        assert await _attack(table, 0, 10_000)
    assert _LIMIT * 7 // 8 < memory.members.used <= _LIMIT
    assert [line["setting"] for line in logged if "setting" in line] == ["headrace.groups.max.bytes"]


async def test_a_member_that_exists_joins_again_though_the_total_is_used_up(
    table: GroupCoordinator, memory: GroupMemory, clock: ManualClock
) -> None:
    joined = await stable(table, clock)
    memory.members.add(_LIMIT)
    again = asyncio.ensure_future(table.request("g", join(joined.member_id)))
    await asyncio.sleep(0)
    clock.advance(100)
    result = await again
    assert isinstance(result, JoinResult)
    assert result.error is None
    refused = await table.request("g", _large(1_000, member_id=joined.member_id))
    assert isinstance(refused, JoinResult)
    assert refused.error is GroupError.GROUP_MAX_SIZE_REACHED


async def test_what_members_and_offsets_held_is_given_back(
    table: GroupCoordinator, memory: GroupMemory, clock: ManualClock
) -> None:
    joined = await stable(table, clock)
    await table.request("g", commit(7, joined.generation, joined.member_id))
    assert memory.members.used > GROUP_BYTES + 500
    assert memory.offsets.used == GROUP_BYTES + 400
    gone = Leaving(member_id=joined.member_id, instance_id=None, reason=None)
    await table.request("g", Leave(token=object(), members=(gone,)))
    assert memory.members.used == 0
    await table.request("g", DeleteGroup(token=object()))
    assert memory.offsets.used == 0


@pytest.mark.parametrize("how", ["hand over", "delete"])
async def test_a_group_that_is_another_brokers_or_deleted_counts_no_more(
    table: GroupCoordinator, memory: GroupMemory, clock: ManualClock, how: str
) -> None:
    await stable(table, clock)
    await table.request("other", commit(1))
    if how == "delete":
        await table.drop_all()
    else:
        for runner in table.runners():
            runner.hand_over()
    assert (memory.members.used, memory.offsets.used) == (0, 0)


async def test_ids_that_were_given_out_count(table: GroupCoordinator, memory: GroupMemory, clock: ManualClock) -> None:
    """A client asks for ids under a long name, and never joins with them."""
    asked = 0
    while asked < 1_000:
        client_id = "c" * 10_000
        request = _large(0, client_id=client_id, new_member_id=f"{client_id}-{asked}", member_id_required=True)
        result = await table.request(f"g{asked}", request)
        assert isinstance(result, JoinResult)
        if result.error is GroupError.GROUP_MAX_SIZE_REACHED:
            break
        assert result.error is GroupError.MEMBER_ID_REQUIRED
        asked += 1
    assert 20 < asked < 100
    clock.advance(10_000)
    await asyncio.sleep(0)
    assert memory.members.used == 0


async def test_assignments_count(table: GroupCoordinator, memory: GroupMemory, clock: ManualClock) -> None:
    joining = asyncio.ensure_future(table.request("g", join()))
    await asyncio.sleep(0)
    clock.advance(100)
    joined = await joining
    assert isinstance(joined, JoinResult)

    def sync(size: int) -> Sync:
        return Sync(
            token=object(),
            generation=joined.generation,
            member_id=joined.member_id,
            instance_id=None,
            protocol_type=None,
            protocol=None,
            assignments={joined.member_id: bytes(size), "nobody": bytes(_LIMIT)},
        )

    assert await table.request("g", sync(_LIMIT // 8)) == SyncResult(error=GroupError.GROUP_MAX_SIZE_REACHED)
    before = memory.members.used
    result = await table.request("g", sync(10_000))
    assert isinstance(result, SyncResult)
    assert len(result.assignment) == 10_000
    assert memory.members.used == before + 10_000


async def test_committed_offsets_have_a_total(
    table: GroupCoordinator, memory: GroupMemory, storage: MemoryStorage
) -> None:
    """400 bytes for each, and its metadata, and some for a group; what replaces an offset is taken all the same."""

    async def commits(group: str, count: int, metadata: str = "", offset: int = 1) -> list[GroupError | None]:
        places = {
            TopicPartition("t", each): OffsetAndMetadata(offset=offset, metadata=metadata) for each in range(count)
        }
        request = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=places)
        result = await table.request(group, request)
        assert isinstance(result, CommitResult)
        return list(result.partitions.values())

    assert await commits("a", 5) == [None] * 5
    assert await commits("b", 6) == [None] * 5 + [GroupError.POLICY_VIOLATION]
    assert memory.offsets.used == memory.offsets.limit
    assert await commits("c", 1) == [GroupError.POLICY_VIOLATION]
    assert not table.exists("c")
    assert await commits("a", 5, offset=2) == [None] * 5
    assert storage.groups.stored["a"].stored.positions[PARTITION].offset == 2
    assert await commits("a", 1, metadata="\N{SNOWMAN}") == [GroupError.POLICY_VIOLATION]


async def test_a_refused_write_counts_what_storage_has(
    table: GroupCoordinator, memory: GroupMemory, storage: MemoryStorage
) -> None:
    await table.request("g", commit(1))
    storage.unavailable = True
    more = {TopicPartition("t", each): OffsetAndMetadata(offset=1) for each in range(5)}
    await table.request("g", Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=more))
    assert memory.offsets.used == GROUP_BYTES + 400
