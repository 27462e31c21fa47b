import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest
import redis
from tests.conftest import OpenStorage
from tests.harness.logs import appended, opened

from headrace.groups.instances.model import StartKind
from headrace.groups.model import (
    DropBalanced,
    DropField,
    DropGroup,
    DropMember,
    DropOffsets,
    DropPending,
    GroupChange,
    GroupHeader,
    GroupKind,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveBalanced,
    SaveField,
    SaveHeader,
    SaveMember,
    SaveOffsets,
    SavePending,
    StoredBalanced,
    StoredConsumer,
    StoredGrants,
    StoredGroup,
    StoredInstance,
    StoredMember,
    StoredOwner,
    StoredPartitions,
    StoredStart,
    TopicPartition,
    is_nothing,
)
from headrace.groups.snapshot import Snapshot
from headrace.metrics.unreadable_values import Unreadable
from headrace.records.build import build
from headrace.storage.groups import RedisGroups
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.redis.shards import Shards
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import Append, Appended

STREAM = "headrace:t:0"
FENCE = "headrace:group:{default/g}"
HOUR_MS = 3_600_000
T0, T1 = TopicPartition("t", 0), TopicPartition("dots.and-dashes_", 11)
HEADER = GroupHeader(
    generation=3, protocol_type="consumer", protocol="range", leader="a", empty_since_ms=None, unsettled=True
)
K0, K1 = PendingKey(1 << 40, TopicPartition("t", 0)), PendingKey(2, TopicPartition("dots.and-dashes_", 11))
PENDING = PendingOffset(
    producer_epoch=32_766, transactional_id="ü:1", number=3, position=OffsetAndMetadata(offset=9, topic_id=UUID(int=7))
)
FULL_POSITION = OffsetAndMetadata(offset=1 << 60, leader_epoch=4, metadata="ü", committed_ms=9, topic_id=UUID(int=7))


def member(name: str) -> StoredMember:
    return StoredMember(
        member_id=name,
        instance_id=None if name == "a" else "static",
        client_id="client",
        client_host="127.0.0.1",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=60_000,
        protocols=(("range", b"\x00\x01\xff"), ("sticky", b"")),
        assignment=bytes(range(256)),
    )


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    return await open_storage()


def section(topic: str, generation: int) -> StoredBalanced:
    return StoredBalanced(
        topic=topic,
        created_ms=1_700_000_000_000,
        epoch=1_700_000_000_000,
        generation=generation,
        incarnations=2,
        retention_ms=-1,
        used_ms=5,
        instances=(
            StoredInstance(name="ü", incarnation=2, timeout_ms=1, commit_on_get=False, joined=1, lost={0: generation}),
        ),
        owners=(StoredOwner("ü", generation), None),
        starts={1: StoredStart(1 << 52, StartKind.AT_TIME, 9)},
        topic_id=UUID(int=7),
    )


def consumer(name: str) -> StoredConsumer:
    return StoredConsumer(
        member_id=name,
        client_id="client",
        client_host="127.0.0.1",
        rebalance_timeout_ms=60_000,
        topics=("t",),
        epoch=3,
        previous_epoch=2,
        state="STABLE",
        held=(StoredGrants("t", UUID(int=7), {1: (0, 2), 3: (1,)}),),
        target=(StoredPartitions("t", UUID(int=7), (0, 1, 2)),),
    )


HISTORY: list[list[GroupChange]] = [
    [SaveHeader(HEADER), SaveMember(member("a")), SaveMember(member("b"))],
    [SaveOffsets({T0: OffsetAndMetadata(offset=5), T1: FULL_POSITION})],
    [DropMember("a"), SaveMember(member("c")), DropOffsets((T1,))],
    [],
    [DropOffsets((T0,)), DropMember("nobody")],
    [DropGroup(), SaveOffsets({T1: OffsetAndMetadata(offset=7)})],
    [DropGroup()],
    [SaveMember(member("a"))],
    [DropGroup(), SaveBalanced(section("t", 1))],
    [SaveBalanced(section("dots.and-dashes_", 1)), SaveBalanced(section("t", 2)), SaveHeader(HEADER)],
    [DropBalanced("t"), DropBalanced("nothing")],
    [DropBalanced("dots.and-dashes_"), DropGroup()],
    [SavePending({K0: PENDING, K1: msgspec.structs.replace(PENDING, overtaken=True)})],
    [SaveOffsets({T0: OffsetAndMetadata(offset=9)}), DropPending((K0,))],
    [DropGroup(), SavePending({K0: PENDING})],
    [DropPending((K0, K1)), DropGroup()],
    [SaveField(consumer("a")), SaveField(consumer("ü:b"))],
    [DropField(consumer("a").field), SaveHeader(msgspec.structs.replace(HEADER, kind=GroupKind.CONSUMER, epoch=3))],
    [DropGroup()],
]


