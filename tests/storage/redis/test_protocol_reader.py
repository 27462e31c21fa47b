"""Replies of Redis: the reader in C against hiredis, and what its views promise."""

import random
from collections.abc import Callable

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.redis.protocol import MALFORMED, PENDING, CopyingReader, Reader, make_reader

_LARGE = 3_000
"""From 2048 bytes on a value may be a view."""

texts = st.binary(max_size=20).map(lambda text: text.replace(b"\r", b"").replace(b"\n", b""))
values = st.recursive(
    st.none()
    | st.integers(min_value=-(2**63), max_value=2**63 - 1)
    | texts
    | st.binary(max_size=40)
    | st.integers(min_value=2_000, max_value=70_000).map(lambda size: random.Random(size).randbytes(size))
    | texts.map(lambda text: hiredis.ReplyError("ERR " + text.decode("latin-1").encode("ascii", "ignore").decode())),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)


def encoded(value: object) -> bytes:
    """A reply in RESP."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    return b"-%b\r\n" % str(value).encode()


def feed(reader: Reader, data: bytes, *, views: bool = False) -> list[object]:
    """The replies that are whole once the reader has all of the bytes."""
    replies: list[object] = []
    position = 0
    while position < len(data):
        room = reader.room()
        count = min(len(room), len(data) - position)
        room[:count] = data[position : position + count]
        del room
        reader.received(count)
        position += count
        while (reply := reader.gets(views)) is not PENDING:
            replies.append(reply)
    return replies


def plain(value: object) -> object:
    """A reply as something that can be compared."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return repr(value) if isinstance(value, Exception) else value


@pytest.fixture(params=[make_reader, CopyingReader], ids=["native", "copying"])
def made(request: pytest.FixtureRequest) -> Reader:
    make: Callable[[Callable[[str], Exception]], Reader] = request.param
    return make(hiredis.ReplyError)


@pytest.mark.generated
@settings(max_examples=150, deadline=None)
@given(st.lists(values, max_size=5), st.lists(st.integers(min_value=1, max_value=100_000), min_size=1), st.booleans())
def test_however_the_bytes_come_the_replies_are_what_hiredis_reads(
    replies: list[object], cuts: list[int], views: bool
) -> None:
    data = b"".join(map(encoded, replies))
    reader = make_reader(hiredis.ReplyError)
    known = hiredis.Reader(notEnoughData=PENDING)
    got: list[object] = []
    expected: list[object] = []
    position = turn = 0
    while position < len(data):
        piece = data[position : position + cuts[turn % len(cuts)]]
        got += feed(reader, piece, views=views)
        known.feed(piece)
        while (reply := known.gets()) is not PENDING:
            expected.append(reply)
        position += len(piece)
        turn += 1

    assert [plain(reply) for reply in got] == [plain(reply) for reply in expected] == [plain(each) for each in replies]


def test_views_stay_as_they_are_while_more_is_received(made: Reader) -> None:
    source = random.Random(7)
    sent = [source.randbytes(source.randrange(100, 200_000)) for _ in range(200)]
    kept: list[object] = []
    for start in range(0, len(sent), 4):
        kept += feed(made, b"".join(map(encoded, sent[start : start + 4])), views=True)

    assert [plain(value) for value in kept] == sent


def test_who_writes_into_a_view_changes_no_other(made: Reader) -> None:
    first, second = feed(made, encoded(bytes(_LARGE)) + encoded(bytes(_LARGE)), views=True)
    if isinstance(first, memoryview):
        first[:] = b"x" * _LARGE

    assert plain(second) == bytes(_LARGE)


def test_unreferenced_memory_is_used_again() -> None:
    reader = make_reader(hiredis.ReplyError)
    if isinstance(reader, CopyingReader):
        pytest.skip("no compiler")
    base = reader.room().obj
    for _ in range(1_000):
        feed(reader, encoded(bytes(_LARGE)), views=True)
    assert reader.room().obj is base

    held = feed(reader, encoded(b"y" * _LARGE), views=True)
    for _ in range(1_000):
        feed(reader, encoded(bytes(_LARGE)), views=True)
    assert reader.room().obj is not base
    assert plain(held) == [b"y" * _LARGE]


def test_values_are_bytes_unless_views_are_asked_for(made: Reader) -> None:
    (value,) = feed(made, encoded([b"k", b"v" * _LARGE]))

    assert value == [b"k", b"v" * _LARGE]
    assert isinstance(value, list)
    assert [type(each) for each in value] == [bytes, bytes]


@pytest.mark.parametrize(
    "data",
    [
        b"what\r\n", b"\r\n", b":12x\r\n", b":\r\n", b":9223372036854775808\r\n", b"$-2\r\n", b"$x\r\n", b"*-2\r\n",
        b"$3\r\nabcde", b"*1\r\n" * 30,
    ],
)  # fmt: skip
def test_invalid_resp_is_refused(made: Reader, data: bytes) -> None:
    with pytest.raises(MALFORMED):
        feed(made, data + b"\r\n")


def test_more_bytes_than_there_was_room_for_are_a_mistake() -> None:
    reader = make_reader(hiredis.ReplyError)
    if isinstance(reader, CopyingReader):
        pytest.skip("no compiler")
    with pytest.raises(ValueError, match="room"):
        reader.received(len(reader.room()) + 1)
    with pytest.raises(ValueError, match="room"):
        reader.received(-1)
