"""Share groups of native topics on real servers: locks, deliveries, owners, and Redis programs in the group."""

from typing import Any

import pytest
from tests.conftest import OpenStorage
from tests.harness.plain import KEY, STREAM

from headrace.records.walk import records
from headrace.storage.layout.native import groups_of, id_of, offset_at
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import Fenced, UnknownTopic
from headrace.topics.native import (
    DEAD,
    RELEASED,
    Acknowledgement,
    Delivered,
    GroupGone,
    Limits,
    NativeStream,
    Outcome,
    SharePosition,
    ShareRead,
)

GROUP = "group"
LIMITS = Limits(lock_ms=60_000, deliveries=3, window=1_000)


def fill(raw: Any, count: int, *, first_ms: int = 1, value: bytes = b"v", apart: int = 1) -> list[int]:
    """Add entries with milliseconds between them; 0 for neighboring offsets. Their offsets."""
    with raw.pipeline(transaction=False) as many:
        for number in range(count):
            many.xadd(KEY, {"value": value}, id=f"{first_ms + number * apart}-{0 if apart else number}")
        return [offset_at(entry_id.encode()) for entry_id in many.execute()]


async def acquire(
    storage: RedisStorage,
    member: str = "a",
    count: int = 500,
    *,
    limits: Limits = LIMITS,
    limit: int = 1 << 20,
    create_at: int | None = 0,
    first: int = 64 << 20,
    expired: bool = True,
    begin: bool = True,
) -> ShareRead:
    if begin:
        await storage.native.shares.begin(STREAM, GROUP, create_at)
    return await storage.native.shares.acquire(
        STREAM, GROUP, member, limits, count, limit, create_at=create_at, first=first, expired=expired
    )


async def acknowledge(
    storage: RedisStorage, member: str, outcome: Outcome, *offsets: int, limits: Limits = LIMITS
) -> list[Delivered] | None:
    given = [Acknowledgement(offset, offset, outcome) for offset in offsets]
    return await storage.native.shares.acknowledge(STREAM, GROUP, member, limits, given)


def offsets(read: ShareRead) -> list[int]:
    """Of the acquired records, which must be those of the batches."""
    found = [offset for each in read.acquired for offset in range(each.first, each.last + 1)]
    assert found == [record.offset for each in read.batches for record in records(each.batch, each.base_offset)]
    return found


def pending(raw: Any) -> dict[int, tuple[str, int]]:
    """Offset -> consumer and number of deliveries."""
    return {
        offset_at(each["message_id"].encode()): (each["consumer"], each["times_delivered"])
        for each in raw.xpending_range(KEY, GROUP, "-", "+", 10_000)
    }


def end_locks(raw: Any) -> None:
    """Let the time of every lock pass."""
    for each in raw.xpending_range(KEY, GROUP, "-", "+", 10_000):
        raw.xclaim(KEY, GROUP, each["consumer"], 0, [each["message_id"]], idle=LIMITS.lock_ms, justid=True)


async def test_new_entries_are_acquired_once_and_in_order(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 10)
    first = await acquire(storage, "a", 4)
    second = await acquire(storage, "b", 100)
    assert (offsets(first), offsets(second)) == (added[:4], added[4:])
    assert first.acquired == [Delivered(offset, offset, 1) for offset in added[:4]]
    assert (first.more, first.pending, second.more, second.pending) == (True, 4, False, 10)
    assert await acknowledge(storage, "a", Outcome.DONE, *added[:4]) == []
    assert pending(raw) == dict.fromkeys(added[4:], ("b", 1))


async def test_neighboring_offsets_are_one_range_and_a_gap_ends_it(storage: RedisStorage, raw: Any) -> None:
    """A client makes an object for each offset of a range. A day has 88,473,600,000 offsets."""
    early = fill(raw, 5, apart=0)
    late = fill(raw, 3, first_ms=86_400_000, apart=0)
    assert (await acquire(storage)).acquired == [Delivered(early[0], early[-1], 1), Delivered(late[0], late[-1], 1)]


