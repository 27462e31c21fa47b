"""A Redis that can be read and takes no writes: its disk is full.

What comes with large answers may have left before Redis wrote its files: no matter for what writes nothing.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.harness import owning, plain
from tests.harness.redis import RedisServer, valkey_program

LARGE = 1 << 20


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer(valkey_program()) as started:
        yield started


@pytest.fixture
def link(store: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(store.url, decode_responses=True) as client:
        yield client


async def take_no_writes(link: Any) -> None:
    (Path(link.config_get("dir")["dir"]) / "dump.rdb").mkdir()
    link.config_set("save", "3600 1")
    link.bgsave()
    while link.info("persistence")["rdb_last_bgsave_status"] != "err":
        await asyncio.sleep(0)


async def test_a_gap_between_entries_is_looked_for(store: RedisServer, link: Any) -> None:
    owner = await owning.Owner.start(store.url, 1)
    native = owner.storage.native
    await native.open(plain.STREAM)
    link.xadd(plain.KEY, {"value": b"x" * LARGE}, id="1-0")
    await take_no_writes(link)
    reads = [native.read(plain.STREAM, 0, LARGE) for _ in range(4)]
    found, gap = await asyncio.gather(asyncio.gather(*reads), native.is_gap(plain.STREAM, 0, 5 << 10))
    assert [each.entries for each in found] == [1] * 4
    assert not gap
    await owner.crash()


async def test_another_brokers_log_is_read(store: RedisServer, link: Any) -> None:
    owner = await owning.Owner.start(store.url, 1)
    await owner.append(owning.batch(0, size=LARGE))
    await take_no_writes(link)
    log = await owner.storage.logs.look(owning.STREAM)
    found = await asyncio.gather(*(log.read(owning.STREAM, 0, 1) for _ in range(4)))
    assert [each.next_offset for [each] in found] == [1] * 4
    await owner.crash()
