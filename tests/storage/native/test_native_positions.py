"""The offset of a group of a plain stream, and its cost for Redis."""

from typing import Any

from tests.harness.plain import KEY, STREAM

from headrace.storage.layout.native import offset_at
from headrace.storage.storage import RedisStorage

COUNT = 6_000


def delivered(raw: Any) -> list[str]:
    """A group of a Redis program that was given all of a stream; the ids."""
    pipe = raw.pipeline()
    for _ in range(COUNT):
        pipe.xadd(KEY, {"value": "v"})
    found: list[str] = pipe.execute()
    raw.xgroup_create(KEY, "group", id="0")
    raw.xreadgroup("group", "program", {KEY: ">"}, count=COUNT)
    return found


def called(raw: Any) -> tuple[int, int]:
    """How many scripts Redis was sent, and how often they read entries."""
    stats = raw.info("commandstats")
    return stats["cmdstat_evalsha"]["calls"], stats.get("cmdstat_xrange", {"calls": 0})["calls"]


async def standing(storage: RedisStorage, raw: Any) -> tuple[int | None, int, int]:
    """The group's offset, the number of scripts that it took, and the number of reads in them."""
    scripts, reads = called(raw)
    found = await storage.native.position(STREAM, "group", None)
    scripts_after, reads_after = called(raw)
    return found, scripts_after - scripts, reads_after - reads


async def test_a_run_of_deleted_pending_entries_is_passed_at_once(storage: RedisStorage, raw: Any) -> None:
    ids = delivered(raw)
    raw.xdel(KEY, *ids[1:-1])
    raw.xack(KEY, "group", ids[0])
    found, scripts, reads = await standing(storage, raw)
    assert (found, scripts) == (offset_at(ids[-1].encode()), 1)
    assert reads < 10


async def test_what_is_deleted_in_between_is_looked_through_in_pieces(storage: RedisStorage, raw: Any) -> None:
    """Every second entry was deleted while it was pending, the others were acknowledged."""
    ids = delivered(raw)
    raw.xdel(KEY, *ids[1::2])
    raw.xack(KEY, "group", *ids[:-2:2])
    found, scripts, _ = await standing(storage, raw)
    assert (found, scripts) == (offset_at(ids[-2].encode()), COUNT // 2 // 250)


async def test_large_entries_are_looked_through_in_pieces(storage: RedisStorage, raw: Any) -> None:
    ids = []
    for _ in range(3):
        ids += [raw.xadd(KEY, {"value": "v"}), raw.xadd(KEY, {"value": b"v" * (5 << 20)})]
    raw.xgroup_create(KEY, "group", id="0")
    raw.xreadgroup("group", "program", {KEY: ">"})
    raw.xack(KEY, "group", *ids[1::2])
    raw.xdel(KEY, *ids[::2])
    last = raw.xadd(KEY, {"value": "v"})
    raw.xreadgroup("group", "program", {KEY: ">"})
    found, scripts, _ = await standing(storage, raw)
    assert (found, scripts) == (offset_at(last.encode()), 4)


async def test_where_all_that_was_pending_is_deleted_it_stands_behind_the_last(storage: RedisStorage, raw: Any) -> None:
    ids = delivered(raw)
    raw.xdel(KEY, *ids)
    assert (await standing(storage, raw))[0] == offset_at(ids[-1].encode()) + 1
