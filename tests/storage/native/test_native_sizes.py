"""Native partitions with entries of any size: reads are bounded, and do not copy large entries in vain."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conftest import OpenStorage
from tests.harness.plain import KEY, STREAM, base, batch

from headrace.records import streams
from headrace.records.walk import records
from headrace.storage.storage import RedisStorage
from headrace.topics.native import NativeRead


def offsets(read: NativeRead) -> list[int]:
    return [record.offset for each in read.batches for record in records(each.batch, each.base_offset)]


SIZES = [10] * 40 + [50_000, 200_000, 10, 30_000] + [10] * 5
"""Of entries that another program wrote: small ones do not indicate the large ones after them."""


def sizes(read: NativeRead) -> list[int]:
    return [len(record.value or b"") for each in read.batches for record in records(each.batch, each.base_offset)]


async def until_the_end(read: Callable[[int], Awaitable[NativeRead]]) -> list[list[int]]:
    """What each read finds, from the first offset on, as sizes."""
    found, at, more = [], 0, True
    while more:
        part = await read(at)
        found.append(sizes(part))
        at, more = part.following, part.more
    return found


@pytest.mark.parametrize("limit", [1_000, 40_000, 150_000])
async def test_reads_are_bounded_by_bytes_whatever_others_wrote(storage: RedisStorage, raw: Any, limit: int) -> None:
    for number, size in enumerate(SIZES):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{1 + number}-0")
    end = (1 + len(SIZES)) << 10
    native = storage.native
    await native.enter(STREAM, "group", "m", 0)
    forward = await until_the_end(lambda at: native.read(STREAM, at, limit))
    given = await until_the_end(lambda at: native.read_new(STREAM, "group", "m", 500, limit, last_id="0-0", at=at))
    pending = await until_the_end(lambda at: native.read_pending(STREAM, "group", "m", at, limit, end))
    for parts in (forward, given, pending):
        assert [size for part in parts for size in part] == SIZES, "nothing is left out or comes twice"
        assert all(sum(part) <= limit or len(part) == 1 for part in parts)
    last = await native.read_last(STREAM, end, limit)
    assert sizes(last) == SIZES[-len(sizes(last)) :]
    assert sum(sizes(last)) <= limit


async def test_entries_that_are_no_records_are_passed(storage: RedisStorage, raw: Any) -> None:
    """Of an entry that is too large, or has too many fields, no more is read than its id."""
    half = b"x" * (streams.LARGEST_ENTRY // 2)
    raw.xadd(KEY, {"a": half, "b": half}, id="1-0")
    raw.xadd(KEY, {"value": "v"}, id="2-0")
    raw.xadd(KEY, {str(number): "v" for number in range(streams.MOST_FIELDS + 1)}, id="3-0")
    raw.xadd(KEY, {str(number): "v" for number in range(streams.MOST_FIELDS)}, id="4-0")
    native, end = storage.native, 5 << 10
    await native.enter(STREAM, "group", "m", 0)
    readings: list[Callable[[int], Awaitable[NativeRead]]] = [
        lambda at: native.read(STREAM, at, 1 << 20),
        lambda at: native.read_new(STREAM, "group", "m", 500, 1 << 20, last_id="0-0", at=at),
        lambda at: native.read_pending(STREAM, "group", "m", at, 1 << 20, end),
    ]
    for read in readings:
        first = await read(0)
        assert (offsets(first), first.unfit, first.more, first.entries) == ([], ("1-0",), True, 1)
        rest = await read(first.following)
        assert (offsets(rest), rest.unfit, rest.entries) == ([2 << 10, 4 << 10], ("3-0",), 3)
    last = await native.read_last(STREAM, 2 << 10, 1 << 20)
    assert (offsets(last), last.unfit) == ([], ("1-0",))


async def test_a_first_entry_larger_than_was_granted_is_only_weighed(storage: RedisStorage, raw: Any) -> None:
    for number, size in enumerate([10, 50_000, 10]):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{1 + number}-0")
    native, end = storage.native, 9 << 10
    await native.enter(STREAM, "group", "m", 0)
    ids = {1 << 10: "1-0", 2 << 10: "2-0"}

    async def new(at: int, first: int) -> NativeRead:
        return await native.read_new(STREAM, "group", "m", 9, 100, last_id=ids.get(at - 1, "0-0"), at=at, first=first)

    readings: list[Callable[[int, int], Awaitable[NativeRead]]] = [
        lambda at, first: native.read(STREAM, at, 100, first=first),
        new,
        lambda at, first: native.read_pending(STREAM, "group", "m", at, 100, end, first=first),
    ]
    for read in readings:
        small = await read(0, 100)
        assert (sizes(small), small.more, small.wants) == ([10], True, 0)
        before = raw.xpending(KEY, "group")["pending"]
        large = await read(small.following, 100)
        assert (sizes(large), large.entries, large.more, large.wants) == ([], 0, True, 50_005)
        assert raw.xpending(KEY, "group")["pending"] == before, "it was given to nobody"
        granted = await read(small.following, large.wants)
        assert (sizes(granted), granted.more, granted.wants) == ([50_000], True, 0)
        assert sizes(await read(granted.following, 100)) == [10]
    last = await native.read_last(STREAM, 3 << 10, 100, first=100)
    assert (sizes(last), last.wants) == ([], 50_005)
    assert sizes(await native.read_last(STREAM, 3 << 10, 100, first=last.wants)) == [50_000]


async def test_a_large_record_is_copied_while_the_event_loop_goes_on(
    storage: RedisStorage, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (10, 5 << 20):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{size}-0")
    build, here = streams.build_batches, list[bool]()

    def built(*arguments: Any) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return build(*arguments)

    monkeypatch.setattr(streams, "build_batches", built)
    small = await storage.native.read(STREAM, 0, 1_000)
    large = await storage.native.read(STREAM, small.following, 1_000)
    assert (sizes(small) + sizes(large), here) == ([10, 5 << 20], [True, False])


async def test_what_is_new_to_a_group_is_weighed_behind_what_a_program_of_it_has_read(
    storage: RedisStorage, raw: Any
) -> None:
    for number, size in enumerate([10, 10, 50_000]):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{1 + number}-0")
    await storage.native.enter(STREAM, "group", "m", 0)
    raw.xreadgroup("group", "program", {KEY: ">"}, count=2)
    found = await storage.native.read_new(STREAM, "group", "m", 9, 100, last_id="0-0", at=0, first=100)
    assert (found.entries, found.wants) == (0, 50_005)


async def test_entries_that_a_program_of_the_group_has_read_are_not_checked_again(
    storage: RedisStorage, raw: Any
) -> None:
    for number, size in enumerate([10, 10, 10, 50_000, 10]):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{1 + number}-0")
    await storage.native.enter(STREAM, "group", "m", 0)
    raw.xreadgroup("group", "program", {KEY: ">"}, count=2)
    given = await storage.native.read_new(STREAM, "group", "m", 500, 1_000, last_id="0-0", at=0)
    assert (sizes(given), given.more) == ([10], True), "the large one does not come as a small one"


def scripts_run(raw: Any) -> int:
    return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])


async def test_what_has_waited_for_room_comes_without_a_script(storage: RedisStorage, raw: Any) -> None:
    """A script copies every byte of it twice more, while Redis serves no other client."""
    for number, size in enumerate([50_000, 10, 60_000]):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{1 + number}-0")
    native = storage.native
    wants = (await native.read(STREAM, 0, 100, first=100)).wants
    before = scripts_run(raw)
    granted = await native.read(STREAM, 0, 100, first=wants)
    assert (sizes(granted), granted.more, granted.following) == ([50_000], True, (1 << 10) + 1)
    assert scripts_run(raw) - before == 1, "the one that tells where the log ends"
    # Reads stop at the requested end, at removed entries, and at the size limit.
    assert (await native.read(STREAM, 0, 100, 1 << 10, first=wants)).entries == 0
    assert (await native.read(STREAM, 0, 100, first=100)).wants == wants
    raw.xdel(KEY, "1-0")
    assert sizes(await native.read(STREAM, 0, 100, first=wants)) == [10]
    raw.xdel(KEY, "2-0")
    assert (await native.read(STREAM, 0, 100, first=wants)).wants == 60_005


# Where it ends


def times_told(raw: Any) -> int:
    """How often Redis was asked for all it knows of a stream, with its first and last entry."""
    return int(raw.info("commandstats").get("cmdstat_xinfo|stream", {"calls": 0})["calls"])


async def test_who_asks_for_the_end_at_the_same_time_has_one_answer(storage: RedisStorage, raw: Any) -> None:
    first = await base(storage, batch(3))
    before = times_told(raw)
    found = await asyncio.gather(*(storage.native.extent(STREAM) for _ in range(50)))
    assert {each.log_end for each in found} == {first + 3}
    assert times_told(raw) - before <= 2


@pytest.mark.parametrize("place", ["first", "last"])
async def test_large_entries_are_not_copied_to_find_the_end_again(
    storage: RedisStorage, open_storage: OpenStorage, raw: Any, place: str
) -> None:
    for number, size in enumerate((1 << 20, 10) if place == "first" else (10, 1 << 20)):
        raw.xadd(KEY, {"value": "x" * size}, id=f"{number + 1}-0")
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: raw.xadd(KEY, {"value": "x" * (1 << 20)}, id="5-0"),
        lambda: raw.xdel(KEY, "1-0"),
        lambda: [raw.xadd(KEY, {"value": "x"}, id="6-0"), raw.xdel(KEY, "5-0")],
        lambda: raw.xtrim(KEY, 0),
        lambda: raw.xadd(KEY, {"value": "x"}, id="7-0"),
        lambda: raw.delete(KEY),
    ]
    for change in changes:
        change()
        told = await storage.native.extent(STREAM)
        before = times_told(raw)
        again = [await storage.native.extent(STREAM) for _ in range(3)]
        asked = times_told(raw) - before
        fresh = await (await open_storage()).native.extent(STREAM)
        expected = (fresh.log_start, fresh.log_end, fresh.added, fresh.length)
        for each in (told, *again):
            assert (each.log_start, each.log_end, each.added, each.length) == expected
        entries = raw.xrange(KEY)
        large = [len(fields["value"]) > 1_000 for _, fields in (entries[:1] + entries[-1:])]
        assert asked == 0 if any(large) else asked in (0, 3)