async def test_a_group_comes_back_as_its_changes_made_it(storage: RedisStorage, open_storage: OpenStorage) -> None:
    snapshot = Snapshot.empty("g")
    for epoch, changes in enumerate(HISTORY, 2):
        await storage.groups.save("g", changes)
        snapshot.apply(changes)
        storage = await open_storage(epoch)
        loaded = await storage.groups.load()
        if snapshot.nothing:
            assert loaded == []
        else:
            assert [_sorted(group) for group in loaded] == [_sorted(snapshot.stored)]


def _sorted(group: StoredGroup) -> StoredGroup:
    members = tuple(sorted(group.members, key=lambda each: each.member_id))
    fields = tuple(sorted(group.fields, key=lambda each: each.field))
    return msgspec.structs.replace(group, members=members, fields=fields)


@pytest.mark.parametrize("name", ["g", "with space", "{", "}", "a}b{c}:members", "Gruppe-ü", "x" * 2_000, ":"])
async def test_any_name_will_do(storage: RedisStorage, name: str) -> None:
    await storage.groups.save(name, [SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
    await storage.groups.save("other", [SaveOffsets({T0: OffsetAndMetadata(offset=6)})])
    found = {group.name: group.positions[T0].offset for group in await storage.groups.load()}
    assert found == {name: 5, "other": 6}


async def test_many_groups_come_back_in_name_order(storage: RedisStorage) -> None:
    for number in range(150):
        await storage.groups.save(f"g{number:03}", [SaveHeader(HEADER)])
    assert [group.name for group in await storage.groups.load()] == [f"g{number:03}" for number in range(150)]


async def test_a_dropped_group_leaves_nothing_but_its_fence(storage: RedisStorage, raw: "redis.Redis") -> None:
    before = set(raw.keys())
    for changes in HISTORY[:3]:
        await storage.groups.save("g", changes)
    await storage.groups.save("g", [SaveHeader(HEADER), DropGroup()])
    assert set(raw.keys()) == {*before, FENCE}
    assert raw.hgetall(FENCE) == {"e": "1"}
    assert raw.pttl(FENCE) > HOUR_MS - 60_000
    # Asked for again: it stands as long.
    assert is_nothing(await storage.groups.load_one("g", 1))
    assert raw.pttl(FENCE) > HOUR_MS - 60_000
    # Made again.
    await storage.groups.save("g", [SaveHeader(HEADER)])
    assert raw.pttl(FENCE) == -1


async def test_an_old_write_does_not_bring_a_deleted_group_back(
    storage: RedisStorage, open_storage: OpenStorage
) -> None:
    """Its coordinator was stopped; it goes on where it was."""
    position: list[GroupChange] = [SaveOffsets({T0: OffsetAndMetadata(offset=5)})]
    await storage.groups.save("g", position)
    newer = await open_storage(epoch=2)
    await newer.groups.load_one("g", 2)
    await newer.groups.save("g", [DropGroup()])
    with pytest.raises(Fenced):
        await storage.groups.save("g", position)
    assert is_nothing(await newer.groups.load_one("g", 2))


class _Cut(Scripts):
    """Scripts over a connection that is given up before a write of groups has left; it may come in later."""

    late: Callable[[], Awaitable[object]] | None = None

    def __init__(self, shards: Shards, name: str, what: str | None = None) -> None:
        super().__init__(shards)
        self._cut, self._what = name, what

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Any:
        if name == self._cut and self.late is None and (self._what is None or self._what in arguments):
            self.late = partial(super().run, name, keys, *arguments)
            raise StorageUnavailable("the connection was lost")
        return await super().run(name, keys, *arguments)


@pytest.mark.parametrize("then", [[DropGroup()], [SaveOffsets({T0: OffsetAndMetadata(offset=9)})]])
@pytest.mark.parametrize("number", [1, 28_166_000_000])
@pytest.mark.parametrize("count", [1, 2, 9, 10, 1_000_000])
async def test_a_write_of_a_lost_connection_does_not_come_in_behind_the_next(
    storage: RedisStorage, then: list[GroupChange], number: int, count: int
) -> None:
    """It would bring a deleted group back, or an old position. The numbers of views are large ones."""
    scripts = _Cut(storage.scripts.shards, "save_group")
    storage.fence.number = number
    storage.fence.given_up = count - 1
    groups = RedisGroups(scripts, Keyspace(), storage.fence)
    with pytest.raises(StorageUnavailable):
        await groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
    assert storage.fence.given_up == count
    await groups.save("g", then)
    kept = (await groups.load_one("g", number)).positions
    assert scripts.late is not None
    with pytest.raises(Fenced):
        await scripts.late()
    assert (await groups.load_one("g", number)).positions == kept
    # The next view's is above it.
    assert (await storage.groups.load_one("g", number + 1)).positions == kept
    await groups.save("g", then, number + 1)
    with pytest.raises(Fenced):
        await groups.load_one("g", number)


@pytest.mark.parametrize("view", [1, 2])
async def test_a_group_that_is_made_again_stays_in_the_list_though_its_leaving_comes_in_late(
    storage: RedisStorage, raw: "redis.Redis", view: int
) -> None:
    scripts = _Cut(storage.scripts.shards, "register_group", "remove")
    groups = RedisGroups(scripts, Keyspace(), storage.fence)
    with pytest.raises(StorageUnavailable):
        await groups.save("g", [DropGroup()])
    await groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
    assert scripts.late is not None
    if view == 1:
        await scripts.late()
        assert await groups.names() == []
    # The next write enters it; a higher number shuts the late one out.
    raw.set("headrace:{meta}:epoch", view)
    await groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=6)})], view)
    if view > 1:
        with pytest.raises(Fenced):
            await scripts.late()
    assert await groups.names() == ["g"]


