"""A partition whose stream becomes another one: no acknowledged record stays in the old one, on a real Redis."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.broker.native.brokers import over
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.native.adoption import adopt
from headrace.membership.view import Member, View
from headrace.records.build import build
from headrace.topics.errors import InvalidConfig, InvalidPartitions, StorageUnavailable, TopicExists
from headrace.topics.model import Appended

VIEW = 7


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A Redis program, with a stream of its own."""
    with redis.Redis.from_url(any_redis.url) as link:
        yield link


@pytest.fixture
async def broker(open_storage: OpenStorage, raw: Any) -> Broker:
    """With a native topic, one of whose partitions has a record; a Redis program has a stream."""
    made = over(await open_storage())
    await made.topics.create("t", 2, {"headrace.storage": "native"})
    assert isinstance(await put(made, 1), Appended)
    raw.xadd("mine", {"value": "x"}, id="1-0")
    return made


async def put(broker: Broker, partition: int) -> Appended | Exception:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    try:
        broker.append("t", partition, bytearray(build([(None, b"x", 5, ())])), answer.set_result)
    except StorageUnavailable as error:
        return error
    return await answer


def lose_the_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Redis does what it is asked for, once, and cannot say so."""
    topics = broker.topics.storage.topics
    change = getattr(topics, name)

    async def changed(*args: Any) -> None:
        monkeypatch.undo()
        await change(*args)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(topics, name, changed)


async def test_an_answer_that_is_lost_does_not_leave_the_old_stream_in_use(
    broker: Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_answer(broker, monkeypatch, "replace")
    live = await adopt(broker.topics, "t", "mine", 0, {})
    assert isinstance(await put(broker, 0), Appended)
    assert (raw.xlen("mine"), raw.xlen("t:0")) == (2, 0)
    assert await broker.topics.storage.topics.find("t") == live.topic


async def test_nothing_is_taken_for_the_old_stream_once_it_was_found_empty(
    broker: Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = broker.topics.storage.topics
    replace, told = topics.replace, list[object]()

    async def replace_while_a_producer_sends(*args: Any) -> None:
        told.append(await put(broker, 0))
        await replace(*args)

    monkeypatch.setattr(topics, "replace", replace_while_a_producer_sends)
    await adopt(broker.topics, "t", "mine", 0, {})
    assert [type(each) for each in told] == [StorageUnavailable]
    assert isinstance(await put(broker, 0), Appended)
    assert (raw.xlen("mine"), raw.xlen("t:0")) == (2, 0)


async def test_what_is_not_adopted_takes_records_as_before(
    broker: Broker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise StorageUnavailable("no connection to Redis")

    with monkeypatch.context() as patch:
        patch.setattr(broker.topics.storage.topics, "replace", refuse)
        with pytest.raises(StorageUnavailable):
            await adopt(broker.topics, "t", "mine", 0, {})
    assert isinstance(await put(broker, 0), Appended)
    # Also if a Redis program has added the record, which no broker has noticed yet.
    raw.xadd("t:1", {"value": "x"})
    for partition in (0, 1):
        with pytest.raises(InvalidPartitions, match="has records of its own already"):
            await adopt(broker.topics, "t", "mine", partition, {})
        assert isinstance(await put(broker, partition), Appended)
    assert raw.xlen("mine") == 1


async def test_a_topic_whose_creation_was_not_announced_is_known_at_the_next_try(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_answer(broker, monkeypatch, "create")
    with pytest.raises(StorageUnavailable):
        await adopt(broker.topics, "new", "mine", 0, {})
    with pytest.raises(TopicExists):
        await adopt(broker.topics, "new", "mine", 0, {})
    assert broker.topics.get("new").topic.streams == ("mine",)


async def test_no_stream_takes_the_place_of_one_that_other_brokers_write(open_storage: OpenStorage, raw: Any) -> None:
    ownership = Ownership(1)
    two = tuple(Member(node_id=number, incarnation="a", process="", host="here", port=1) for number in (1, 2))
    ownership.adopt(View(VIEW, two), inside=True)
    broker = over(await open_storage(VIEW, alone=False), ownership)
    await broker.topics.create("t", 1, {"headrace.storage": "native"})
    raw.xadd("mine", {"value": "x"})
    with pytest.raises(InvalidConfig, match="while other brokers run"):
        await adopt(broker.topics, "t", "mine", 0, {})
    live = await adopt(broker.topics, "t", "mine", 1, {})
    assert live.topic.streams == ("t:0", "mine")
