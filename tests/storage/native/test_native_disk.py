"""Appends to native topics where the disk is nearly full: what Redis answers then proves nothing."""

from pathlib import Path
from typing import Any

import hiredis
from tests.storage.conftest import Wire

from headrace.records.build import build
from headrace.storage.fence import Fence
from headrace.storage.free_space import RESERVE_BYTES, FreeSpace
from headrace.storage.native.topics import RedisNative
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import StorageFull, StorageNotWritten
from headrace.topics.model import Append, Appended
from headrace.topics.native import NativeStream

STREAM = NativeStream("s", 10)


def appended(wire: Wire, free: int) -> list[Any]:
    """Return the result of an append with that many bytes free."""
    disk = FreeSpace(Path(), lambda _: free)
    native = RedisNative(Scripts(wire, disk), "", Fence(1), producer_expiry_ms=1)  # type: ignore[arg-type]
    told: list[Any] = []
    native.append(STREAM, Append(build([(None, b"x", 1, ())]), 1, 1), told.append)
    return told


def test_below_the_reserve_it_is_refused_before_it_is_sent(wire: Wire) -> None:
    assert [type(each) for each in appended(wire, RESERVE_BYTES - 1)] == [StorageFull]
    assert wire.sent == []


def test_an_answer_is_not_believed_where_the_disk_is_nearly_full(wire: Wire) -> None:
    told = appended(wire, RESERVE_BYTES + (100 << 20))
    wire.answer(b"7168")
    assert told == []
    assert wire.next() == [[b"PING"]]
    wire.answer(b"PONG")
    assert told == [Appended(7168)]


def test_nor_is_it_acknowledged_where_the_proof_is_refused(wire: Wire) -> None:
    told = appended(wire, RESERVE_BYTES + (100 << 20))
    wire.answer(b"D7168")
    wire.answer(hiredis.ReplyError("MISCONF Errors writing to the AOF file"))
    assert [type(each) for each in told] == [StorageNotWritten]


def test_with_much_room_an_answer_is_enough(wire: Wire) -> None:
    told = appended(wire, 1 << 40)
    wire.answer(b"7168")
    assert told == [Appended(7168)]
    assert wire.sent == []