async def test_a_write_that_never_left_is_not_given_up(storage: RedisStorage) -> None:
    """Storage may be away for long, and clients try again and again."""
    await storage.groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
    await storage.close()
    for changes in ([SaveOffsets({T0: OffsetAndMetadata(offset=6)})], [DropGroup()]):
        with pytest.raises(StorageUnavailable):
            await storage.groups.save("g", changes)
    assert storage.fence.given_up == 0


class _Counting(Scripts):
    """Scripts that note how many arguments each write of groups has, and are cut off once there were enough."""

    def __init__(self, shards: Shards, enough: int = 1_000_000) -> None:
        super().__init__(shards)
        self.sizes: list[int] = []
        self._enough = enough

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Any:
        if name == "save_group":
            if len(self.sizes) == self._enough:
                self._enough = 1_000_000
                raise StorageUnavailable("the connection was lost")
            self.sizes.append(len(arguments))
        return await super().run(name, keys, *arguments)


WIDE = {TopicPartition("t", number): OffsetAndMetadata(offset=number) for number in range(10_000)}


async def test_very_many_positions_hold_redis_up_for_a_few_hundred_at_a_time(storage: RedisStorage) -> None:
    scripts = _Counting(storage.scripts.shards)
    groups = RedisGroups(scripts, Keyspace(), storage.fence)
    await groups.save("g", [SaveHeader(HEADER), SaveOffsets(WIDE), SaveBalanced(section("t", 1))])
    assert max(scripts.sizes) < 1_100
    assert await groups.load_one("g", 1) == StoredGroup(
        name="g", header=HEADER, members=(), positions=WIDE, balanced=(section("t", 1),)
    )


async def test_the_later_of_two_positions_of_a_partition_counts(storage: RedisStorage) -> None:
    later = {partition: OffsetAndMetadata(offset=-1) for partition in (*list(WIDE)[:1_200], *list(WIDE)[-10:])}
    await storage.groups.save("g", [SaveOffsets(WIDE), SaveOffsets(later)])
    assert (await storage.groups.load_one("g", 1)).positions == {**WIDE, **later}


async def test_very_many_positions_cut_short_are_completed_when_they_are_set_again(storage: RedisStorage) -> None:
    groups = RedisGroups(_Counting(storage.scripts.shards, enough=3), Keyspace(), storage.fence)
    changes: list[GroupChange] = [SaveOffsets(WIDE), SaveBalanced(section("t", 1))]
    with pytest.raises(StorageUnavailable):
        await groups.save("g", changes)
    cut = await groups.load_one("g", 1)
    assert 0 < len(cut.positions) < len(WIDE)
    assert cut.positions.items() <= WIDE.items()
    assert cut.balanced == ()
    await groups.save("g", changes)
    assert await groups.load_one("g", 1) == StoredGroup(
        name="g", header=None, members=(), positions=WIDE, balanced=(section("t", 1),)
    )


