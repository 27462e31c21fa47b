import asyncio
from collections.abc import Awaitable, Callable, Iterator
from uuid import UUID

import pytest
import redis
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import producers_of, state_of
from headrace.records.build import build
from headrace.store.storage import RedisStorage
from headrace.topics.errors import (
    Fenced,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageFull,
    StorageUnavailable,
    TopicError,
    TopicExists,
    UnknownTopic,
)
from headrace.topics.model import Append, Appended, PartitionState, StoredBatch, Topic

STREAM = "headrace:t:0"
OpenStorage = Callable[..., Awaitable[RedisStorage]]


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A client that sees what is stored."""
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        yield link


@pytest.fixture(params=[False, True], ids=["", "alone"])
async def storage(request: pytest.FixtureRequest, open_storage: OpenStorage) -> RedisStorage:
    """A storage with one open partition, STREAM."""
    opened = await open_storage(alone=request.param)
    await opened.open_partition(STREAM)
    return opened


def batch(*timestamps: int, value: bytes = b"x" * 50) -> Append:
    """A batch with a record for each timestamp."""
    made = build([(None, value, timestamp, ()) for timestamp in timestamps])
    return Append(made, len(timestamps), max(timestamps))


def sent(count: int, sequence: int, *, producer: int = 7, epoch: int = 0) -> Append:
    """A batch of an idempotent producer."""
    made = build([(None, b"x", 1_000, ())] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return Append(made, count, 1_000, producer, epoch, sequence)


async def append(storage: RedisStorage, *appends: Append, stream: str = STREAM) -> list[Appended | Exception]:
    """Send them all at once; what each was answered."""
    answers: list[Appended | Exception] = []
    done = asyncio.Event()

    def answered(result: Appended | Exception) -> None:
        answers.append(result)
        if len(answers) == len(appends):
            done.set()

    for each in appends:
        storage.append(stream, each, answered)
    await done.wait()
    return answers


def topic(name: str = "t", partitions: int = 1) -> Topic:
    streams = tuple(f"headrace:{name}:{number}" for number in range(partitions))
    return Topic(name=name, id=UUID(int=7), streams=streams, config={}, created_ms=5)


def bases(found: list[StoredBatch]) -> list[int]:
    return [stored.base_offset for stored in found]


# Topics


async def test_a_topic_comes_back_as_it_was_stored(storage: RedisStorage) -> None:
    first, second = topic("b", 3), topic("a")
    await storage.create_topic(first)
    await storage.create_topic(second)
    assert await storage.load_topics() == [second, first]


async def test_a_name_is_taken_once(storage: RedisStorage) -> None:
    await storage.create_topic(topic())
    with pytest.raises(TopicExists):
        await storage.create_topic(topic())


async def test_a_topic_is_replaced(storage: RedisStorage) -> None:
    await storage.create_topic(topic())
    grown = topic(partitions=2)
    await storage.replace_topic(grown)
    assert await storage.load_topics() == [grown]


async def test_a_topic_goes_with_all_its_keys(storage: RedisStorage, raw: "redis.Redis") -> None:
    before = set(raw.keys())
    await storage.create_topic(topic("u", 200))
    await append(storage, sent(3, 0), stream="headrace:u:199")
    assert len(set(raw.keys()) - before) == 200 + 2 + 1  # states; one stream, its producers; the registry
    await storage.delete_topic(topic("u", 200))
    assert set(raw.keys()) == before
    assert await storage.load_topics() == []


async def test_a_topic_begins_empty_whatever_a_deletion_cut_short_left(storage: RedisStorage) -> None:
    await append(storage, batch(1, 2))
    await storage.create_topic(topic())
    assert await storage.open_partition(STREAM) == PartitionState(log_start=0, next_offset=0, leader_epoch=0)
    assert await storage.read(STREAM, 0, 10) == []


async def test_a_deletion_cut_short_is_finished_by_the_next_server(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    kept, gone = topic("kept", 2), topic("gone", 3)
    await storage.create_topic(kept)
    before = set(raw.keys())
    await storage.create_topic(gone)
    await append(storage, sent(3, 0), stream="headrace:gone:2")
    await storage._remove_topic("begin", gone)
    restarted = await open_storage(epoch=2)
    assert await restarted.load_topics() == [kept]
    assert set(raw.keys()) == before


async def test_a_deletion_cut_short_spares_a_topic_created_since(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    await storage.create_topic(topic("u", 3))
    await append(storage, batch(1), stream="headrace:u:0")
    await append(storage, batch(1), stream="headrace:u:2")
    await storage._remove_topic("begin", topic("u", 3))
    ((topic_id, note),) = raw.hgetall("headrace:{meta}:deleted").items()
    again = await open_storage(epoch=2)
    await again.create_topic(topic("u", 2))
    assert not raw.exists("headrace:u:2")
    await append(again, batch(1, 2), stream="headrace:u:0")
    raw.hset("headrace:{meta}:deleted", topic_id, note)
    assert await (await open_storage(epoch=3)).load_topics() == [topic("u", 2)]
    assert (await again.open_partition("headrace:u:0")).next_offset == 2
    assert not raw.exists("headrace:{meta}:deleted")


async def test_deleting_what_is_not_there_is_no_trouble(storage: RedisStorage, raw: "redis.Redis") -> None:
    await storage.delete_topic(topic("never"))
    assert not raw.exists("headrace:{meta}:deleted")


async def test_an_append_behind_a_deletion_is_refused(storage: RedisStorage) -> None:
    await storage.create_topic(topic())
    deletion = asyncio.create_task(storage.delete_topic(topic()))
    await deletion
    assert [type(answer) for answer in await append(storage, batch(1))] == [UnknownTopic]


# Appends


async def test_offsets_are_dense(storage: RedisStorage) -> None:
    answers = await append(storage, batch(1, 2, 3), batch(4), batch(5, 6))
    assert answers == [Appended(0), Appended(3), Appended(4)]
    assert await storage.open_partition(STREAM) == PartitionState(log_start=0, next_offset=6, leader_epoch=0)


async def test_a_batch_is_stored_byte_for_byte(storage: RedisStorage) -> None:
    small, large = batch(1), batch(2, value=bytes(range(256)) * 4_000)
    await append(storage, small, large)
    found = await storage.read(STREAM, 0, 10)
    assert found == [StoredBatch(0, 1, bytes(small.batch)), StoredBatch(1, 2, bytes(large.batch))]


async def test_any_buffer_may_be_appended(storage: RedisStorage) -> None:
    made = bytes(batch(1).batch)
    kinds: list[bytes | bytearray | memoryview] = [
        made,
        bytearray(made),
        memoryview(bytearray(b"before" + made + b"behind"))[6:-6],
    ]
    await append(storage, *(Append(kind, 1, 1) for kind in kinds))
    assert [stored.batch for stored in await storage.read(STREAM, 0, 10)] == [made] * 3


async def test_a_partition_nobody_opened_takes_nothing(storage: RedisStorage) -> None:
    assert [type(answer) for answer in await append(storage, batch(1), stream="headrace:u:0")] == [UnknownTopic]


async def test_a_retry_gets_the_first_offset(storage: RedisStorage) -> None:
    answers = await append(storage, sent(3, 0), sent(2, 3), sent(3, 0), sent(2, 3))
    assert answers == [Appended(0), Appended(3), Appended(0, duplicate=True), Appended(3, duplicate=True)]
    assert len(await storage.read(STREAM, 0, 10)) == 2


async def test_a_gap_in_the_sequence_is_refused(storage: RedisStorage) -> None:
    answers = await append(storage, sent(3, 0), sent(3, 4), sent(3, 3))
    assert [type(answer) for answer in answers] == [Appended, OutOfOrderSequence, Appended]


async def test_an_epoch_of_a_producer_ends(storage: RedisStorage) -> None:
    answers = await append(storage, sent(1, 0), sent(1, 0, epoch=1), sent(1, 1), sent(1, 1, epoch=1))
    assert [type(answer) for answer in answers] == [Appended, Appended, InvalidProducerEpoch, Appended]


async def test_sequences_survive_a_restart(storage: RedisStorage, open_storage: OpenStorage) -> None:
    await append(storage, sent(3, 0))
    again = await open_storage(epoch=2)
    await again.open_partition(STREAM)
    assert await append(again, sent(3, 0), sent(1, 3)) == [Appended(0, duplicate=True), Appended(3)]


async def test_an_older_server_is_fenced(storage: RedisStorage, open_storage: OpenStorage) -> None:
    await storage.create_topic(topic("u"))
    newer = await open_storage(epoch=2)
    await newer.open_partition(STREAM)
    assert [type(answer) for answer in await append(storage, batch(1), sent(1, 0))] == [Fenced, Fenced]
    for refused in (
        storage.open_partition(STREAM),
        storage.trim(STREAM, before_ms=5, max_bytes=5),
        storage.delete_records(STREAM, 1),
        storage.mirror_position(STREAM, "g", 1),
        storage._drop(topic().streams),
    ):
        with pytest.raises(Fenced):
            await refused
    assert await append(newer, batch(1)) == [Appended(0)]


async def test_an_older_server_changes_no_topic(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    await storage.create_topic(topic("u"))
    raw.set("headrace:{meta}:epoch", 2)
    for refused in (
        storage.create_topic(topic("v")),
        storage.replace_topic(topic("u", 2)),
        storage.delete_topic(topic("u")),
        storage.allocate_producer_ids(1),
    ):
        with pytest.raises(Fenced):
            await refused
    assert await (await open_storage(epoch=2)).load_topics() == [topic("u")]


async def test_a_newer_epoch_may_append_at_once(storage: RedisStorage, open_storage: OpenStorage) -> None:
    newer = await open_storage(epoch=2)
    assert await append(newer, batch(1)) == [Appended(0)]
    assert [type(answer) for answer in await append(storage, batch(1))] == [Fenced]


async def test_offsets_end_below_two_to_the_53(storage: RedisStorage, raw: "redis.Redis") -> None:
    last = (1 << 53) - 1
    raw.hset(state_of(STREAM), "n", str(last - 4))
    answers = await append(storage, batch(1, 2, 3), batch(1, 2), batch(1), batch(1))
    assert [type(answer) for answer in answers] == [Appended, StorageFull, Appended, StorageFull]
    assert answers[0] == Appended(last - 4)
    assert answers[2] == Appended(last - 1)
    assert bases(await storage.read(STREAM, last - 3, 10)) == [last - 4, last - 1]


async def test_a_key_of_somebody_else_is_left_alone(storage: RedisStorage, raw: "redis.Redis") -> None:
    raw.xadd("headrace:u:0", {"hello": "world"})
    with pytest.raises(TopicError, match="did not write"):
        await storage.open_partition("headrace:u:0")
    raw.set("headrace:v:0", "text")
    with pytest.raises(TopicError, match="WRONGTYPE"):
        await storage.open_partition("headrace:v:0")


@pytest.mark.parametrize("trimmed", [0, 3, 4, 8])
async def test_a_lost_state_is_made_again_from_the_entries(
    storage: RedisStorage, raw: "redis.Redis", trimmed: int
) -> None:
    await append(storage, batch(10, 20, 30), batch(5), batch(40, 50, 60, 70))
    await storage.delete_records(STREAM, trimmed)
    before = raw.hgetall(state_of(STREAM))
    raw.delete(state_of(STREAM))
    state = await storage.open_partition(STREAM)
    assert state == PartitionState(log_start=trimmed, next_offset=8, leader_epoch=0)
    if trimmed < 8:  # without an entry nothing tells how much there ever was, and nothing needs to
        assert raw.hgetall(state_of(STREAM)) == before
    assert await append(storage, batch(80)) == [Appended(8)]


# Full


@pytest.fixture
def full(raw: "redis.Redis") -> Iterator[Callable[[], None]]:
    """Makes Redis full; it has room again after the test."""

    def fill() -> None:
        raw.config_set("maxmemory", 1)

    yield fill
    raw.config_set("maxmemory", 0)


async def test_a_full_redis_refuses_appends_and_writes_nothing(
    storage: RedisStorage, raw: "redis.Redis", full: Callable[[], None]
) -> None:
    await append(storage, sent(2, 0))
    before = [raw.hgetall(state_of(STREAM)), raw.hgetall(producers_of(STREAM)), raw.xlen(STREAM)]
    full()
    answers = await append(storage, batch(1), sent(2, 2), sent(2, 0), batch(2))
    assert [type(answer) for answer in answers] == [StorageFull, StorageFull, Appended, StorageFull]
    assert [raw.hgetall(state_of(STREAM)), raw.hgetall(producers_of(STREAM)), raw.xlen(STREAM)] == before
    raw.config_set("maxmemory", 0)
    assert await append(storage, sent(2, 2)) == [Appended(2)]


async def test_a_full_redis_can_be_read_trimmed_and_opened(
    storage: RedisStorage, open_storage: OpenStorage, full: Callable[[], None]
) -> None:
    await storage.create_topic(topic("u"))
    await append(storage, batch(10), batch(20), batch(30))
    full()
    assert bases(await storage.read(STREAM, 0, 10)) == [0, 1, 2]
    assert await storage.find_timestamp(STREAM, 15) is not None
    assert await storage.trim(STREAM, before_ms=15, max_bytes=None) == 1
    assert await storage.delete_records(STREAM, 2) == 2
    restarted = await open_storage(epoch=2)
    assert (await restarted.open_partition(STREAM)).next_offset == 3
    await restarted.delete_topic(topic("u"))
    with pytest.raises(StorageFull):
        await restarted.create_topic(topic("v"))
    with pytest.raises(StorageFull):
        await restarted.allocate_producer_ids(1)


# Reading


async def test_a_read_begins_with_the_batch_that_holds_the_offset(storage: RedisStorage) -> None:
    await append(storage, batch(1, 2, 3), batch(4), batch(5, 6, 7, 8))
    for offset, expected in ((0, 0), (2, 0), (3, 3), (4, 4), (7, 4)):
        assert bases(await storage.read(STREAM, offset, 1)) == [expected], offset
    assert bases(await storage.read(STREAM, 1, 2)) == [0, 3]
    assert await storage.read(STREAM, 8, 10) == []


async def test_a_partition_without_records_reads_as_empty(storage: RedisStorage) -> None:
    assert await storage.read(STREAM, 0, 10) == []
    assert await storage.find_timestamp(STREAM, 0) is None
    assert await storage.find_max_timestamp(STREAM) is None
    assert await storage.size(STREAM) == 0
    assert await storage.trim(STREAM, before_ms=1 << 50, max_bytes=0) == 0


# By time


async def test_a_time_finds_the_first_batch_with_a_record_so_late(storage: RedisStorage) -> None:
    await append(storage, batch(10, 30), batch(20), batch(5), batch(40), batch(30))
    found = {time: await storage.find_timestamp(STREAM, time) for time in (0, 10, 25, 30, 31, 40, 41)}
    assert {time: stored and stored.base_offset for time, stored in found.items()} == {
        0: 0, 10: 0, 25: 0, 30: 0, 31: 4, 40: 4, 41: None,
    }  # fmt: skip
    latest = await storage.find_max_timestamp(STREAM)
    assert latest is not None
    assert latest.base_offset == 4


async def test_a_time_that_was_trimmed_misleads_nobody(storage: RedisStorage) -> None:
    await append(storage, batch(1_000), *(batch(10 + number) for number in range(40)), batch(500), batch(400))
    await storage.delete_records(STREAM, 1)
    found = {time: await storage.find_timestamp(STREAM, time) for time in (10, 49, 50, 450, 501, 1_000)}
    assert {time: stored and stored.base_offset for time, stored in found.items()} == {
        10: 1, 49: 40, 50: 41, 450: 41, 501: None, 1_000: None,
    }  # fmt: skip
    latest = await storage.find_max_timestamp(STREAM)
    assert latest is not None
    assert latest.base_offset == 41


async def test_records_without_a_time_are_as_old_as_their_arrival(storage: RedisStorage) -> None:
    storage._now_ms = lambda: 100
    await append(storage, batch(-1), batch(50), batch(-1))
    assert await storage.trim(STREAM, before_ms=100, max_bytes=None) == 0
    assert await storage.find_timestamp(STREAM, 51) is None
    found = [await storage.find_timestamp(STREAM, 50), await storage.find_max_timestamp(STREAM)]
    assert [stored and stored.base_offset for stored in found] == [1, 1]
    assert await storage.trim(STREAM, before_ms=101, max_bytes=None) == 3


async def test_no_record_has_a_time(storage: RedisStorage) -> None:
    await append(storage, batch(-1), batch(-1))
    assert await storage.find_max_timestamp(STREAM) is None
    assert await storage.find_timestamp(STREAM, 0) is None


# Trimming


async def test_retention_by_time_drops_what_is_older(storage: RedisStorage) -> None:
    await append(storage, batch(10, 20), batch(15), batch(30), batch(25), batch(40))
    for before_ms, expected in ((20, 0), (21, 3), (30, 3), (31, 5), (41, 6)):
        assert await storage.trim(STREAM, before_ms=before_ms, max_bytes=None) == expected
    assert await storage.read(STREAM, 0, 10) == []
    assert await storage.open_partition(STREAM) == PartitionState(log_start=6, next_offset=6, leader_epoch=0)
    assert await append(storage, batch(1)) == [Appended(6)]


async def test_retention_by_bytes_keeps_at_least_that_many(storage: RedisStorage) -> None:
    each = len(batch(1).batch)
    await append(storage, *(batch(1) for _ in range(10)))
    assert await storage.size(STREAM) == 10 * each
    for most, expected in ((10 * each, 0), (9 * each + 1, 0), (9 * each, 1), (4 * each + 5, 5), (0, 10)):
        assert await storage.trim(STREAM, before_ms=None, max_bytes=most) == expected
        assert await storage.size(STREAM) == (10 - expected) * each


async def test_the_sharper_limit_counts(storage: RedisStorage) -> None:
    each = len(batch(1).batch)
    await append(storage, *(batch(number) for number in range(10)))
    assert await storage.trim(STREAM, before_ms=2, max_bytes=7 * each) == 3
    assert await storage.trim(STREAM, before_ms=5, max_bytes=7 * each) == 5
    assert await storage.trim(STREAM, before_ms=None, max_bytes=None) == 5


async def test_the_log_start_may_lie_within_a_batch(storage: RedisStorage) -> None:
    await append(storage, batch(10, 20, 30), batch(40, 50))
    size = await storage.size(STREAM)
    assert await storage.delete_records(STREAM, 2) == 2
    assert await storage.size(STREAM) == size
    assert bases(await storage.read(STREAM, 2, 10)) == [0, 3]
    assert await storage.delete_records(STREAM, 1) == 2
    assert await storage.trim(STREAM, before_ms=5, max_bytes=None) == 2
    assert await storage.delete_records(STREAM, 4) == 4
    assert bases(await storage.read(STREAM, 0, 10)) == [3]
    assert await storage.size(STREAM) == len(batch(40, 50).batch)


async def test_the_log_start_goes_no_further_than_the_end(storage: RedisStorage) -> None:
    await append(storage, batch(1, 2))
    assert await storage.delete_records(STREAM, 100) == 2
    assert await storage.delete_records(STREAM, 100) == 2
    assert await append(storage, batch(3)) == [Appended(2)]
    assert bases(await storage.read(STREAM, 0, 10)) == [2]


async def test_producers_not_heard_of_are_forgotten(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage(producer_expiry_ms=1_000)
    await storage.open_partition(STREAM)
    storage._now_ms = lambda: 10_000
    await append(storage, sent(1, 0, producer=1), sent(1, 0, producer=2))
    storage._now_ms = lambda: 10_500
    await append(storage, sent(1, 1, producer=2))
    storage._now_ms = lambda: 11_001
    await storage.trim(STREAM, before_ms=None, max_bytes=None)
    assert list(raw.hgetall(producers_of(STREAM))) == ["2"]
    assert await append(storage, sent(1, 4711, producer=1), sent(1, 2, producer=2)) == [Appended(3), Appended(4)]


async def test_producers_are_forgotten_where_nothing_is_ever_trimmed(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    storage = await open_storage(producer_expiry_ms=1_000)
    await storage.open_partition(STREAM)
    storage._now_ms = lambda: 10_000
    await append(storage, sent(1, 0))
    storage._now_ms = lambda: 11_001
    await storage.open_partition(STREAM)
    assert raw.hgetall(producers_of(STREAM)) == {}


# Producer ids


async def test_producer_ids_are_given_once(storage: RedisStorage, open_storage: OpenStorage) -> None:
    assert await storage.allocate_producer_ids(1_000) == 0
    assert await (await open_storage(epoch=2)).allocate_producer_ids(10) == 1_000
    assert await storage.allocate_producer_ids(1) == 1_010


async def test_producer_ids_stay_exact(storage: RedisStorage, raw: "redis.Redis") -> None:
    raw.set("headrace:{meta}:producer-ids", (1 << 60) + 1)
    assert await storage.allocate_producer_ids(1_000) == (1 << 60) + 1


# Scripts lost


async def test_appends_go_on_after_a_script_flush(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    await storage.open_partition(STREAM)
    await append(storage, sent(1, 0))
    raw.script_flush()
    answers = await append(storage, *(sent(1, 1 + number) for number in range(5)))
    assert [type(answer) for answer in answers] == [StorageUnavailable] * 5
    async with asyncio.timeout(10):
        while not storage._connection.connected:
            await asyncio.sleep(0)
    answers = await append(storage, *(sent(1, 1 + number) for number in range(5)))
    assert answers == [Appended(1 + number) for number in range(5)]
    assert bases(await storage.read(STREAM, 0, 100)) == list(range(6))


# Killed


@pytest.mark.parametrize("alone", [False, True])
async def test_no_batch_is_lost_or_doubled_when_redis_is_killed(alone: bool) -> None:
    """What has no answer is sent again, as a client does: each sequence is stored once, in order."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "no"}) as server:
        storage = await RedisStorage.open(server.url, redis.asyncio.from_url(server.url), 1, alone=alone)
        await storage.open_partition(STREAM)
        answered: dict[int, int] = {}
        for kill_after in (3, 40, 90):
            first = len(answered)
            results = await _append_and_kill(storage, server, first, kill_after)
            server.start()
            await _reached_again(storage)
            for number, result in enumerate(results, first):
                again = [result] if isinstance(result, Appended) else await append(storage, sent(1, number))
                assert isinstance(again[0], Appended), again
                answered[number] = again[0].base_offset
        assert answered == {number: number for number in range(300)}
        assert bases(await storage.read(STREAM, 0, 1_000)) == list(range(300))
        await storage.close()


async def _reached_again(storage: RedisStorage) -> None:
    """The server from before is dead: an answer comes from the new one."""
    async with asyncio.timeout(20):
        while True:
            try:
                await storage.ping()
            except StorageUnavailable:
                await asyncio.sleep(0.001)
            else:
                return


async def _append_and_kill(
    storage: RedisStorage, server: RedisServer, first: int, kill_after: int
) -> list[Appended | Exception]:
    """Send a hundred appends; Redis is killed once so many of them were answered."""
    results: list[Appended | Exception] = []
    done = asyncio.Event()

    def answered(result: Appended | Exception) -> None:
        results.append(result)
        if len(results) == kill_after:
            server.kill()
        if len(results) == 100:
            done.set()

    for number in range(first, first + 100):
        storage.append(STREAM, sent(1, number), answered)
        # Each by itself: all at once would be one answer.
        await asyncio.sleep(0)
    await done.wait()
    return results
