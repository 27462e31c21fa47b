"""What is known of an append-only file, written by hand."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.harness.aof import batch, whole, xadd
from tests.storage.written import BEGINS, KEY, Written

from headrace.storage.layout import entries
from headrace.storage.valkey import aof

_aof = pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")


async def test_batches_are_read_from_the_one_that_holds_an_offset(written: Written) -> None:
    for base in (0, 2, 4):
        written.append(1, base, 2, 5_000)
    assert [await written.read(offset) for offset in range(7)] == [
        [0, 2, 4], [0, 2, 4], [2, 4], [2, 4], [4], [4], None,
    ]  # fmt: skip
    assert await written.read(0, 2) == [0, 2]
    assert await written.read(0, 0) is None
    assert await written.read(0, last=(1, BEGINS + 4)) == [0, 2]
    assert await written.read(0, last=(1, BEGINS)) is None
    found = await written.find(0, last=(1, BEGINS + 3))
    assert whole(found) == [(BEGINS, BEGINS + 2, bytes(batch(BEGINS, 2, 5_000)))]


@pytest.mark.parametrize("between", [0, 10, 5_000])
@pytest.mark.parametrize(
    ("most", "count", "parts"), [(1, 9, [1]), (2, 9, [1, 1]), (3, 9, [2, 1]), (99, 9, [5, 1]), (99, 4, [3, 1])]
)
async def test_batches_come_as_one_but_for_the_last(
    written: Written, between: int, most: int, count: int, parts: list[int]
) -> None:
    sent = [bytes(batch(BEGINS + base, 1, 1_000)) for base in range(6)]
    for base in range(6):
        written.append(1, base, 1, 1_000)
        if between:
            written.write("SET", "other", b"x" * between)
    found = await written.file.read(KEY, (1, BEGINS + 1), entries.LAST_ID, count, most * len(sent[0]))
    assert found is not None
    assert [each.count for each in found] == parts
    assert b"".join(each.batch for each in found) == b"".join(sent[: sum(parts)])
    assert [(each.base_offset, each.next_offset) for each in found] == [
        (BEGINS, BEGINS + parts[0]), (BEGINS + parts[0], BEGINS + sum(parts)),
    ][: len(parts)]  # fmt: skip


async def test_as_one_they_are_as_many_as_are_wanted_also_where_others_have_their_turn_between(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(batch(0, 1, 1_000))
    monkeypatch.setattr(aof, "PIECE_BYTES", 4 * size)
    for base in range(20):
        written.append(1, base, 1, 1_000)
    found: dict[int, list[int]] = {}
    for wanted in (3, 4, 8, 9, 99):
        read = await written.file.read(KEY, (1, BEGINS + 1), entries.LAST_ID, 18, wanted * size)
        assert read is not None
        found[wanted] = [each.count for each in read]
        assert [each.next_offset for each in read[:-1]] == [each.base_offset for each in read[1:]]
    several = [3, 1]
    assert found == {3: [2, 1], 4: several, 8: 2 * several, 9: [*several, *several, 1], 99: [*4 * several, 1, 1]}


async def test_one_batch_comes_however_little_is_wanted(written: Written) -> None:
    for base in range(3):
        written.append(1, base, 1, 5_000)
    found = await written.file.read(KEY, (1, BEGINS + 1), entries.LAST_ID, 9, 1)
    assert whole(found) == [(BEGINS, BEGINS + 1, bytes(batch(BEGINS, 1, 5_000)))]


async def test_more_batches_than_the_kernel_reads_at_once_come_as_one(tmp_path: Path) -> None:
    written = Written(tmp_path, work=1 << 40)
    sent = [bytes(batch(BEGINS + base)) for base in range(1_000)]
    for base in range(1_000):
        written.append(1, base)
    found = await written.file.read(KEY, (1, BEGINS + 1), entries.LAST_ID, 4_096, 1 << 20)
    assert found is not None
    assert [each.count for each in found] == [999, 1]
    assert b"".join(each.batch for each in found) == b"".join(sent)
    await written.file.close()


@pytest.mark.parametrize("told", [False, True])
async def test_the_file_is_gone_through_once_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(aof, "REST_S", 0)
    written = Written(tmp_path, work=1)
    for base in range(20):
        written.append(1, base)
    if told:
        written.file.grows()
    # Each turn goes on with it for a moment only.
    for _ in range(100):
        await asyncio.sleep(0)
    assert await written.read(0) == (list(range(20)) if told else None)
    await written.file.close()


async def test_who_writes_again_does_not_wait_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aof, "REST_S", 0)
    written = Written(tmp_path, work=1)
    for base in range(200):
        written.append(1, base)
    written.file.grows()
    for _ in range(10):
        await asyncio.sleep(0)
    for _ in range(300):
        written.file.grows()
        await asyncio.sleep(0)
    assert await written.read(0) is None
    await written.file.close()


async def test_the_first_batch_that_is_known_is_not_read(written: Written) -> None:
    """The data before it is unknown: in a log with foreign writes it may hold the same offsets."""
    written.append(1, 0)
    assert [await written.read(offset) for offset in (-BEGINS, -1, 0)] == [None, None, [0]]
    written.write("XTRIM", KEY, "MINID", "=", f"1-{BEGINS + 1}")
    assert [await written.read(offset) for offset in (-1, 0)] == [None, [0]]


async def test_data_written_into_a_batch_stays_its_own(written: Written) -> None:
    written.append(1, 0, 1, 5_000)
    first = await written.find(0)
    assert first is not None
    assert isinstance(first[0].batch, memoryview)
    first[0].batch[:4] = b"mine"
    assert whole(await written.find(0)) == [(BEGINS, BEGINS + 1, bytes(batch(BEGINS, 1, 5_000)))]


async def test_a_term_above_the_one_that_is_asked_for_is_behind_it(written: Written) -> None:
    written.append(1, 0)
    written.append(3, 1)
    assert await written.read(1) == [1]
    assert await written.read(1, term=2) == [1]
    assert await written.read(0, term=2) is None
    assert await written.read(1, term=4) is None


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (["MULTI"], [0, 1, 2]),
        (["SET", "other", "1"], [0, 1, 2]),
        (["XGROUP", "CREATE", KEY, "group", "1-1"], [0, 1, 2]),
        (["xgroup", "CREATE", KEY, "group", "1-1"], [0, 1, 2]),
        (["XSETID", KEY, "2-0"], [0, 1, 2]),
        (["HSET", "hash", *range(5_000)], [0, 1, 2]),
        (["HSET", "hash", "large", b"x" * 100_000], [0, 1, 2]),
        (["HSET", "hash", *(b"x" * size for size in range(1_020, 1_030))], [0, 1, 2]),
        (["XTRIM", KEY, "MINID", "=", "1-12"], [1, 2]),
        (["XTRIM", KEY, "MINID", "=", "1-14"], None),
        (["XTRIM", KEY, "MAXLEN", "=", "2"], None),
        (["XDEL", KEY, "1-12"], None),
        (["XADD", KEY, "1-19", "x", "y"], None),
        (xadd(KEY, "1-19", b"x" * 100), None),
        (xadd(KEY, "1-x", batch(13)), None),
        (xadd(KEY, "1-15", batch(13)), None),
        (xadd(KEY, "1-13", batch(12)), None),
        ([*xadd(KEY, "1-14", batch(13))[:-1], "x"], None),
        (["DEL", KEY], None),
        (["UNLINK", *range(100), KEY], None),
        (["RENAME", "other", KEY], None),
        (["flushall"], None),
        (["FLUSHDB", "ASYNC"], None),
        (["SWAPDB", "0", "1"], None),
        (["SOMETHING", "NEW", KEY], None),
    ],
    ids=lambda value: " ".join(str(each)[:20] for each in value[:3]) if isinstance(value, list) else "",
)
async def test_other_commands_on_a_log_end_its_known_run(
    written: Written, command: list[Any], known: list[int] | None
) -> None:
    for base in range(3):
        written.append(1, base)
    written.write(*command)
    assert await written.read(0 if known is None else known[0]) == known
    for base in (20, 21, 22):
        written.append(5, base)
    assert await written.read(21, term=5) == [21, 22]


async def test_another_database_has_other_logs(written: Written) -> None:
    written.append(1, 0)
    written.write("SELECT", 3)
    written.append(1, 1)
    assert (await written.read(0), await written.read(1)) == (None, None)
    written.write("SELECT", 0)
    written.append(1, 2)
    written.append(1, 3)
    assert await written.read(3) == [3]


async def test_after_a_gap_a_log_begins_again(written: Written) -> None:
    for base in (0, 1, 5, 6, 7):
        written.append(1, base)
    assert [await written.read(offset) for offset in (0, 2, 5, 6, 7)] == [None, None, None, [6, 7], [7]]


async def test_what_overlaps_is_not_read(written: Written) -> None:
    for base in (0, 1, 0, 2, 3):
        written.append(1 + base, base, 2)
    assert [await written.read(offset, term=9) for offset in range(6)] == [None] * 6


async def test_logs_are_distinguished(written: Written) -> None:
    for number in range(500):
        written.begin(b"log-%d" % number)
        written.write(*xadd(f"log-{number}", "1-11", batch(10)))
    for number in range(0, 500, 7):
        written.write("DEL", f"log-{number}")
    async with asyncio.timeout(60):
        while await written.read(0, key=b"log-1") is None:
            await asyncio.sleep(0)
    found = [await written.read(0, key=b"log-%d" % number) for number in range(501)]
    assert found == [None if number % 7 == 0 or number == 500 else [0] for number in range(501)]


@pytest.mark.parametrize("most", [1, 2, 3, 8, 50])
def test_the_oldest_places_are_forgotten(written: Written, most: int) -> None:
    index = _aof.Index(most)
    written.begin(b"log-2")
    for base in range(10, 40):
        written.append(1, base - BEGINS)
        written.write(*xadd("log-2", f"1-{base + 1}", batch(base)))
    with written.path.open("rb") as file:
        assert index.scan(file.fileno(), 1 << 40) == _aof.AT_END
        found = [
            [base for base in range(40) if index.read(file.fileno(), key, (1, base + 1), entries.LAST_ID, 1, 1, False)]
            for key in (KEY, b"log-2")
        ]
    assert found == [list(range(40 - len(each), 40)) for each in found]
    assert sum(map(len, found)) <= index.places <= most
    assert len(found[1]) >= most // 4


async def test_a_large_answer_is_read_in_pieces(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aof, "PIECE_BYTES", 12_000)
    for base in range(10):
        written.append(1 + base // 5 * 2, base, 1, 5_000)
    assert await written.read(0) == list(range(10))
    assert await written.read(1, 7) == list(range(1, 8))
