"""Any bytes as replies of Redis: the reader in C gives what hiredis gives of them, or refuses them when it does."""

import hiredis
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.mutation import mutated

from headrace.storage.redis.protocol import MALFORMED, PENDING, CopyingReader, Reader, make_reader

REPLIES = st.sampled_from(
    [
        b"$-1\r\n", b"*-1\r\n", b":12\r\n", b":-9223372036854775808\r\n", b"+OK\r\n", b"-ERR no\r\n", b"$0\r\n\r\n",
        b"$3\r\nabc\r\n", b"*2\r\n:1\r\n$1\r\nx\r\n", b"*0\r\n", b"*1\r\n*1\r\n*1\r\n+deep\r\n",
        b"$2500\r\n" + bytes(2500) + b"\r\n",
    ]
)  # fmt: skip
TOKENS = (b"\r\n", b"\r", b"$", b"*", b":", b"-", b"9" * 18, b"9" * 20, b"-1", b"$2048\r\n", b"*99999\r\n", b"\0")
BYTES = mutated(st.lists(REPLIES, max_size=6).map(b"".join), TOKENS)


def read(reader: Reader, data: bytes, cuts: list[int], *, views: bool) -> tuple[list[object], bool]:
    """The replies in the bytes, received in pieces, and whether they were refused after these."""
    replies: list[object] = []
    position = turn = 0
    try:
        while position < len(data):
            room = reader.room()
            count = min(len(room), len(data) - position, cuts[turn % len(cuts)])
            room[:count] = data[position : position + count]
            del room
            reader.received(count)
            position += count
            turn += 1
            while (reply := reader.gets(views)) is not PENDING:
                replies.append(comparable(reply))
    except MALFORMED:
        return replies, True
    return replies, False


def comparable(reply: object) -> object:
    """The same for both readers."""
    if isinstance(reply, list):
        return [comparable(each) for each in reply]
    if isinstance(reply, memoryview):
        return bytes(reply)
    return repr(reply) if isinstance(reply, Exception) else reply


@given(BYTES, st.lists(st.integers(1, 50), min_size=1), st.booleans())
def test_any_bytes_as_replies(data: bytes, cuts: list[int], views: bool) -> None:
    found, refused = read(make_reader(hiredis.ReplyError), data, cuts, views=views)
    expected, refused_by_hiredis = read(CopyingReader(hiredis.ReplyError), data, cuts, views=views)
    assert found[: len(expected)] == expected[: len(found)]
    if not refused and not refused_by_hiredis:
        assert found == expected
