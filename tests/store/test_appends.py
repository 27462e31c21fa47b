"""What goes to Redis together, and in which order; the script itself is tested on a real Redis in `test_logs`."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from headrace.store.appends import AppendQueue
from headrace.store.connection import Connection
from headrace.topics.errors import OutOfOrderSequence, StorageFull, StorageUnavailable
from headrace.topics.model import Append, Appended


class Wire:
    """A connection that keeps what is sent: for each message, the batches in it and who waits for the answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[bytes], Callable[[Any], None]]] = []
        self.preparing: list[Callable[[], None]] = []

    def before_flush(self, prepare: Callable[[], None]) -> None:
        self.preparing.append(prepare)

    def turn(self) -> None:
        """The end of a turn of the loop."""
        preparing, self.preparing = self.preparing, []
        for prepare in preparing:
            prepare()

    def send(self, chunks: Sequence[bytes], callback: Callable[[Any], None]) -> None:
        reader = hiredis.Reader()
        reader.feed(b"".join(bytes(chunk) for chunk in chunks))
        command = reader.gets()
        assert command[0] == b"EVALSHA"
        keys = int(command[2])
        arguments = command[3 + keys + 2 :]
        assert len(arguments) * 3 == keys * 7
        self.sent.append((arguments[2::7], callback))

    @property
    def batches(self) -> list[list[bytes]]:
        return [batches for batches, _ in self.sent]


def queue(wire: Wire) -> AppendQueue:
    return AppendQueue(cast("Connection", wire), 1, lambda: 1_000)


def batch(text: bytes, size: int = 100) -> Append:
    return Append(text.ljust(size, b"."), 1, 5, 7, 0, 0)


def test_what_comes_in_one_turn_goes_together() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)
    for text in (b"a", b"b", b"c"):
        appends.append("headrace:t:0", batch(text), done.append)
    assert wire.sent == []
    wire.turn()

    assert [[sent[:1] for sent in group] for group in wire.batches] == [[b"a", b"b", b"c"]]
    wire.sent[0][1]([b"4", b"D1", b"-SEQUENCE expected 3, found 9"])
    assert done[:2] == [Appended(4), Appended(1, duplicate=True)]
    assert isinstance(done[2], OutOfOrderSequence)
    assert str(done[2]) == "expected 3, found 9"


def test_while_a_group_is_under_way_the_next_one_is_collected() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)
    appends.append("headrace:t:0", batch(b"a"), done.append)
    wire.turn()
    appends.append("headrace:t:0", batch(b"b"), done.append)
    wire.turn()
    appends.append("headrace:u:0", batch(b"c"), done.append)
    wire.turn()
    assert len(wire.sent) == 1

    wire.sent[0][1]([b"0"])
    wire.turn()

    assert [[sent[:1] for sent in group] for group in wire.batches] == [[b"a"], [b"b", b"c"]]


def test_a_full_group_does_not_wait() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)
    for _ in range(10):
        appends.append("headrace:t:0", batch(b"a", 40 << 10), done.append)
        wire.turn()

    assert [len(group) for group in wire.batches] == [1, 7]


def test_a_large_batch_goes_alone_and_behind_those_that_came_before() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)
    appends.append("headrace:t:0", batch(b"a"), done.append)
    wire.turn()
    appends.append("headrace:t:0", batch(b"b"), done.append)
    appends.append("headrace:t:0", batch(b"c", 1 << 20), done.append)

    assert [[sent[:1] for sent in group] for group in wire.batches] == [[b"a"], [b"b"], [b"c"]]
    wire.turn()
    assert len(wire.sent) == 3


def test_a_group_that_is_refused_as_a_whole_is_refused_to_each() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)
    answers = (hiredis.ReplyError("OOM full"), hiredis.ReplyError("WRONGTYPE no stream"), StorageUnavailable("lost"))
    for answer in answers:
        appends.append("headrace:t:0", batch(b"a"), done.append)
        appends.append("headrace:t:0", batch(b"b"), done.append)
        wire.turn()
        wire.sent[-1][1](answer)

    # After the second nobody knows how far the script came: the partition has to look.
    kinds = [type(error) for error in done]
    assert kinds == [StorageFull] * 2 + [StorageUnavailable] * 4


def test_a_callback_that_fails_harms_nobody_else() -> None:
    wire, done = Wire(), list[Appended | Exception]()
    appends = queue(wire)

    def fail(_: Appended | Exception) -> None:
        raise RuntimeError("a bug")

    appends.append("headrace:t:0", batch(b"a"), fail)
    appends.append("headrace:t:0", batch(b"b"), done.append)
    wire.turn()
    wire.sent[0][1]([b"0", b"1"])

    assert done == [Appended(1)]
