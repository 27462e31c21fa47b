"""What is deleted of native topics, while producers go on or Redis is away, does not come back; on a real Redis."""

import asyncio
from typing import Any

import pytest
import redis
from tests.broker.native.brokers import over
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.broker.native.stream_manager import natives_of
from headrace.groups.effects import DeleteGroupResult
from headrace.groups.events import Commit, DeleteGroup
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.records.build import build
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Appended, Topic

TRIES = 20
"""A partition that is opened once more takes records after one or two."""


async def put(broker: Broker) -> Appended | Exception:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answer.set_result)
    return await answer


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_records_sent_during_the_deletion_do_not_restore_it(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Neither where it is deleted nor at another broker, which has not heard of it yet."""
    storage = await open_storage()
    broker = over(storage)
    await broker.topics.create("t", 1, {"headrace.storage": "native"})
    deleting = broker
    if elsewhere:
        deleting = over(await open_storage())
        await deleting.topics.load()
    topics = deleting.topics.storage.topics
    drop_streams = topics.drop_streams

    async def drop_while_a_producer_sends(topic: Topic) -> None:
        await drop_streams(topic)
        refused = [await put(broker) for _ in range(TRIES)]
        assert {type(each) for each in refused} == {StorageUnavailable}

    monkeypatch.setattr(topics, "drop_streams", drop_while_a_producer_sends)
    await deleting.topics.delete("t")
    if not elsewhere:
        with pytest.raises(UnknownTopic):
            await put(broker)
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as raw:
        left: Any = raw.keys("*t:0*")
    assert left == []


async def test_a_group_that_is_deleted_while_redis_is_away_for_a_moment_does_not_stay(
    open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next group of that name would begin at its offset, and it could not be deleted again."""
    storage = await open_storage()
    broker = over(storage)
    places = [TopicPartition(name, 0) for name in ("t", "u")]
    for place in places:
        await broker.topics.create(place.topic, 1, {"headrace.storage": "native"})
    positions = {place: OffsetAndMetadata(offset=5 << 10) for place in places}
    for _ in range(2):
        # Without a stream, the committed offset alone gives the position of a group.
        await broker.groups.request(
            "g", Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=positions)
        )
        assert isinstance(await put(broker), Appended)
    assert await storage.native.group_lags(natives_of(broker.topics.get("t").partitions)[0].place)
    forget, away = storage.native.forget_group, 3

    async def forget_after_a_while(*args: Any) -> bool:
        nonlocal away
        if away:
            away -= 1
            raise StorageUnavailable("the connection was lost")
        return await forget(*args)

    monkeypatch.setattr(storage.native, "forget_group", forget_after_a_while)
    assert await broker.groups.request("g", DeleteGroup(token=object())) == DeleteGroupResult()
    assert await broker.positions("g", places) == {}


@pytest.mark.parametrize("died_at", range(6))
async def test_a_group_whose_server_dies_while_it_is_deleted_is_there_or_gone(
    open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch, died_at: int
) -> None:
    """With half of it left, a new group of that name would begin at the old offset and could not be deleted."""
    storage = await open_storage()
    broker = over(storage)
    place = TopicPartition("t", 0)
    await broker.topics.create("t", 1, {"headrace.storage": "native"})
    assert isinstance(await put(broker), Appended)
    stands = {place: OffsetAndMetadata(offset=5 << 10)}
    commit = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=stands)
    await broker.groups.request("g", commit)
    call, left = storage.scripts.call, died_at

    async def call_until_it_dies(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StorageUnavailable("killed")
        return await call(*args)

    monkeypatch.setattr("headrace.broker.runtime.retry.ASK_AGAIN_S", 0)
    monkeypatch.setattr(storage.scripts, "call", call_until_it_dies)
    deleted = await broker.groups.request("g", DeleteGroup(token=object()))
    assert (deleted == DeleteGroupResult()) == (left >= 0)
    later = over(await open_storage(2))
    await later.topics.load()
    await later.groups.load()
    if later.groups.exists("g"):
        assert (await later.positions("g", [place]))[place].offset == 5 << 10
        assert await later.groups.request("g", DeleteGroup(token=object())) == DeleteGroupResult()
    assert await later.positions("g", [place]) == {}
    assert await later.topics.storage.native.group_lags(natives_of(later.topics.get("t").partitions)[0].place) == []