async def test_a_rewritten_group_is_visible_at_once_at_any_size(storage: RedisStorage) -> None:
    """It is dropped first: what came in pieces could be missing for good."""
    scripts = _Counting(storage.scripts.shards)
    groups = RedisGroups(scripts, Keyspace(), storage.fence)
    await groups.save("g", [SaveHeader(HEADER), SaveOffsets({T1: OffsetAndMetadata(offset=5)})])
    members = [SaveMember(member(f"m{number}")) for number in range(1_500)]
    await groups.save("g", [DropGroup(), *members, SaveOffsets(WIDE)])
    assert len(scripts.sizes) == 2
    kept = await groups.load_one("g", 1)
    assert (kept.header, kept.positions, len(kept.members)) == (None, WIDE, 1_500)
    await groups.save("g", [*(DropMember(f"m{number}") for number in range(1_499)), DropOffsets(tuple(WIDE)[1:])])
    kept = await groups.load_one("g", 1)
    assert (kept.positions, kept.members) == ({T0: WIDE[T0]}, (member("m1499"),))


async def test_a_drop_cut_short_is_finished_at_the_next_start(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    before = set(raw.keys())
    await storage.groups.save("g", [SaveHeader(HEADER)])
    raw.delete(FENCE)
    restarted = await open_storage(epoch=2)
    assert await restarted.groups.load() == []
    assert set(raw.keys()) == {*before, FENCE}


async def test_an_older_server_is_fenced_once_the_newer_has_loaded(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    await storage.groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
    newer = await open_storage(epoch=2)
    loaded = await newer.groups.load()
    raw.set("headrace:{meta}:epoch", 2)
    for group in ("g", "new"):
        with pytest.raises(Fenced):
            await storage.groups.save(group, [SaveOffsets({T0: OffsetAndMetadata(offset=6)})])
    with pytest.raises(Fenced):
        await storage.groups.load()
    assert await newer.groups.load() == loaded


class _Stopped(Scripts):
    """A server that is paused just after its entry of a group in the list, until others have dropped it."""

    now_s = 0.0
    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def run(self, name: str, keys: list[str], *arguments: Any) -> Any:
        answer = await super().run(name, keys, *arguments)
        if name == "register_group" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            self.now_s += 70
        return answer


async def test_a_server_that_was_stopped_within_its_first_write_of_a_group_does_not_make_it(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    newer = await open_storage(epoch=2)
    scripts = _Stopped(storage.scripts.shards)
    groups = RedisGroups(scripts, Keyspace(), storage.fence, lambda: scripts.now_s)
    await groups.load_one("g", 1)

    async def another_coordinator_has_looked() -> None:
        raw.set("headrace:{meta}:epoch", 2)
        assert is_nothing(await newer.groups.load_one("g", 2))
        assert 0 < raw.pttl(FENCE) <= 60_000
        raw.delete(FENCE)

    scripts.meanwhile = another_coordinator_has_looked
    with pytest.raises(Fenced):
        await groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=5)})], 1)
    assert is_nothing(await newer.groups.load_one("g", 2))


async def test_positions_are_kept_while_redis_is_full(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    raw.config_set("maxmemory", 1)
    try:
        await storage.groups.save("g", [SaveHeader(HEADER), SaveOffsets({T0: OffsetAndMetadata(offset=5)})])
        restarted = await open_storage(epoch=2)
        assert [group.positions for group in await restarted.groups.load()] == [{T0: OffsetAndMetadata(offset=5)}]
    finally:
        raw.config_set("maxmemory", 0)


# The mirror


def shown(raw: "redis.Redis") -> dict[str, str]:
    return {group["name"]: group["last-delivered-id"] for group in raw.xinfo_groups(STREAM)}


async def test_positions_are_shown_as_redis_consumer_groups(storage: RedisStorage, raw: "redis.Redis") -> None:
    log = await opened(storage, STREAM)
    await appended(log, Append(build([(None, b"x", 1, ())] * 10), 10, 1))
    await log.mirror_offset("g", 10)
    await log.mirror_offset("h", 3)
    term = log.leader_epoch
    assert shown(raw) == {"g": f"{term}-10", "h": f"{term}-3"}
    await log.mirror_offset("g", 4)
    assert shown(raw) == {"g": f"{term}-4", "h": f"{term}-3"}


async def test_positions_are_shown_before_the_first_record(storage: RedisStorage, raw: "redis.Redis") -> None:
    log = await opened(storage, STREAM)
    await log.mirror_offset("g", 0)
    assert shown(raw) == {"g": "0-0"}
    assert await appended(log, Append(build([(None, b"x", 1, ())]), 1, 1)) == [Appended(0)]


async def test_a_position_of_a_deleted_topic_makes_no_stream(storage: RedisStorage, raw: "redis.Redis") -> None:
    with pytest.raises(UnknownTopic):
        await storage.logs.mirror_offset(STREAM, "g", 5)
    assert not raw.exists(STREAM)


async def test_a_key_that_is_no_stream_is_reported(storage: RedisStorage, raw: "redis.Redis") -> None:
    await opened(storage, STREAM)
    raw.set(STREAM, "text")
    with pytest.raises(TopicError, match="WRONGTYPE"):
        await storage.logs.mirror_offset(STREAM, "g", 5)


async def test_a_group_that_another_broker_may_have_dropped_is_listed_again(
    open_storage: OpenStorage,
) -> None:
    one, other = await open_storage(), await open_storage()
    saving = asyncio.ensure_future(one.groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=1)})]))
    await asyncio.sleep(0)
    # The other one has it from now on, and drops it.
    one.groups.forget("g")
    await saving
    await other.groups.save("g", [DropGroup()])
    assert await one.groups.names() == []
    await one.groups.save("g", [SaveOffsets({T0: OffsetAndMetadata(offset=2)})])
    assert await one.groups.names() == ["g"]


