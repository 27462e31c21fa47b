"""What is known of an append-only file, written by hand, and how it is followed."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.aof import batch, places, whole, xadd

from headrace.keyspace import entries
from headrace.store import aof
from headrace.store.aof import AppendOnlyFile
from headrace.store.datadir import MANIFEST
from headrace.store.link import encode
from headrace.topics.model import StoredBatch

_aof = pytest.importorskip("headrace.store._aof", reason="the file is read by an extension")

KEY = b"headrace:t:0"
BEGINS = 10
"""Where tests begin to count: what is asked first of a log is asked of Valkey."""
FILE = "appendonly.aof.1.incr.aof"


class Written:
    """A file as a Valkey would have written it."""

    def __init__(self, folder: Path, work: int = aof.SLICE_WORK) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.path.touch()
        self.name(FILE)
        made = AppendOnlyFile.open(folder, work)
        if made is None:
            pytest.skip("this disk lets nobody read without waiting for it")
        self.file = made
        self.write("SELECT", 0)
        self.begin()

    def begin(self, key: bytes = KEY, term: int = 1) -> None:
        """The first batch that is known of a log."""
        self.write(*xadd(key, f"{term}-{BEGINS}", batch(0, BEGINS)))

    def name(self, file: str, sequence: int = 1) -> None:
        self.write_manifest(f"file appendonly.aof.1.base.rdb seq 1 type b\nfile {file} seq {sequence} type i\n")

    def write_manifest(self, text: str) -> None:
        # As Valkey does it: there is always a whole one.
        new = self.folder / "manifest.new"
        new.write_text(text)
        new.replace(self.folder / MANIFEST)

    def write_bytes(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def write(self, *arguments: Any) -> None:
        self.write_bytes(encode(arguments))

    def append(self, term: int, base: int, span: int = 1, size: int = 10) -> None:
        self.write(*xadd(KEY, f"{term}-{BEGINS + base + span}", batch(BEGINS + base, span, size)))

    async def find(
        self, offset: int, count: int = 100, *, term: int = 1, key: bytes = KEY, last: entries.EntryId = entries.LAST_ID
    ) -> list[StoredBatch] | None:
        return await self.file.read(key, (term, BEGINS + offset + 1), last, count)

    async def read(
        self, offset: int, count: int = 100, *, term: int = 1, key: bytes = KEY, last: entries.EntryId = entries.LAST_ID
    ) -> list[int] | None:
        found = places(await self.find(offset, count, term=term, key=key, last=last))
        return None if found is None else [each - BEGINS for each in found]


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    made = Written(tmp_path)
    yield made
    await made.file.close()


# What is known


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
    """Nobody knows what is before it: in a log that somebody else wrote to that may hold the same offsets."""
    written.append(1, 0)
    assert [await written.read(offset) for offset in (-BEGINS, -1, 0)] == [None, None, [0]]
    written.write("XTRIM", KEY, "MINID", "=", f"1-{BEGINS + 1}")
    assert [await written.read(offset) for offset in (-1, 0)] == [None, [0]]


async def test_what_is_written_to_a_batch_is_nobody_elses(written: Written) -> None:
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
async def test_what_is_done_to_a_log_ends_what_is_known_of_it(
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


async def test_behind_a_gap_a_log_begins_anew(written: Written) -> None:
    for base in (0, 1, 5, 6, 7):
        written.append(1, base)
    assert [await written.read(offset) for offset in (0, 2, 5, 6, 7)] == [None, None, None, [6, 7], [7]]


async def test_what_overlaps_is_not_read(written: Written) -> None:
    for base in (0, 1, 0, 2, 3):
        written.append(1 + base, base, 2)
    assert [await written.read(offset, term=9) for offset in range(6)] == [None] * 6


async def test_logs_are_told_apart(written: Written) -> None:
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


# How the file is followed


async def test_a_command_counts_when_it_is_there_as_a_whole(written: Written) -> None:
    written.append(1, 0)
    command = encode(xadd(KEY, "1-12", batch(11, 1, 3_000)))
    for number in range(0, len(command), 97):
        written.write_bytes(command[number : number + 97])
        assert await written.read(0) == ([0] if number + 97 < len(command) else [0, 1])
    undone = encode(["UNLINK", KEY])
    for number in range(len(undone)):
        written.write_bytes(undone[number : number + 1])
    assert await written.read(0) is None


async def test_valkey_is_asked_until_all_that_was_written_is_known(tmp_path: Path) -> None:
    written = Written(tmp_path, work=50)
    for base in range(100):
        written.append(1, base)
    assert await written.read(0) is None
    async with asyncio.timeout(60):
        while await written.read(0) is None:
            await asyncio.sleep(0)
    assert await written.read(0) == list(range(100))
    await written.file.close()
    assert await written.read(0) is None


async def test_another_file_in_the_manifest_is_followed_from_its_beginning(written: Written) -> None:
    written.append(1, 0)
    assert await written.read(0) == [0]
    before = written.path.stat().st_ino
    written.path = written.folder / "appendonly.aof.2.incr.aof"
    written.write("SELECT", 0)
    written.append(1, 1)
    written.append(1, 2)
    assert await written.read(2) is None
    written.name(written.path.name, 2)
    assert (await written.read(0), await written.read(2)) == (None, [2])
    assert before not in set(held())


async def test_a_file_that_valkey_has_left_is_let_go_of_though_nobody_reads(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would stay on the disk."""
    monkeypatch.setattr(aof, "LOOK_S", 0.0)
    inode = written.path.stat().st_ino
    written.append(1, 0)
    assert inode not in set(held())
    assert await written.read(0) == [0]
    assert inode in set(held())
    written.path = written.folder / "appendonly.aof.2.incr.aof"
    written.write("SELECT", 0)
    written.name(written.path.name, 2)
    async with asyncio.timeout(60):
        while inode in set(held()):
            await asyncio.sleep(0)


