"""How an append-only file, written by hand, is followed: to its end, and to the next one."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.aof import batch, xadd
from tests.storage.written import FILE, KEY, Written

from headrace.storage.redis.protocol import encode
from headrace.storage.valkey import aof
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.storage.valkey.datadir import MANIFEST

pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")

OTHER = b"headrace:u:0"


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
    # It continues without readers.
    for _ in range(100):
        await asyncio.sleep(0)
    assert await written.read(0) == list(range(100))
    await written.file.close()
    assert await written.read(0) is None
    assert written.path.stat().st_ino not in set(held())


async def test_of_many_readers_one_goes_through_the_file(tmp_path: Path) -> None:
    """A slice for each of them would hold others up."""
    written = Written(tmp_path, work=50)
    for base in range(20):
        written.append(1, base)
    assert await asyncio.gather(*(written.read(0) for _ in range(50))) == [None] * 50
    await written.file.close()


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


async def test_a_read_that_valkey_has_left_the_file_under_is_for_valkey(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next file another log's batches lie at the same places."""
    for base in range(4):
        written.append(1, base, 1, 5_000)
    assert await written.read(0) == [0, 1, 2, 3]
    monkeypatch.setattr(aof, "PIECE_BYTES", 5_000)
    reading = asyncio.ensure_future(written.read(0))
    await asyncio.sleep(0)
    content = written.path.read_bytes()
    written.path = written.folder / "appendonly.aof.2.incr.aof"
    written.path.write_bytes(content.replace(KEY, OTHER))
    written.name(written.path.name, 2)
    assert await written.read(0, key=OTHER) == [0, 1, 2, 3]
    assert await reading is None


async def test_a_file_that_valkey_has_left_is_closed_without_readers(
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


@pytest.mark.parametrize(
    "manifest",
    [
        "", "file x", f"file ./{FILE} seq 1 type i\n", 'file "a b" seq 1 type i\n', "file  seq 1 type i\n", "\xff",
        f"file {FILE} seq 1 type i\n" + "file x seq 1 type h\n" * 4_000,
    ],
    ids=["empty", "short", "path", "quoted", "nameless", "no text", "long"],
)  # fmt: skip
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


async def test_batches_that_left_the_page_cache_are_not_waited_for(written: Written) -> None:
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


async def test_without_a_file_nothing_is_read(tmp_path: Path) -> None:
    assert AppendOnlyFile.open(tmp_path) is None
