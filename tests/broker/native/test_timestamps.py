"""What a native partition reads where entries may have any size. The storage is a list, or a Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import redis
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.timestamps import FoundOffset, Searcher, Special
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.decompression import Decompression
from headrace.storage.storage import RedisStorage
from headrace.topics.native import NativeStream


async def test_what_is_looked_into_for_a_time_is_counted(
    open_storage: Callable[..., Awaitable[RedisStorage]], any_redis: RedisServer
) -> None:
    with redis.Redis.from_url(any_redis.url) as raw:
        for number, size in enumerate((10, 2 << 20, 10)):
            raw.xadd("s", {"value": "x" * size}, id=f"{10 * (number + 1)}-0")
    storage = await open_storage()
    place = NativeStream("s", 10)
    partition = NativePartition("t", 0, place, await storage.native.open(place), storage.native)
    large_reads = ReadBudget(3 << 20)
    large_reads.take(2 << 20)
    for timestamp, ms in ((20, 20), (Special.MAX_TIMESTAMP, 30)):
        finding = asyncio.ensure_future(partition.find_offset(timestamp, Searcher(Decompression(), large_reads)))
        await until(lambda: large_reads.short)
        large_reads.release(2 << 20)
        assert await finding == FoundOffset(ms << 10, ms)
        assert large_reads.used == 0
        large_reads.take(2 << 20)
    partition.close()