async def test_pending_offsets_become_committed_in_one_step(storage: RedisStorage, raw: "redis.Redis") -> None:
    scripts = _Counting(storage.scripts.shards)
    groups = RedisGroups(scripts, Keyspace(), storage.fence)
    await groups.save("g", [SavePending({K0: PENDING, K1: PENDING})])
    assert sorted(raw.hkeys(f"{FENCE}:pending")) == ["1099511627776:t:0", "2:dots.and-dashes_:11"]
    await groups.save("g", [SaveOffsets({T0: PENDING.position}), DropPending((K0,))])
    assert len(scripts.sizes) == 2
    found = await groups.load_one("g", 1)
    assert (found.positions, found.pending) == ({T0: PENDING.position}, {K1: PENDING})


async def test_very_many_pending_offsets_are_dropped_with_the_last_of_them(storage: RedisStorage) -> None:
    """After a failure in between, all are still pending, and the transaction is ended again."""
    groups = RedisGroups(_Counting(storage.scripts.shards, enough=3), Keyspace(), storage.fence)
    pending = {PendingKey(1, place): PENDING for place in list(WIDE)[:1_200]}
    await groups.save("g", [SavePending(pending)])
    committed = {key.partition: PENDING.position for key in pending}
    end: list[GroupChange] = [SaveOffsets(committed), DropPending(tuple(pending))]
    with pytest.raises(StorageUnavailable):
        await groups.save("g", end)
    found = await groups.load_one("g", 1)
    assert (len(found.positions), found.pending) == (1_000, pending)
    await groups.save("g", end)
    found = await groups.load_one("g", 1)
    assert (found.positions, found.pending) == (committed, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("t:0", b"{}"),
        ("x:t:0", None),
        ("-1:t:0", None),
        ("1:t:x", None),
        ("1:t:0", b"no JSON"),
        ("1:t:0", b'{"producer_epoch":-1,"transactional_id":"tx","number":1,"position":{"offset":1}}'),
        ("1:t:0", b'{"producer_epoch":1,"transactional_id":"tx","number":"1","position":{"offset":1}}'),
        ("1:t:0", b'{"producer_epoch":1,"transactional_id":"tx","number":1}'),
    ],
)
async def test_an_unreadable_pending_offset_is_skipped_and_noted(
    storage: RedisStorage, raw: "redis.Redis", field: str, value: bytes | None
) -> None:
    unreadable = Unreadable()
    groups = RedisGroups(storage.scripts, Keyspace(), storage.fence, unreadable=unreadable)
    await groups.save("g", [SavePending({K1: PENDING})])
    raw.hset(f"{FENCE}:pending", field, msgspec.json.encode(PENDING) if value is None else value)
    found = await groups.load_one("g", 1)
    assert found.pending == {K1: PENDING}
    reason = unreadable.reason("groups", "g")
    assert reason is not None
    assert "pending offset" in reason


async def test_a_key_of_another_type_at_the_pending_offsets_is_found(storage: RedisStorage, raw: "redis.Redis") -> None:
    raw.set(f"{FENCE}:pending", "x")
    with pytest.raises(TopicError, match="pending is a string"):
        await storage.groups.load_one("g", 1)
    assert storage.groups.is_offline("g")
    await storage.groups.drop_offline("g")
    assert not raw.exists(f"{FENCE}:pending")
