"""What every storage promises the broker: the real one, and the one in memory that the broker's own tests run on."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import redis.asyncio
from tests.harness.logs import appended, opened
from tests.harness.memory import MemoryStorage
from tests.harness.redis import RedisServer

from headrace.broker.ports import Storage
from headrace.groups.model import DropGroup, OffsetAndMetadata, SaveOffsets, TopicPartition
from headrace.records.build import build
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import OutOfOrderSequence, TopicExists, UnknownTopic
from headrace.topics.model import Append, Appended, Topic

STREAM = "headrace:t:0"
TOPIC = Topic(name="t", id=UUID(int=1), streams=(STREAM,), config={}, created_ms=5)


@pytest.fixture(params=["memory", "redis"])
async def storage(request: pytest.FixtureRequest, shared_valkey: RedisServer) -> AsyncIterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
        return
    admin = redis.asyncio.from_url(shared_valkey.url)
    await admin.flushall()
    made = await RedisStorage.open(shared_valkey.url, admin, 1)
    yield made
    await made.close()


def batch(count: int = 1, timestamp: int = 1_000, producer: int = -1, sequence: int = -1) -> Append:
    epoch = -1 if producer < 0 else 0
    made = build(
        [(None, b"value", timestamp, ())] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return Append(made, count, timestamp, producer, epoch, sequence)


async def test_a_topic_is_there_from_its_creation_to_its_deletion(storage: Storage) -> None:
    await storage.topics.create(TOPIC)
    with pytest.raises(TopicExists):
        await storage.topics.create(TOPIC)
    assert (await storage.topics.load(), await storage.topics.find("t")) == ([TOPIC], TOPIC)
    await storage.topics.delete(TOPIC)
    assert (await storage.topics.load(), await storage.topics.find("t")) == ([], None)


async def test_a_log_that_does_not_exist_is_not_opened(storage: Storage) -> None:
    with pytest.raises(UnknownTopic):
        await storage.logs.open(STREAM, lambda _: None)


async def test_batches_are_stored_at_their_offsets(storage: Storage) -> None:
    log = await opened(storage, STREAM)
    assert await appended(log, batch(3), batch(1), batch(2)) == [Appended(0), Appended(3), Appended(4)]
    found = await storage.logs.read(STREAM, 3, 10)
    assert [(each.base_offset, each.next_offset) for each in found] == [(3, 4), (4, 6)]
    assert [each.base_offset for each in await storage.logs.read(STREAM, 0, 1)] == [0]
    assert [each.base_offset for each in await storage.logs.read(STREAM, 0, 10, 4)] == [0, 3]
    assert await storage.logs.read(STREAM, 6, 10) == []


async def test_batches_that_come_as_one_are_the_same(storage: Storage) -> None:
    log = await opened(storage, STREAM)
    sent = [batch(2) for _ in range(5)]
    await appended(log, *sent)
    alone = await storage.logs.read(STREAM, 0, 10)
    for most in (1, 3 * len(alone[0].batch), 1 << 20):
        joined = await storage.logs.read(STREAM, 0, 10, None, most)
        count = sum(each.count for each in joined)
        assert b"".join(each.batch for each in joined) == b"".join(each.batch for each in alone[:count])
        assert joined[-1].next_offset == alone[count - 1].next_offset
        assert joined[-1].count == 1


async def test_the_next_owner_goes_on_where_the_last_one_ended(storage: Storage) -> None:
    first = await opened(storage, STREAM)
    await appended(first, batch(2, producer=7, sequence=0))
    first.close()
    second = await opened(storage, STREAM)
    assert (second.log_start, second.log_end) == (0, 2)
    assert second.leader_epoch > first.leader_epoch
    assert second.end_of_epoch(first.leader_epoch) == (first.leader_epoch, 2)
    assert await appended(second, batch(2, producer=7, sequence=0)) == [Appended(0, duplicate=True)]
    with pytest.raises(OutOfOrderSequence):
        second.append(batch(1, producer=7, sequence=9), lambda _: None)
    assert await appended(second, batch(1, producer=7, sequence=2)) == [Appended(2)]


async def test_batches_are_found_by_time(storage: Storage) -> None:
    log = await opened(storage, STREAM)
    await appended(log, batch(timestamp=1_000), batch(timestamp=3_000), batch(timestamp=2_000))
    for wanted, offset in ((0, 0), (1_000, 0), (1_001, 1), (3_000, 1)):
        found = await storage.logs.find_timestamp(STREAM, wanted)
        assert found is not None
        assert found.base_offset == offset
    assert await storage.logs.find_timestamp(STREAM, 3_001) is None
    newest = await storage.logs.find_max_timestamp(STREAM)
    assert newest is not None
    assert newest.base_offset == 1


async def test_trimmed_records_are_gone_and_do_not_count(storage: Storage) -> None:
    log = await opened(storage, STREAM)
    size = len(batch().batch)
    await appended(log, *(batch(timestamp=1_000 * number) for number in range(1, 6)))
    assert await log.size() == 5 * size
    await log.trim(2_000, None)
    assert (log.log_start, await log.size()) == (1, 4 * size)
    await log.trim(None, 2 * size)
    assert (log.log_start, await log.size()) == (3, 2 * size)
    await log.delete_before(4)
    assert (log.log_start, await log.size()) == (4, size)
    assert [each.base_offset for each in await storage.logs.read(STREAM, 0, 10)] == [4]


async def test_producer_ids_are_given_out_once(storage: Storage) -> None:
    assert [await storage.topics.allocate_producer_ids(10) for _ in range(3)] == [0, 10, 20]


async def test_groups_and_documents_are_kept(storage: Storage) -> None:
    position = {TopicPartition("t", 0): OffsetAndMetadata(offset=4)}
    await storage.groups.save("g", [SaveOffsets(position)])
    [group] = await storage.groups.load()
    assert (group.name, group.positions) == ("g", position)
    await storage.groups.save("g", [DropGroup()])
    assert await storage.groups.load() == []
    await storage.documents.save({("kind", "b"): b"2", ("kind", "a"): b"1", ("other", "a"): b"3"})
    await storage.documents.save({("kind", "b"): None})
    assert await storage.documents.load("kind") == {"a": b"1"}
