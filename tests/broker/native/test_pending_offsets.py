"""Offsets of transactions in a native topic, on a real Redis: its Redis group moves when they become committed."""

import asyncio
from typing import Any

import pytest
import redis
from tests.broker.native.brokers import over
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.groups.effects import CommitResult, EndOffsetsResult
from headrace.groups.events import Commit, EndOffsets, TxnOffsetCommit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.records.build import build
from headrace.topics.model import Appended

PLACE = TopicPartition("t", 0)


async def put(broker: Broker) -> int:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answer.set_result)
    appended = await answer
    assert isinstance(appended, Appended)
    return appended.base_offset


async def third() -> int:
    return 3


@pytest.mark.parametrize("committed", [True, False])
async def test_the_redis_group_moves_when_the_transaction_is_committed_as_by_any_commit(
    open_storage: OpenStorage, any_redis: RedisServer, committed: bool
) -> None:
    broker = over(await open_storage())
    await broker.topics.create("t", 1, {"headrace.storage": "native"})
    offsets = [await put(broker) for _ in range(5)]
    positions = {PLACE: OffsetAndMetadata(offset=offsets[2])}
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as raw:

        def group(name: str) -> Any:
            [found] = [each for each in raw.xinfo_groups("t:0") if each["name"] == name]
            return {**found, "name": ""}

        for name in ("plain", "tx"):
            raw.xgroup_create("t:0", name, 0)
        before = group("tx")
        event = TxnOffsetCommit(
            token=object(),
            transactional_id="tx",
            producer_id=7,
            producer_epoch=0,
            generation=-1,
            member_id="",
            instance_id=None,
            positions=positions,
        )
        stored = await broker.groups.commit_in_transaction("tx", event, third)
        assert stored == CommitResult(partitions={PLACE: None})
        assert group("tx") == before
        assert set(broker.groups.unstable("tx")) == {PLACE}

        end = EndOffsets(token=object(), producer_id=7, producer_epoch=0, commit=committed, number=3)
        assert await broker.groups.request("tx", end) == EndOffsetsResult()
        assert set(broker.groups.unstable("tx")) == set()
        plain = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=positions)
        await broker.groups.request("plain", plain)
        assert group("plain") != before
        assert group("tx") == (group("plain") if committed else before)
    if committed:
        assert (await broker.positions("tx", [PLACE]))[PLACE].offset == offsets[2]