@pytest.mark.parametrize(("create_at", "expected"), [(0, 3), (2 << 10, 2), (4 << 10, 0), (None, 0)])
async def test_a_missing_group_is_created_at_an_offset(
    storage: RedisStorage, raw: Any, create_at: int | None, expected: int
) -> None:
    added = fill(raw, 3)
    assert offsets(await acquire(storage, create_at=create_at)) == added[3 - expected :]
    [later] = fill(raw, 1, first_ms=10)
    assert offsets(await acquire(storage, create_at=create_at)) == [later]


async def test_a_stream_that_does_not_exist_is_created_with_the_group(storage: RedisStorage, raw: Any) -> None:
    assert (await acquire(storage)).acquired == []
    assert offsets_of_lag(await storage.native.shares.describe(STREAM, GROUP)) == (0, 0)
    added = fill(raw, 1)
    assert offsets(await acquire(storage)) == added


def offsets_of_lag(found: SharePosition | None) -> tuple[int, int | None]:
    assert found is not None
    return found.start, found.lag


@pytest.mark.parametrize("others", [0, 20])
async def test_released_entries_come_first_and_keep_their_number(storage: RedisStorage, raw: Any, others: int) -> None:
    """Few acknowledgements are looked up one by one, many with one call."""
    added = fill(raw, 10 + others)
    held = offsets(await acquire(storage, "a", 5 + others))
    again = [*held[1:4:2], *held[5:]]
    assert await acknowledge(storage, "a", Outcome.RELEASE, *again) == []
    assert {offset for offset, (name, _) in pending(raw).items() if name == RELEASED} == set(again)
    read = await acquire(storage, "b", len(again) + 2)
    new = added[5 + others :][:2]
    assert offsets(read) == sorted(again + new)
    assert {each.first: each.deliveries for each in read.acquired} == {
        **dict.fromkeys(again, 2),
        **dict.fromkeys(new, 1),
    }


async def test_the_response_is_in_the_order_of_offsets(storage: RedisStorage, raw: Any) -> None:
    """The later entry was released, and the lock of the earlier one has ended."""
    added = fill(raw, 4)
    await acquire(storage, "a", 2)
    await acquire(storage, "b", 2)
    await acknowledge(storage, "b", Outcome.RELEASE, *added[2:])
    end_locks(raw)
    read = await acquire(storage, "c", 3)
    assert offsets(read) == [added[0], *added[2:]]
    assert {each.deliveries for each in read.acquired} == {2}


async def test_an_entry_whose_lock_has_ended_is_acquired_by_another(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 2)
    await acquire(storage, "a")
    assert offsets(await acquire(storage, "b")) == [], "the locks last a minute"
    end_locks(raw)
    assert offsets(await acquire(storage, "b", expired=False)) == []
    assert offsets(await acquire(storage, "b")) == added
    assert await acknowledge(storage, "a", Outcome.DONE, *added) is None
    assert pending(raw) == dict.fromkeys(added, ("b", 2))


async def test_a_renewed_lock_begins_again(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 2)
    await acquire(storage, "a")
    end_locks(raw)
    assert await acknowledge(storage, "a", Outcome.RENEW, added[1]) == []
    assert offsets(await acquire(storage, "b")) == added[:1]
    assert pending(raw) == {added[0]: ("b", 2), added[1]: ("a", 1)}


@pytest.mark.parametrize("ending", ["release", "member", "time"])
async def test_the_last_delivery_is_reported(storage: RedisStorage, raw: Any, ending: str) -> None:
    added = fill(raw, 2, apart=0)
    spent: list[Delivered] = []
    for number in range(1, LIMITS.deliveries + 1):
        read = await acquire(storage)
        assert read.acquired == [Delivered(added[0], added[1], number)]
        match ending:
            case "release":
                spent = await acknowledge(storage, "a", Outcome.RELEASE, *added) or []
            case "member":
                spent = await storage.native.shares.release(STREAM, GROUP, "a", LIMITS)
            case _:
                end_locks(raw)
        assert bool(spent) == (number == LIMITS.deliveries and ending != "time")
    read = await acquire(storage)
    assert (read.acquired, read.pending) == ([], 0)
    assert spent + read.spent == [Delivered(added[0], added[1], LIMITS.deliveries)]
    assert raw.xlen(KEY) == 2, "a dead letter can be made of them"


