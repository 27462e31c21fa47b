"""What the journal may give up: only what Redis has proven to have written, by what it took after its answer."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from tests.storage.conftest import Wire

from headrace.metrics.counters import StoreCounters
from headrace.records.build import build
from headrace.storage.journal import acks
from headrace.storage.journal.acks import Entered, JournaledAcks
from headrace.storage.journal.journal import SMALLEST, Journal
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append

ROOM = b"used_memory:1\r\nmaxmemory:0\r\n"


@pytest.fixture
def counted() -> StoreCounters:
    return StoreCounters()


@pytest.fixture
async def early(
    journal: Journal, wire: Wire, monkeypatch: pytest.MonkeyPatch, counted: StoreCounters
) -> AsyncIterator[JournaledAcks]:
    """One whose Redis has memory; a proof is asked for in the next turn of the loop."""
    monkeypatch.setattr(acks, "_PROVE_S", 0)
    made = JournaledAcks(journal, wire, lambda: 17, counted)  # type: ignore[arg-type]
    assert made.enter(b"t", b"id", 0, batch()) is None
    wire.answer(ROOM)
    yield made
    await made.close()


def batch(size: int = 10) -> Append:
    return Append(build([(None, b"x" * size, 5, ())]), 1, 5)


def enter(early: JournaledAcks, count: int = 1) -> list[Entered]:
    found = [early.enter(b"t", b"id", place, batch()) for place in range(count)]
    assert all(found)
    return [each for each in found if each is not None]


def in_doubt(tmp_path: Path) -> list[int]:
    """What a start would look at."""
    found = Journal.open(tmp_path / "journal", SMALLEST)
    numbers = [entry.number for entry in found.in_doubt()]
    found.close()
    return numbers


async def pinged(wire: Wire) -> None:
    async with asyncio.timeout(60):
        while not wire.sent:
            await asyncio.sleep(0)
    assert wire.next() == [[b"PING"]]


async def test_an_answer_proves_nothing(early: JournaledAcks, tmp_path: Path) -> None:
    for entered in enter(early, 3):
        early.stored(entered)
    assert early.stored_to == 3
    assert in_doubt(tmp_path) == [1, 2, 3]


async def test_an_entry_is_stored_once(early: JournaledAcks, counted: StoreCounters) -> None:
    """A log may be deleted while its acknowledged batches are stored again."""
    (entered,) = enter(early)
    assert counted.journal_waiting == entered.size
    early.stored(entered)
    early.stored(entered)
    assert counted.journal_waiting == 0


async def test_what_was_sent_behind_the_answer_and_taken_does(early: JournaledAcks, tmp_path: Path) -> None:
    first, second, third = enter(early, 3)
    early.stored(first)
    sent = early.stored_to
    early.stored(second)
    early.stored(third)
    early.proven(sent)
    assert in_doubt(tmp_path) == [2, 3]
    early.proven(early.stored_to)
    assert in_doubt(tmp_path) == []


async def test_without_other_writes_a_ping_proves_it(early: JournaledAcks, wire: Wire, tmp_path: Path) -> None:
    first, second = enter(early, 2)
    early.stored(first)
    await pinged(wire)
    early.stored(second)
    wire.answer(b"PONG")
    assert in_doubt(tmp_path) == [2]
    await pinged(wire)
    wire.answer(b"PONG")
    assert in_doubt(tmp_path) == []


@pytest.mark.parametrize("answer", [Exception("MISCONF the disk is full"), StorageUnavailable("lost")])
async def test_a_ping_that_is_refused_proves_nothing_and_is_tried_again(
    early: JournaledAcks, wire: Wire, tmp_path: Path, answer: Exception
) -> None:
    early.stored(enter(early)[0])
    for _ in range(3):
        await pinged(wire)
        wire.answer(answer)
        assert in_doubt(tmp_path) == [1]
    await pinged(wire)
    wire.answer(b"PONG")
    assert in_doubt(tmp_path) == []


async def test_one_that_is_not_stored_holds_up_those_behind_it(early: JournaledAcks, tmp_path: Path) -> None:
    first, second, third = enter(early, 3)
    early.stored(third)
    early.stored(second)
    early.proven(early.stored_to)
    assert early.stored_to == 0
    assert in_doubt(tmp_path) == [1, 2, 3]
    early.stored(first)
    early.proven(early.stored_to)
    assert in_doubt(tmp_path) == []


async def test_the_mark_never_moves_back(early: JournaledAcks, tmp_path: Path) -> None:
    for entered in enter(early, 3):
        early.stored(entered)
    early.proven(3)
    early.proven(1)
    assert in_doubt(tmp_path) == []


async def test_a_half_is_not_used_again_before_it_is_proven(early: JournaledAcks, wire: Wire, tmp_path: Path) -> None:
    entered: list[Entered] = []
    while (each := early.enter(b"t", b"id", len(entered), batch(100_000))) is not None:
        entered.append(each)
        if wire.sent:
            wire.answer(ROOM)
    assert len(entered) >= 8
    for each in entered:
        early.stored(each)
    # All of it is stored, and nothing proven.
    while wire.sent and wire.next()[0][0] == b"INFO":
        wire.answer(ROOM)
    assert early.enter(b"t", b"id", 99, batch(100_000)) is None
    assert in_doubt(tmp_path) == list(range(1, len(entered) + 1))
    # A writer without room asks for the proof at once.
    assert wire.next() == [[b"PING"]]
    wire.answer(b"PONG")
    assert early.enter(b"t", b"id", 99, batch(100_000)) is not None


async def test_without_memory_nothing_is_entered(journal: Journal, wire: Wire) -> None:
    early = JournaledAcks(journal, wire, lambda: 17)  # type: ignore[arg-type]
    assert early.enter(b"t", b"id", 0, batch()) is None
    wire.answer(b"used_memory:100000000\r\nmaxmemory:100000000\r\n")
    assert early.enter(b"t", b"id", 0, batch()) is None
    assert journal.number == 0
    await early.close()


async def test_closed_it_enters_nothing_and_proves_nothing(early: JournaledAcks, wire: Wire, tmp_path: Path) -> None:
    first, second = enter(early, 2)
    early.stored(first)
    await pinged(wire)
    await early.close()
    wire.answer(b"PONG")
    early.stored(second)
    assert early.enter(b"t", b"id", 3, batch()) is None
    assert in_doubt(tmp_path) == [1, 2]


async def test_an_entry_has_the_time_of_its_arrival(early: JournaledAcks, tmp_path: Path) -> None:
    enter(early)
    found = Journal.open(tmp_path / "journal", SMALLEST)
    assert [(entry.stream, entry.log_id, entry.now_ms) for entry in found.in_doubt()] == [("t", b"id", 17)]
    found.close()


def remove(journal: Path) -> None:
    journal.unlink()


def any_file(directory: Path) -> bool:
    return any(directory.iterdir())


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def put_aside(journal: Path, moved: Path) -> None:
    """Another file is where it was."""
    journal.rename(moved)
    journal.write_bytes(b"somebody else's")


def swap(journal: Path, moved: Path) -> bytes:
    """It is back; what was in its place."""
    there = journal.read_bytes()
    moved.rename(journal)
    return there


def put_another(directory: Path) -> None:
    """Another directory is where it was."""
    directory.rename(directory.with_name(f"{directory.name}-elsewhere"))
    directory.mkdir()


def lines(logged: list[MutableMapping[str, Any]]) -> list[str]:
    return [str(line["event"]) for line in logged]


GONE = "the journal file is missing: every batch waits for Redis until it is recreated"
BACK = "the journal has been recreated"


async def ended() -> None:
    """Return when whatever was begun in threads has ended: there is one of them."""
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.to_thread(lambda: None)


async def test_after_the_journal_is_removed_batches_wait_for_redis_until_another_exists(
    early: JournaledAcks, wire: Wire, tmp_path: Path
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    (entered,) = enter(early)
    remove(tmp_path / "journal")
    with structlog.testing.capture_logs() as logged:
        early.look()
        early.look()
        assert early.enter(b"t", b"id", 1, batch()) is None
        # What was acknowledged from the old one is nowhere else yet.
        await ended()
        assert not any_file(tmp_path)
        early.stored(entered)
        early.look()
        # Nor is it now for certain: Redis has yet to prove that it wrote what it has answered for.
        await ended()
        assert not any_file(tmp_path)
        assert wire.next() == [[b"PING"]]
        wire.answer(b"PONG")
        early.look()
        assert early.enter(b"t", b"id", 1, batch()) is None
        await until(lambda: early.enter(b"t", b"id", 1, batch()) is not None)
    assert lines(logged) == [GONE, BACK]
    assert in_doubt(tmp_path) == [2]
    early.proven(1)
    assert in_doubt(tmp_path) == [2]


async def test_a_journal_that_was_moved_is_not_made_over_another_file_and_may_come_back(
    early: JournaledAcks, tmp_path: Path
) -> None:
    journal, moved = tmp_path / "journal", tmp_path / "moved"
    put_aside(journal, moved)
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            early.look()
            await until(lambda: len(logged) == 2)
        there = swap(journal, moved)
        await until(lambda: early.look() or len(logged) > 2)  # type: ignore[func-returns-value]
    assert there == b"somebody else's"
    assert lines(logged) == [GONE, "the journal cannot be created", BACK]
    enter(early)


async def test_none_is_made_in_another_directory(early: JournaledAcks, tmp_path: Path) -> None:
    put_another(tmp_path)
    with structlog.testing.capture_logs() as logged:
        early.look()
        await until(lambda: len(logged) == 2)
    assert lines(logged) == [GONE, "the journal cannot be created"]
    assert not any_file(tmp_path)


async def test_where_there_was_no_room_for_one_it_is_made_once_there_is(
    early: JournaledAcks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(tmp_path / "journal")
    with structlog.testing.capture_logs() as logged:
        with monkeypatch.context() as patched:
            patched.setattr(os, "posix_fallocate", no_room)
            early.look()
            await until(lambda: len(logged) == 2)
        assert not any_file(tmp_path)
        await until(lambda: early.look() or len(logged) > 2)  # type: ignore[func-returns-value]
    assert lines(logged) == [GONE, "the journal cannot be created", BACK]
    enter(early)
    assert in_doubt(tmp_path) == [1]


async def test_one_that_is_being_made_is_waited_for_at_the_end(
    early: JournaledAcks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server may make its own as soon as this one has let go of the directory."""
    began, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int, *_: int) -> None:
        began.set()
        assert may_end.wait(60)
        os.ftruncate(descriptor, SMALLEST + 4096)

    monkeypatch.setattr(os, "posix_fallocate", slow)
    remove(tmp_path / "journal")
    early.look()
    await until(began.is_set)
    closing = asyncio.create_task(early.close())
    for _ in range(10):
        await asyncio.sleep(0)
    ended = closing.done()
    may_end.set()
    await closing
    assert not ended
    assert in_doubt(tmp_path) == []


async def test_it_is_looked_at_before_more_than_a_second_of_batches(
    journal: Journal, wire: Wire, tmp_path: Path
) -> None:
    now = 10_000
    early = JournaledAcks(journal, wire, lambda: now)  # type: ignore[arg-type]
    assert early.enter(b"t", b"id", 0, batch()) is None
    wire.answer(ROOM)
    enter(early)
    remove(tmp_path / "journal")
    now = 11_000
    assert early.enter(b"t", b"id", 1, batch()) is None
    await early.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)