async def test_many_readers_leave_others_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many read in one turn of the loop, they copy a piece or two."""
    written = Written(tmp_path)
    for base in range(4):
        written.append(1, base)
    one = written.path.stat().st_size // 4
    monkeypatch.setattr(aof, "PIECE_BYTES", one)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    assert await written.read(0) == [0, 1, 2, 3]
    counting = asyncio.ensure_future(count())
    assert await asyncio.gather(*(written.read(0) for _ in range(20))) == [[0, 1, 2, 3]] * 20
    counting.cancel()
    assert turns >= 20
    await written.file.close()


def held() -> Iterator[int]:
    """Inodes of the files that this process has open."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield each.stat().st_ino


@pytest.mark.parametrize("manifest", ["", "file x", "file ../x seq 1 type i\n", 'file "a b" seq 1 type i\n', "\xff"])
async def test_a_manifest_that_says_nothing_is_none(written: Written, manifest: str) -> None:
    written.append(1, 0)
    written.write_manifest(manifest)
    assert await written.read(0) is None
    (written.folder / MANIFEST).unlink()
    assert await written.read(0) is None
    written.name(FILE)
    assert await written.read(0) == [0]


async def test_a_file_that_was_cut_off_is_followed_from_its_beginning(written: Written) -> None:
    written.append(1, 0)
    written.append(1, 1)
    assert await written.read(0) == [0, 1]
    size = written.path.stat().st_size
    os.truncate(written.path, size - 1)
    assert await written.read(0) == [0]
    os.truncate(written.path, 10)
    assert await written.read(0) is None


async def test_a_file_that_was_deleted_is_read_as_long_as_it_is_named(written: Written) -> None:
    written.append(1, 0)
    assert await written.read(0) == [0]
    written.path.unlink()
    assert await written.read(0) == [0]


async def test_a_batch_that_is_not_what_it_was_is_not_believed(written: Written) -> None:
    written.append(1, 0, 1, 5_000)
    written.append(1, 1, 1, 5_000)
    assert await written.read(0) == [0, 1]
    data = written.path.read_bytes()
    at = data.rindex(b"XADD\r\n")
    written.path.write_bytes(data[:at] + bytes(len(data) - at))
    assert (await written.read(0), await written.read(0, 1)) == (None, [0])


@pytest.mark.parametrize(
    "junk", [b"#TS:1\r\n", b"*0\r\n", b"*1\n", b"*99999999999999\r\n", b"*2\r\n:1\r\n", b"*1\r\n$2\r\nabc\r\n"]
)
async def test_behind_what_is_no_command_nothing_is_known(written: Written, junk: bytes) -> None:
    written.append(1, 0)
    written.write_bytes(junk)
    written.append(1, 1)
    assert (await written.read(0), await written.read(1)) == (None, None)


async def test_what_left_the_page_cache_is_not_waited_for(written: Written) -> None:
    for base in range(20):
        written.append(1, base, 1, 100_000)
    assert await written.read(19) == [19]
    with written.path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if await written.read(10) is not None:
        pytest.skip("the page cache keeps the file")
    written.append(1, 20, 1, 100_000)
    assert await written.read(20) == [20]


async def test_a_file_that_is_not_in_the_page_cache_is_asked_for(written: Written) -> None:
    for base in range(20):
        written.append(1, base, 1, 100_000)
    with written.path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    async with asyncio.timeout(60):
        while await written.read(19) is None:
            await asyncio.sleep(0)


async def test_without_the_extension_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Written(tmp_path)
    monkeypatch.setattr(aof, "_compiled", None)
    assert AppendOnlyFile.open(tmp_path) is None


async def test_where_there_is_no_file_nothing_is_read(tmp_path: Path) -> None:
    assert AppendOnlyFile.open(tmp_path) is None