@pytest.mark.parametrize("ending", ["release", "member", "time", "reject"])
async def test_dead_letters_are_pending_until_they_are_copied(storage: RedisStorage, raw: Any, ending: str) -> None:
    limits = LIMITS._replace(deliveries=2, dead_letters=True)
    shares = storage.native.shares
    added = fill(raw, 3, apart=0)
    later = fill(raw, 2, first_ms=50)
    given_up = [*added[:2], later[0]]
    for number in (1, 2):
        await acquire(storage, limits=limits)
        await acknowledge(storage, "a", Outcome.DONE, added[2], later[1], limits=limits)
        match ending:
            case "release":
                await acknowledge(storage, "a", Outcome.RELEASE, *given_up, limits=limits)
            case "member":
                await shares.release(STREAM, GROUP, "a", limits)
            case "time":
                end_locks(raw)
            case _ if number == 2:
                await acknowledge(storage, "a", Outcome.REJECT, *given_up, limits=limits)
            case _:
                await acknowledge(storage, "a", Outcome.RELEASE, *given_up, limits=limits)
    read = await acquire(storage, "b", limits=limits)
    assert (read.acquired, read.pending) == ([], 3)
    assert pending(raw) == dict.fromkeys(given_up, (DEAD, 2))
    letters = [Delivered(added[0], added[1], 2), Delivered(later[0], later[0], 2)]
    assert await shares.dead_letters(STREAM, GROUP) == letters
    end_locks(raw)
    assert (await acquire(storage, "b", limits=limits)).acquired == [], "their locks do not end"
    assert await shares.describe(STREAM, GROUP) == SharePosition(added[0], 3, ((DEAD, 3),))
    await shares.bury(STREAM, GROUP, [Delivered(added[0], added[1], 2)])
    assert await shares.dead_letters(STREAM, GROUP) == letters[1:]
    raw.xclaim(KEY, GROUP, "program", 0, [id_of(later[0])])
    await shares.bury(STREAM, GROUP, letters)
    assert pending(raw) == {later[0]: ("program", 3)}, "a program has taken it"
    await shares.release(STREAM, GROUP, "b", limits)
    raw.xgroup_delconsumer(KEY, GROUP, "program")
    assert await shares.delete(STREAM, GROUP), "the consumer of dead letters is no program"


async def test_many_dead_letters_do_not_hide_ended_locks(storage: RedisStorage, raw: Any) -> None:
    limits = LIMITS._replace(dead_letters=True)
    added = fill(raw, 400)
    await acquire(storage, limits=limits)
    dead = [*added[:250], *added[251:350]]
    assert await acknowledge(storage, "a", Outcome.REJECT, *dead, limits=limits) == []
    assert sum(each.last - each.first + 1 for each in await storage.native.shares.dead_letters(STREAM, GROUP)) == 349
    end_locks(raw)
    first = await acquire(storage, "b", 1, limits=limits)
    assert (offsets(first), first.more) == ([added[250]], True)
    assert offsets(await acquire(storage, "b", limits=limits)) == added[350:]


async def test_a_dead_letter_without_an_offset_is_acknowledged(storage: RedisStorage, raw: Any) -> None:
    limits = LIMITS._replace(deliveries=1, dead_letters=True)
    await acquire(storage, limits=limits)
    assert await storage.native.shares.dead_letters(STREAM, "none") == []
    raw.xadd(KEY, {"value": "v"}, id="1-2000")
    raw.xreadgroup(GROUP, "program", {KEY: ">"})
    end_locks(raw)
    assert (await acquire(storage, limits=limits)).pending == 1
    assert await storage.native.shares.dead_letters(STREAM, GROUP) == []
    await storage.ping()
    assert raw.xpending(KEY, GROUP)["pending"] == 0


