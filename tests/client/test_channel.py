"""The blocking connection of commands and of Spark: what it takes from a server that says anything."""

import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.client.channel import Channel, ConnectionEnded, NotKafka


@contextmanager
def answered(*sent: bytes) -> Iterator[Channel]:
    """A connection to a server that sends this and disconnects."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)

    def send() -> None:
        with theirs:
            for each in sent:
                theirs.sendall(each)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield Channel(ours, None)
    finally:
        thread.join()
        ours.close()


@pytest.mark.parametrize("size", [0, 1, 5 << 20, 40 << 20])
def test_a_frame_comes_whole(size: int) -> None:
    frame = bytes(range(251)) * (size // 251 + 1)
    with answered(struct.pack(">i", size), frame[:size]) as connection:
        assert connection.receive_frame() == frame[:size]


def test_memory_is_taken_for_what_comes_not_for_what_is_said() -> None:
    tracemalloc.start()
    try:
        with answered(struct.pack(">i", 256 << 20), b"five!") as connection, pytest.raises(ConnectionEnded) as raised:
            connection.receive_frame()
        assert str(raised.value) == f"after 5 of {256 << 20} bytes"
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [-1, (256 << 20) + 1, 2**31 - 1])
def test_a_frame_of_any_size_is_not_taken(size: int) -> None:
    with answered(struct.pack(">i", size)) as connection, pytest.raises(NotKafka, match=f"a frame of {size} bytes"):
        connection.receive_frame()
