"""A native topic that is deleted while producers go on: nothing of it comes back, on a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.records.build import build
from headrace.store.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Appended, Topic

OpenStorage = Callable[..., Awaitable[RedisStorage]]
TRIES = 20
"""A partition that is opened once more takes records after one or two."""


def over(storage: RedisStorage) -> Broker:
    return Broker(
        storage,
        BrokerSettings.of({}),
        ManualClock(),
        cluster_id="c",
        stream_of=lambda name, _, index: f"{name}:{index}",
    )


async def put(broker: Broker) -> Appended | Exception:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answer.set_result)
    return await answer


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_producers_send_meanwhile_does_not_bring_it_back(
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
