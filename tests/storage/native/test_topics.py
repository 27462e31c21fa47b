"""Native partitions in Redis: ids from one clock, all or nothing, producers' sequences, trims, waiting."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import OpenStorage
from tests.harness.logs import appended, opened
from tests.harness.plain import KEY, STREAM, append, base, batch, ids
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.records.walk import records
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.layout.native import groups_of, id_of, offset_at
from headrace.storage.native.watch import MOST_STREAMS
from headrace.storage.redis.clients import asynchronous
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import (
    CorruptBatch,
    Fenced,
    OffsetsExhausted,
    StorageFull,
    StorageUnavailable,
    TopicError,
    TopicExists,
    UnknownTopic,
)
from headrace.topics.model import Append, Appended, Topic
from headrace.topics.native import GroupGone, NativeRead, NativeStream, NotAStream


def offsets(read: NativeRead) -> list[int]:
    return [record.offset for each in read.batches for record in records(each.batch, each.base_offset)]


async def test_an_entry_per_record_with_the_documented_fields(storage: RedisStorage, raw: Any) -> None:
    first = await base(storage, batch(2, codec=3))
    assert raw.xrange(KEY) == [
        (id_of(first), {"key": "k", "value": "v0", "timestamp": "1000"}),
        (id_of(first + 1), {"key": "k", "value": "v1", "timestamp": "1001"}),
    ]


async def test_offsets_are_the_present_milliseconds(storage: RedisStorage, raw: Any) -> None:
    seconds, micros = raw.time()
    first = await base(storage, batch(1))
    assert 0 <= (first >> 10) - (seconds * 1000 + micros // 1000) < 5_000


@pytest.mark.parametrize("bits", [0, 3, 10, 12])
async def test_a_burst_rolls_into_the_next_millisecond(open_storage: OpenStorage, raw: Any, bits: int) -> None:
    stream = NativeStream(KEY, bits)
    storage = await open_storage()
    await storage.native.open(stream)
    answers = await append(storage, batch(5_000), batch(3_000), batch(1), stream=stream)
    bases = [answer.base_offset for answer in answers if isinstance(answer, Appended)]
    expected = [
        start + number for start, count in zip(bases, (5_000, 3_000, 1), strict=True) for number in range(count)
    ]
    assert [offset_at(entry.encode(), bits) for entry in ids(raw)] == expected
    assert bases == sorted(bases)
    assert all(int(entry.split("-")[1]) < 1 << bits for entry in ids(raw))


async def test_ids_never_go_back_behind_those_of_others(storage: RedisStorage, raw: Any) -> None:
    seconds, _ = raw.time()
    ahead = (seconds + 1_000) * 1000
    raw.xadd(KEY, {"a": "b"}, id=f"{ahead}-1023")
    assert await base(storage, batch(2)) == (ahead + 1) << 10
    raw.xadd(KEY, {"a": "b"}, id=f"{ahead + 1}-5000")
    assert await base(storage, batch(1)) == (ahead + 2) << 10


async def test_ids_never_go_back_after_everything_was_deleted(storage: RedisStorage, raw: Any) -> None:
    first = await base(storage, batch(50_000))
    raw.delete(KEY)
    assert await base(storage, batch(1)) >= first + 50_000


async def test_two_servers_clocks_are_one(storage: RedisStorage, open_storage: OpenStorage, raw: Any) -> None:
    await base(storage, batch(1))
    later = await open_storage(2)
    await later.native.open(STREAM)
    [refused] = await append(storage, batch(1))
    assert isinstance(refused, Fenced)
    assert await base(later, batch(1)) > 0
    assert len(ids(raw)) == 2


async def test_all_or_nothing_where_redis_is_full(storage: RedisStorage, raw: Any) -> None:
    await base(storage, batch(3))
    raw.config_set("maxmemory", 1)
    try:
        answers = await append(storage, batch(500))
    finally:
        raw.config_set("maxmemory", 0)
    assert isinstance(answers[0], StorageFull)
    assert raw.xlen(KEY) == 3
    assert await base(storage, batch(1)) > 0


async def test_a_key_of_another_type_takes_nothing(storage: RedisStorage, raw: Any) -> None:
    raw.set(KEY, "x")
    [refused] = await append(storage, batch(2))
    assert isinstance(refused, NotAStream)
    with pytest.raises(NotAStream):
        await storage.native.read(STREAM, 0, 1_000)
    assert raw.get(KEY) == "x"


async def test_a_partition_that_is_not_there(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    [refused] = await append(storage, batch(1))
    assert isinstance(refused, UnknownTopic)


async def test_offsets_end_below_2_53(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"a": "b"}, id=f"{2**43 - 1}-1000")
    [refused] = await append(storage, batch(30))
    assert isinstance(refused, OffsetsExhausted)
    assert raw.xlen(KEY) == 1


async def test_offsets_that_were_given_end_below_2_53(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"a": "b"}, id=f"{2**43 - 1}-1000")
    assert await base(storage, batch(22)) == 2**53 - 23
    # Nothing lies ahead of what is given next, but there is nothing left to give.
    for count in (1, 30):
        [refused] = await append(storage, batch(count))
        assert isinstance(refused, OffsetsExhausted)
    assert raw.xlen(KEY) == 23


async def test_records_that_cannot_be_read_are_refused_before_anything_is_sent(storage: RedisStorage, raw: Any) -> None:
    made = batch(2)
    broken = Append(bytearray(made.batch[:70]) + b"\xff" * (len(made.batch) - 70), 2, 1_000)
    with pytest.raises(CorruptBatch):
        storage.native.append(STREAM, broken, lambda _: None)
    assert raw.exists(KEY) == 0


# Reading


async def test_reading_begins_at_the_next_entry(storage: RedisStorage) -> None:
    first = await base(storage, batch(5))
    assert offsets(await storage.native.read(STREAM, 0, 1 << 20)) == list(range(first, first + 5))
    assert offsets(await storage.native.read(STREAM, first, 1 << 20, first + 2)) == [first, first + 1]
    assert offsets(await storage.native.read_last(STREAM, first + 4, 1 << 20)) == list(range(first, first + 4))
    end = await storage.native.read(STREAM, first + 5, 1 << 20)
    assert (end.batches, end.extent.log_start, end.extent.log_end) == ([], 0, first + 5)


async def test_a_read_ends_at_the_given_offset(storage: RedisStorage, raw: Any) -> None:
    for number in range(20):
        raw.xadd(KEY, {"value": "x"}, id=f"{1 + number}-0")
    found = await storage.native.read(STREAM, 0, 1 << 20, 5 << 10)
    assert (found.entries, found.more) == (4, False)
    await storage.native.enter(STREAM, "group", "m", 0)
    few = await storage.native.read_new(STREAM, "group", "m", 7, 1 << 20, last_id="0-0", at=0)
    assert (few.entries, few.more) == (7, True)
    rest = await storage.native.read_new(STREAM, "group", "m", 500, 1 << 20, last_id=few.last_id, at=few.following)
    assert (rest.entries, rest.more) == (13, False)
    again = await storage.native.read_pending(STREAM, "group", "m", 0, 1 << 20, 11 << 10)
    assert (again.entries, again.more) == (10, False)


async def test_a_group_reads_existing_records_while_redis_is_full(storage: RedisStorage, raw: Any) -> None:
    """A new member claims what the one before it was given, and commits; a group that is new begins."""
    first = await base(storage, batch(3))
    native = storage.native
    before = await native.enter(STREAM, "group", "gone", first)
    await native.read_new(STREAM, "group", "gone", 1, 1_000, last_id=before.last_id, at=first)
    raw.config_set("maxmemory", 1)
    try:
        for group, pending in (("group", 1), ("new", 0)):
            entered = await native.enter(STREAM, group, "m", first)
            assert entered.pending == pending
            at = first + pending
            read = await native.read_new(STREAM, group, "m", 10, 1_000, last_id=entered.last_id, at=at)
            assert offsets(read) == list(range(at, first + 3))
            assert await native.commit(STREAM, group, first + 3) == (3, False)
    finally:
        raw.config_set("maxmemory", 0)


async def test_a_group_that_is_not_there(storage: RedisStorage) -> None:
    await base(storage, batch(1))
    with pytest.raises(GroupGone):
        await storage.native.read_new(STREAM, "nobody", "m", 10, 1_000, last_id="0-0", at=0)


# Trimming


async def test_trim_by_time_knows_the_log_start_to_the_offset(storage: RedisStorage, raw: Any) -> None:
    for number in (1, 2, 5, 9):
        raw.xadd(KEY, {"a": "b"}, id=f"{number}000-3")
    extent = await storage.native.trim(STREAM, before_ms=5_000)
    assert ids(raw) == ["5000-3", "9000-3"]
    assert extent.log_start == (2000 << 10) + 4
    assert (await storage.native.trim(STREAM, before_ms=5_000)).log_start == extent.log_start
    everything = await storage.native.trim(STREAM, before_ms=10_000)
    assert (everything.log_start, everything.log_end) == ((9000 << 10) + 4,) * 2


async def test_nothing_to_trim_leaves_the_start_at_0(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"a": "b"}, id="7000-0")
    assert (await storage.native.trim(STREAM, before_ms=5_000, max_bytes=1_000)).log_start == 0
    assert ids(raw) == ["7000-0"]


async def test_trim_by_bytes_keeps_at_least_so_many(storage: RedisStorage, raw: Any) -> None:
    for number in range(100):
        raw.xadd(KEY, {"value": "v" * 95}, id=f"{number + 1}-0")
    extent = await storage.native.trim(STREAM, max_bytes=1_000)
    assert raw.xlen(KEY) == 10
    assert extent.log_start == (90 << 10) + 1
    assert (await storage.native.trim(STREAM, max_bytes=1_000)).log_start == extent.log_start


async def test_trim_by_bytes_of_a_long_stream(storage: RedisStorage, raw: Any) -> None:
    await base(storage, batch(30_000))
    size = sum(len(part) for _, fields in raw.xrange(KEY) for pair in fields.items() for part in pair)
    await storage.native.trim(STREAM, max_bytes=size * 2 // 3)
    assert 19_000 < raw.xlen(KEY) < 21_500


async def test_others_are_served_while_large_entries_are_weighed(
    storage: RedisStorage, raw: Any, any_redis: RedisServer
) -> None:
    """With ten thousand of 60 kB each Redis would stand still for half a second."""
    for number in range(400):
        raw.xadd(KEY, {"value": bytes(60_000)}, id=f"{number + 1}-0")
    served = 0
    async with asynchronous(any_redis.url) as other:
        trimming = asyncio.create_task(storage.native.trim(STREAM, max_bytes=15_000_000))
        while not trimming.done():
            await other.ping()
            served += 1
    assert served >= 10
    assert raw.xlen(KEY) == 250


async def test_delete_up_to_an_offset(storage: RedisStorage, raw: Any) -> None:
    first = await base(storage, batch(10))
    extent = await storage.native.trim(STREAM, before_offset=first + 4)
    assert extent.log_start == first + 4
    assert len(ids(raw)) == 6
    assert (await storage.native.trim(STREAM, before_offset=0)).log_start == first + 4


@pytest.mark.parametrize("bits", [0, 10, 20])
async def test_offsets_above_2_to_the_53_are_trimmed_to_the_digit(storage: RedisStorage, raw: Any, bits: int) -> None:
    stream, first = NativeStream(KEY, bits), (1 << 60) + (1 << bits) - 1
    for offset in range(first, first + 4):
        raw.xadd(KEY, {"a": "b"}, id=id_of(offset, bits))
    for start in range(first + 1, first + 4):
        extent = await storage.native.trim(stream, before_offset=start)
        assert (extent.log_start, ids(raw)) == (start, [id_of(each, bits) for each in range(start, first + 4)])
    oldest = (first + 3 >> bits) + 1
    assert (await storage.native.trim(stream, before_ms=oldest)).log_start == first + 4


async def test_a_trim_beyond_all_offsets_starts_where_the_log_ends(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"a": "b"}, id="18446744073709551615-5")
    assert (await storage.native.trim(STREAM, max_bytes=0)).log_start == 1 << 62


# Topics


def topic(*streams: str, **config: str) -> Topic:
    return Topic(
        name="t",
        id=UUID(int=7),
        streams=streams,
        config={"headrace.storage": "native"} | {name.replace("_", "."): value for name, value in config.items()},
        created_ms=5,
    )


async def test_a_topic_is_created_and_deleted_with_all_its_keys(open_storage: OpenStorage, raw: Any) -> None:
    storage = await open_storage()
    made = topic("headrace:t:0", "headrace:t:1")
    await storage.topics.create(made)
    with pytest.raises(TopicExists):
        await storage.topics.create(made)
    assert await storage.topics.load() == [made]
    stream = NativeStream("headrace:t:0", 10)
    await base(storage, batch(2, producer=3, epoch=0, sequence=0), stream)
    await storage.native.enter(stream, "g", "m", 0)
    await storage.topics.delete(made)
    names = ("headrace:t:0", "headrace:t:1")
    assert not raw.exists(*names, *map(state_of, names), *map(producers_of, names), *map(groups_of, names))
    assert await storage.topics.load() == []


async def test_a_stream_that_was_there_before_its_topic_is_kept_by_creation(
    open_storage: OpenStorage, raw: Any
) -> None:
    storage = await open_storage()
    raw.xadd("headrace:t:0", {"a": "b"}, id="5-0")
    await storage.topics.create(topic("headrace:t:0"))
    assert raw.xlen("headrace:t:0") == 1


async def test_an_adopted_stream_must_be_one_and_outlives_the_topic(open_storage: OpenStorage, raw: Any) -> None:
    storage = await open_storage()
    made = topic("mine", headrace_adopted="0")
    with pytest.raises(TopicError, match="not there"):
        await storage.topics.create(made)
    raw.set("mine", "x")
    with pytest.raises(TopicError, match="a string"):
        await storage.topics.create(made)
    raw.delete("mine")
    raw.xadd("mine", {"a": "b"}, id="5-0")
    before = raw.dump("mine")
    await storage.topics.create(made)
    assert raw.dump("mine") == before
    await storage.topics.delete(made)
    assert raw.dump("mine") == before
    assert not raw.exists(state_of("mine"))


async def test_the_stream_of_a_log_topic_is_not_adopted(open_storage: OpenStorage, raw: Any) -> None:
    storage = await open_storage()
    await appended(await opened(storage, "headrace:log:0"), batch(1))
    with pytest.raises(TopicError, match="log topic"):
        await storage.native.open(NativeStream("headrace:log:0", 10), must_exist=True)


async def test_a_deletion_cut_short_is_finished_by_the_next_server(
    open_storage: OpenStorage, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await open_storage()
    made = topic("headrace:t:0", "mine", headrace_adopted="1")
    raw.xadd("mine", {"a": "b"})
    await storage.topics.create(made)
    await base(storage, batch(2), NativeStream("headrace:t:0", 10))

    async def cut_short(_: Topic) -> None:
        raise StorageUnavailable("the connection is lost")

    monkeypatch.setattr(storage.topics, "drop_streams", cut_short)
    await storage.topics.delete(made)
    assert raw.exists("headrace:t:0") == 1
    later = await open_storage(2)
    assert await later.topics.load() == []
    assert raw.exists("headrace:t:0") == 0
    assert raw.exists("mine") == 1
    assert raw.exists(state_of("mine")) == 0


# Waiting


async def until_it_waits(raw: Any) -> None:
    """Until Redis holds back its answer to XREAD."""
    await until(lambda: any(each["cmd"] == "xread" and "b" in each["flags"] for each in raw.client_list()))


async def test_anybodys_xadd_wakes_who_waits(storage: RedisStorage, raw: Any) -> None:
    woken: list[int | None] = []
    storage.native.watch(STREAM, 0, woken.append)
    await until_it_waits(raw)
    assert woken == []
    raw.xadd(KEY, {"a": "b"}, id="5-0")
    await until(lambda: bool(woken))
    assert woken == [(5 << 10) + 1]


async def test_a_watch_from_before_an_entry_wakes_at_once(storage: RedisStorage, raw: Any) -> None:
    raw.xadd(KEY, {"a": "b"}, id="5-0")
    first: list[int | None] = []
    storage.native.watch(STREAM, 0, first.append)
    await until(lambda: bool(first))
    second: list[int | None] = []
    storage.native.watch(STREAM, 0, second.append)
    await until(lambda: bool(second))


async def test_many_streams_are_watched_by_one_connection(storage: RedisStorage, raw: Any) -> None:
    before = raw.info("clients")["connected_clients"]
    woken: list[int | None] = []
    for number in range(50):
        storage.native.watch(NativeStream(f"stream-{number}", 10), 0, woken.append)
    await until_it_waits(raw)
    assert raw.info("clients")["connected_clients"] <= before + 1
    for number in range(50):
        raw.xadd(f"stream-{number}", {"a": "b"})
    await until(lambda: len(woken) == 50)


async def test_very_many_streams_are_watched_by_several_connections(storage: RedisStorage, raw: Any) -> None:
    """Redis goes through all streams that a connection waits for when an entry comes, or one of the keys into being."""
    woken: list[int] = []
    streams = [NativeStream(f"stream-{number}", 10) for number in range(2 * MOST_STREAMS + 1)]
    for number, stream in enumerate(streams):
        storage.native.watch(stream, 0, lambda _, number=number: woken.append(number))  # type: ignore[misc]

    def waiting() -> int:
        return sum(1 for each in raw.client_list() if each["cmd"] == "xread" and "b" in each["flags"])

    await until(lambda: waiting() == 3)
    for stream in streams[:10]:
        storage.native.unwatch(stream)
    for number in range(10):
        storage.native.watch(NativeStream(f"other-{number}", 10), 0, lambda _: None)
    for stream in streams:
        raw.xadd(stream.key, {"a": "b"})
    await until(lambda: sorted(woken) == list(range(10, len(streams))))
    await until(lambda: waiting() <= 3)


async def test_a_watch_outlives_a_killed_connection(storage: RedisStorage, raw: Any) -> None:
    woken: list[int | None] = []
    storage.native.watch(STREAM, 0, woken.append)

    def killed() -> bool:
        waiting = [client["id"] for client in raw.client_list() if client["cmd"] == "xread"]
        return any(raw.client_kill_filter(_id=number) for number in waiting)

    await until(killed)
    await until(lambda: bool(woken))
    assert woken == [None], "whoever waits looks again"
    storage.native.watch(STREAM, 0, woken.append)
    raw.xadd(KEY, {"a": "b"}, id="5-0")
    await until(lambda: len(woken) > 1)


async def test_a_key_that_is_no_stream_spoils_the_waiting_for_no_other(storage: RedisStorage, raw: Any) -> None:
    raw.set("odd", "x")
    odd: list[int | None] = []
    fine: list[int | None] = []
    storage.native.watch(NativeStream("odd", 10), 0, odd.append)
    storage.native.watch(STREAM, 0, fine.append)
    await until_it_waits(raw)
    assert fine == []
    raw.xadd(KEY, {"a": "b"}, id="5-0")
    await until(lambda: bool(fine))
    assert fine == [(5 << 10) + 1]
    raw.delete("odd")
    raw.xadd("odd", {"a": "b"}, id="7-0")
    await until(lambda: bool(odd))
    assert odd == [(7 << 10) + 1]


async def test_what_is_not_watched_any_more_is_not_asked_for(storage: RedisStorage, raw: Any) -> None:
    for number in range(5):
        storage.native.watch(NativeStream(f"gone-{number}", 10), 0, lambda _: None)
        storage.native.unwatch(NativeStream(f"gone-{number}", 10))
    woken: list[int | None] = []
    raw.xadd(KEY, {"a": "b"}, id="5-0")
    with raw.monitor() as monitor:
        storage.native.watch(STREAM, 0, woken.append)
        await until(lambda: woken)
        asked = next(each["command"] for each in monitor.listen() if each["command"].startswith("XREAD"))
    assert KEY in asked
    assert "gone" not in asked


async def test_waiting_goes_on_where_client_unblock_is_not_allowed(
    open_storage: OpenStorage, any_redis: RedisServer, raw: Any
) -> None:
    raw.execute_command("ACL", "SETUSER", "default", "-client|unblock")
    try:
        storage = await open_storage()
        woken: list[str] = []
        storage.native.watch(STREAM, 0, lambda _: woken.append(KEY))
        await until_it_waits(raw)
        storage.native.watch(NativeStream("later", 10), 0, lambda _: woken.append("later"))
        raw.xadd("later", {"a": "b"})
        await until(lambda: "later" in woken)
        raw.xadd(KEY, {"a": "b"})
        await until(lambda: KEY in woken)
    finally:
        raw.execute_command("ACL", "SETUSER", "default", "+client|unblock")