async def test_a_list_with_one_wrong_acknowledgement_changes_nothing(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 30)
    await acquire(storage, "a", 15)
    await acquire(storage, "b", 10)
    before = pending(raw)
    for wrong in (added[15], added[29], added[14] + 1):
        assert await acknowledge(storage, "a", Outcome.DONE, *added[:3], wrong) is None
        assert await acknowledge(storage, "a", Outcome.DONE, *added[:15], wrong) is None, "many at once"
    assert await acknowledge(storage, "x", Outcome.RELEASE, added[0]) is None
    assert pending(raw) == before


async def test_a_range_must_have_all_its_offsets(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 5, apart=0)
    fill(raw, 1, first_ms=5)
    await acquire(storage)
    shares = storage.native.shares
    for first, last in ((0, 2**62), (added[0], 5 << 10), (-1, added[0]), (added[1], added[0])):
        given = [Acknowledgement(first, last, Outcome.DONE)]
        assert await shares.acknowledge(STREAM, GROUP, "a", LIMITS, given) is None
    assert len(pending(raw)) == 6
    kinds = [
        Acknowledgement(added[0], added[1], Outcome.DONE),
        Acknowledgement(added[2], added[2], Outcome.RELEASE),
        Acknowledgement(added[3], added[4], Outcome.DONE),
    ]
    assert await shares.acknowledge(STREAM, GROUP, "a", LIMITS, kinds) == []
    assert pending(raw) == {added[2]: (RELEASED, 1), 5 << 10: ("a", 1)}


async def test_an_acknowledgement_below_everything_pending_is_done_already(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 3)
    await acquire(storage)
    assert await acknowledge(storage, "a", Outcome.DONE, *added[:2]) == []
    assert await acknowledge(storage, "a", Outcome.DONE, *added[:2]) == []
    assert await acknowledge(storage, "a", Outcome.DONE, added[2]) == []
    assert await acknowledge(storage, "b", Outcome.RELEASE, added[2]) == [], "also the last one"
    assert await acknowledge(storage, "a", Outcome.DONE, added[2] + 1) is None
    assert pending(raw) == {}


async def test_the_window_counts_what_programs_have(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 10)
    limits = LIMITS._replace(window=5)
    assert offsets(await acquire(storage, "a", limits=limits)) == added[:5]
    assert offsets(await acquire(storage, "b", limits=limits)) == []
    await acknowledge(storage, "a", Outcome.DONE, *added[:2])
    raw.xreadgroup(GROUP, "program", {KEY: ">"}, count=1)
    read = await acquire(storage, "b", limits=limits)
    assert (offsets(read), read.pending) == ([added[6]], 5)


async def test_entries_beyond_the_bytes_stay_available_with_their_numbers(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 40, value=bytes(100))
    added += fill(raw, 1, first_ms=100, value=bytes(50_000))
    added += fill(raw, 5, first_ms=200)
    read = await acquire(storage, limit=10_000)
    assert (offsets(read), read.more) == (added[:40], True)
    assert {number for name, number in pending(raw).values() if name == RELEASED} <= {0}
    read = await acquire(storage, "b", limit=10_000, first=40_000)
    assert (read.acquired, read.wants, read.more) == ([], 50_005, True)
    read = await acquire(storage, "b", limit=10_000, first=60_000)
    assert read.acquired == [Delivered(added[40], added[40], 1)]
    await acknowledge(storage, "b", Outcome.RELEASE, added[40])
    read = await acquire(storage, "c", limit=10_000, first=40_000)
    assert read.wants == 50_005
    assert pending(raw)[added[40]] == (RELEASED, 1)
    assert [each.deliveries for each in (await acquire(storage, "c", limit=60_000)).acquired] == [2] + [1] * 5


async def test_entries_without_an_offset_are_acknowledged(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"value": "v"}, id="1-2000")
    [there] = fill(raw, 1, first_ms=2)
    read = await acquire(storage)
    assert (offsets(read), read.unfit) == ([there], ("1-2000",))
    await storage.ping()
    assert pending(raw) == {there: ("a", 1)}


