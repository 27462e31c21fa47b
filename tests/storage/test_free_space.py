"""When a disk or a memory has room for what is acknowledged before Redis has safely written it."""

from pathlib import Path
from typing import Any

import pytest
from tests.storage.conftest import Wire

from headrace.storage import free_space
from headrace.storage.free_space import RESERVE_BYTES, FreeMemory, FreeSpace
from headrace.topics.errors import StorageFull

HERE = Path()
LOOK = 4 << 20


class Disk:
    """Free bytes, and the number of checks."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.looks = 0

    def __call__(self, _: Path) -> int:
        self.looks += 1
        return self.free


def test_a_disk_with_room_is_looked_at_rarely() -> None:
    disk = Disk(1 << 40)
    found = FreeSpace(HERE, disk)
    assert all(found.has_room(1_000) for _ in range(3 * LOOK // 1_000))
    assert disk.looks <= 4


@pytest.mark.parametrize("free", [0, RESERVE_BYTES - 1, RESERVE_BYTES - (1 << 30)])
def test_below_the_reserve_nothing_is_accepted_until_there_is_room(free: int) -> None:
    disk = Disk(free)
    found = FreeSpace(HERE, disk)
    assert not any(found.has_room(size) for size in (0, 1, 1 << 20, 0))
    disk.free = 1 << 40
    assert found.has_room(1)


def test_once_a_refusal_is_shown_nothing_is_accepted() -> None:
    """Also within the bytes that the last look allowed."""
    disk = Disk(1 << 40)
    found = FreeSpace(HERE, disk)
    assert found.has_room(1)
    assert found.why_refused() is None
    disk.free = RESERVE_BYTES - 1
    assert found.has_room(1)
    reason = found.why_refused()
    assert reason is not None
    assert not found.has_room(1)
    assert str(found.refusal()) == reason
    disk.free = 1 << 40
    assert found.why_refused() is None
    assert found.has_room(1)


def test_what_is_taken_between_two_looks_never_reaches_into_the_reserve() -> None:
    """Even with writes of other programs, our own writes alone do not use it up."""
    disk = Disk(RESERVE_BYTES + (10 << 20))
    found = FreeSpace(HERE, disk)
    taken = 0
    while found.has_room(300_000):
        taken += 300_000
        disk.free -= 300_000
        assert taken < 1 << 30
    assert disk.free >= RESERVE_BYTES - 300_000 - 4


def test_a_batch_larger_than_what_is_left_is_refused() -> None:
    found = FreeSpace(HERE, Disk(RESERVE_BYTES + 1_000))
    assert found.has_room(100)
    assert not FreeSpace(HERE, Disk(RESERVE_BYTES + 1_000)).has_room(50 << 20)


def test_an_answer_is_believed_as_long_as_there_is_much_room() -> None:
    disk = Disk(2 << 30)
    found = FreeSpace(HERE, disk)
    assert not found.low()
    disk.free = 1 << 29
    assert found.low()
    assert found.has_room(1_000)


def test_a_check_near_the_reserve_makes_the_next_batch_check_too() -> None:
    disk = Disk(1 << 40)
    found = FreeSpace(HERE, disk)
    assert found.has_room(1)
    disk.free = RESERVE_BYTES
    assert found.low()
    assert not found.has_room(1)


def test_a_directory_that_is_gone_has_no_room_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    found = FreeSpace(folder)
    assert not found.has_room(1)
    assert found.low()
    with pytest.raises(StorageFull, match="data directory cannot be looked at"):
        found.check(1)
    folder.mkdir()
    assert found.has_room(1)


def test_another_directory_in_its_place_has_none_either(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    found = FreeSpace(folder)
    folder.rename(elsewhere)
    folder.mkdir()
    with pytest.raises(StorageFull, match=r"looked at \(another directory is in its place\): put it back"):
        found.check(1)
    folder.rmdir()
    elsewhere.rename(folder)
    assert found.has_room(1)


def test_the_free_bytes_of_a_directory(tmp_path: Path) -> None:
    assert 0 < free_space.free_bytes(tmp_path) < 1 << 60


# Memory


def info(used: int, most: int) -> bytes:
    return b"# Memory\r\nused_memory:%d\r\nused_memory_rss:1\r\nmaxmemory:%d\r\nmaxmemory_human:1G\r\n" % (used, most)


def looked(wire: Wire, *answer: Any, reserve: int = 1 << 20) -> FreeMemory:
    found = FreeMemory(wire, reserve)  # type: ignore[arg-type]
    assert not found.take(1)
    assert wire.next() == [[b"INFO", b"memory"]]
    wire.answer(*answer)
    return found


def test_without_a_limit_there_is_room_and_it_is_looked_again_in_time(wire: Wire) -> None:
    found = looked(wire, info(1 << 30, 0))
    taken = 0
    while found.take(1_000):
        taken += 1_000
        if wire.sent:
            wire.answer(info(1 << 30, 0))
        if taken > 20 << 20:
            break
    assert taken > 20 << 20


def test_what_is_not_looked_at_again_is_bounded(wire: Wire) -> None:
    found = looked(wire, info(0, 0))
    taken = 0
    while found.take(1_000):
        taken += 1_000
    assert taken <= 2 * LOOK
    assert len(wire.sent) == 1


@pytest.mark.parametrize(
    ("used", "room_left"), [(900 << 20, True), (960 << 20, False), (1 << 30, False), (2 << 30, False)]
)
def test_a_part_of_the_limit_is_kept_free(wire: Wire, used: int, room_left: bool) -> None:
    assert looked(wire, info(used, 1 << 30)).take(1) == room_left


def test_a_small_limit_keeps_a_smaller_part_free(wire: Wire) -> None:
    most = 64 << 20
    assert looked(wire, info(most - (10 << 20), most)).take(1)
    assert not looked(wire, info(most - (8 << 20), most)).take(1)


@pytest.mark.parametrize("answer", [Exception("lost"), b"", None])
def test_who_does_not_answer_has_no_room(wire: Wire, answer: Any) -> None:
    found = looked(wire, *[answer])
    if answer == b"":
        # A Redis that reports no limit has none.
        assert found.take(1)
    else:
        assert not found.take(1)
