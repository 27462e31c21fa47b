"""Calls of scripts where the disk is nearly full: what Redis answers then proves nothing."""

import asyncio
from pathlib import Path

import hiredis
import pytest
from tests.storage.conftest import Wire

from headrace.storage.free_space import RESERVE_BYTES, FreeSpace
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import StorageFull, StorageUnavailable

NEARLY = RESERVE_BYTES + (100 << 20)
MISCONF = hiredis.ReplyError("MISCONF Errors writing to the AOF file")
PROVEN = [
    "put_topic",
    "save_group",
    "save_transaction",
    "save_documents",
    "register_group",
    "open",
    "take_producer_ids",
]
GROWING = ["put_topic", "save_group", "save_transaction", "save_documents", "register_group"]


def scripts(wire: Wire, free: int) -> Scripts:
    return Scripts(wire, FreeSpace(Path(), lambda _: free))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", GROWING)
async def test_below_the_reserve_what_grows_is_refused(wire: Wire, name: str) -> None:
    with pytest.raises(StorageFull, match="64 MiB"):
        await scripts(wire, RESERVE_BYTES - 1).call(name, ["k"])
    assert wire.sent == []


@pytest.mark.parametrize("name", ["trim", "remove_topic", "drop"])
async def test_what_makes_room_is_not(wire: Wire, name: str) -> None:
    called = asyncio.ensure_future(scripts(wire, 0).call(name, ["k"]))
    await asyncio.sleep(0)
    wire.answer(1)
    assert await called == 1


@pytest.mark.parametrize("name", PROVEN)
async def test_an_answer_is_believed_once_redis_has_taken_something_behind_it(wire: Wire, name: str) -> None:
    called = asyncio.ensure_future(scripts(wire, NEARLY).call(name, ["k"]))
    await asyncio.sleep(0)
    wire.answer(b"OK")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not called.done()
    assert wire.next() == [[b"PING"]]
    wire.answer(b"PONG")
    assert await called == b"OK"


@pytest.mark.parametrize("name", PROVEN)
async def test_nor_is_it_where_redis_takes_nothing_more(wire: Wire, name: str) -> None:
    called = asyncio.ensure_future(scripts(wire, NEARLY).call(name, ["k"]))
    await asyncio.sleep(0)
    wire.answer(b"OK")
    for _ in range(5):
        await asyncio.sleep(0)
    wire.answer(MISCONF)
    with pytest.raises(StorageUnavailable):
        await called


async def test_with_room_nothing_more_is_asked(wire: Wire) -> None:
    called = asyncio.ensure_future(scripts(wire, 1 << 40).call("put_topic", ["k"]))
    await asyncio.sleep(0)
    wire.answer(1)
    assert await called == 1
    assert wire.sent == []