async def test_deleted_entries_are_no_longer_pending(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 6)
    await acquire(storage, "a")
    await acknowledge(storage, "a", Outcome.RELEASE, *added[:4])
    raw.xdel(KEY, *(id_of(offset) for offset in (added[0], added[2], added[4])))
    assert await acknowledge(storage, "a", Outcome.DONE, added[4]) == [], "its owner need not know"
    assert offsets(await acquire(storage, "b")) == [added[1], added[3]]
    assert set(pending(raw)) == {added[1], added[3], added[5]}


async def test_a_member_that_ends_releases_everything_and_its_consumer(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 2_500)
    limits = LIMITS._replace(window=10_000)
    for _ in range(5):
        await acquire(storage, "a", limits=limits)
    assert len(pending(raw)) == 2_500
    raw.xgroup_createconsumer(KEY, GROUP, "program")
    assert await storage.native.shares.release(STREAM, GROUP, "a", LIMITS) == []
    assert pending(raw) == dict.fromkeys(added, (RELEASED, 1))
    assert {each["name"] for each in raw.xinfo_consumers(KEY, GROUP)} == {RELEASED, "program"}
    assert await storage.native.shares.release(STREAM, GROUP, "a", LIMITS) == [], "again"


async def test_members_of_a_crashed_broker_are_removed_with_another_one(
    storage: RedisStorage, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, 3)
    for member, count in (("idle", 0), ("holds", 1), ("a", 1)):
        await acquire(storage, member, count or 1)
        if not count:
            await storage.native.shares.acknowledge(
                STREAM, GROUP, member, LIMITS, [Acknowledgement(1 << 10, 1 << 10, Outcome.DONE)]
            )
    raw.xgroup_createconsumer(KEY, GROUP, "program")
    monkeypatch.setattr("headrace.storage.native.shares._IDLE_MS", 0)
    await storage.native.shares.release(STREAM, GROUP, "a", LIMITS._replace(lock_ms=0))
    assert {each["name"] for each in raw.xinfo_consumers(KEY, GROUP)} == {RELEASED, "holds", "program"}


async def test_altered_offsets_forget_what_is_pending(storage: RedisStorage, raw: Any) -> None:
    """XGROUP SETID would deliver what others have, and begin their numbers of deliveries again."""
    added = fill(raw, 10)
    await acquire(storage, "a", 6)
    raw.xreadgroup(GROUP, "program", {KEY: ">"}, count=2)
    await storage.native.shares.alter(STREAM, GROUP, added[4])
    assert pending(raw) == {}
    assert offsets_of_lag(await storage.native.shares.describe(STREAM, GROUP)) == (added[4], 6)
    assert await acknowledge(storage, "a", Outcome.DONE, added[5]) is None
    read = await acquire(storage, "b")
    assert offsets(read) == added[4:]
    assert {each.deliveries for each in read.acquired} == {1}
    await storage.native.shares.alter(STREAM, "new", added[9])
    assert (await storage.native.shares.describe(STREAM, "new")) == SharePosition(added[9], 1)


async def test_the_position_is_the_first_entry_that_is_not_done(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 6)
    shares = storage.native.shares
    assert await shares.describe(STREAM, GROUP) is None
    await acquire(storage, "a", 4)
    assert await shares.describe(STREAM, GROUP) == SharePosition(added[0], 6, (("a", 4),))
    await acknowledge(storage, "a", Outcome.DONE, added[0], added[2])
    assert await shares.describe(STREAM, GROUP) == SharePosition(added[1], 4, (("a", 2),))
    await acknowledge(storage, "a", Outcome.DONE, added[1], added[3])
    assert await shares.describe(STREAM, GROUP) == SharePosition(added[3] + 1, 2)


async def test_a_deleted_group_is_destroyed_unless_a_program_uses_it(storage: RedisStorage, raw: Any) -> None:
    fill(raw, 3)
    await acquire(storage, "a", 1)
    await acquire(storage, "b", 1)
    await storage.native.shares.release(STREAM, GROUP, "a", LIMITS)
    assert await storage.native.shares.delete(STREAM, GROUP)
    assert raw.xinfo_groups(KEY) == []
    assert not raw.exists(groups_of(KEY))
    with pytest.raises(UnknownTopic):
        await acquire(storage, begin=False)
    await acquire(storage, "a", 1)
    raw.xreadgroup(GROUP, "program", {KEY: ">"}, count=1)
    assert not await storage.native.shares.delete(STREAM, GROUP)
    assert len(raw.xinfo_groups(KEY)) == 1


async def test_a_destroyed_group_has_nothing_to_acknowledge(storage: RedisStorage, raw: Any) -> None:
    [offset] = fill(raw, 1)
    await acquire(storage)
    raw.xgroup_destroy(KEY, GROUP)
    with pytest.raises(GroupGone):
        await acknowledge(storage, "a", Outcome.DONE, offset)
    assert await storage.native.shares.release(STREAM, GROUP, "a", LIMITS) == []
    assert offsets(await acquire(storage, begin=False)) == [offset], "it begins again"


async def test_a_group_that_has_not_begun_is_refused(storage: RedisStorage, raw: Any) -> None:
    """A consumer group of the name keeps its entries, also those of a member whose ID a share member uses."""
    added = fill(raw, 4)
    entered = await storage.native.enter(STREAM, GROUP, "member", 0)
    await storage.native.read_new(STREAM, GROUP, "member", 2, 1 << 20, last_id=entered.last_id, at=0)
    for refused in (acquire(storage, "member", begin=False), acknowledge(storage, "member", Outcome.DONE, added[0])):
        with pytest.raises(UnknownTopic):
            await refused
    assert await storage.native.shares.release(STREAM, GROUP, "member", LIMITS) == []
    assert pending(raw) == dict.fromkeys(added[:2], ("member", 1))


async def test_a_share_group_continues_where_a_program_has_begun_it(storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 4)
    raw.xgroup_create(KEY, GROUP, "2-0")
    assert offsets(await acquire(storage, create_at=None)) == added[2:]


async def test_an_older_server_is_refused(open_storage: OpenStorage, storage: RedisStorage, raw: Any) -> None:
    added = fill(raw, 2)
    await acquire(storage, "a", 1)
    newer = await open_storage(2)
    await newer.native.open(STREAM)
    shares = storage.native.shares
    for refused in (
        shares.begin(STREAM, "other", 0),
        acquire(storage, "a", 1, begin=False),
        acknowledge(storage, "a", Outcome.DONE, added[0]),
        shares.release(STREAM, GROUP, "a", LIMITS),
        shares.bury(STREAM, GROUP, [Delivered(added[0], added[0], 1)]),
        shares.alter(STREAM, GROUP, 0),
        shares.delete(STREAM, GROUP),
    ):
        with pytest.raises(Fenced):
            await refused
    assert pending(raw) == {added[0]: ("a", 1)}
    assert offsets(await acquire(newer, "a", 1)) == added[1:], "the new one goes on without a takeover"


@pytest.mark.parametrize("bits", [0, 3, 12])
async def test_offsets_of_other_sequence_bits(open_storage: OpenStorage, raw: Any, bits: int) -> None:
    stream = NativeStream(KEY, bits)
    storage = await open_storage()
    await storage.native.open(stream)
    for number in range(6):
        raw.xadd(KEY, {"value": "v"}, id=f"{5 + (number >> bits)}-{number & (1 << bits) - 1}")
    shares = storage.native.shares
    await shares.begin(stream, GROUP, 0)
    read = await shares.acquire(stream, GROUP, "a", LIMITS, 100, 1 << 20, create_at=0)
    first = 5 << bits
    assert read.acquired == [Delivered(first, first + 5, 1)]
    given = [Acknowledgement(first, first + 5, Outcome.DONE)]
    assert await shares.acknowledge(stream, GROUP, "a", LIMITS, given) == []
    assert pending(raw) == {}
