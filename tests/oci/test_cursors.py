"""Cursors: what is signed comes back, anything else is refused, and none is too long."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.instances.model import GroupCursor
from headrace.oci.cursors import (
    LONGEST,
    LONGEST_NAME,
    SECRET_SIZE,
    Cursor,
    InstanceCursor,
    InvalidCursor,
    PartitionCursor,
    Signer,
    expired,
    most_offsets,
    of_group,
)

SECRET = bytes(range(SECRET_SIZE))
LARGEST = 2**63 - 1

_streams = st.binary(min_size=16, max_size=16)
_numbers = st.integers(0, LARGEST)
_names = st.text(min_size=1, max_size=LONGEST_NAME).filter(lambda text: len(text.encode()) <= LONGEST_NAME)
_partition_cursors = st.builds(
    PartitionCursor, _streams, _numbers, st.integers(0, 100_000), _numbers, st.none() | _numbers
)
_instance_cursors = st.builds(
    InstanceCursor,
    _streams,
    _numbers,
    st.text(min_size=1, max_size=60),
    st.text(min_size=1, max_size=60),
    _numbers,
    _numbers,
    _numbers,
    st.integers(1, 2**31 - 1),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 100_000), _numbers), max_size=5).map(tuple),
)
_cursors = _partition_cursors | _instance_cursors


@given(_cursors)
def test_what_is_signed_comes_back(cursor: Cursor) -> None:
    token = Signer(SECRET).sign(cursor)

    assert Signer(SECRET).read(token) == cursor
    assert len(token) <= LONGEST
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    # To a command line a dash in front would make it an option.
    assert token[0].isalpha()


@given(_cursors)
def test_padding_that_a_client_puts_back_does_no_harm(cursor: Cursor) -> None:
    token = Signer(SECRET).sign(cursor)

    assert Signer(SECRET).read(token + "=" * (-len(token) % 4)) == cursor


@given(_cursors, st.data())
def test_no_changed_bit_goes_unnoticed(cursor: Cursor, data: st.DataObject) -> None:
    token = Signer(SECRET).sign(cursor)
    signed = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    bit = data.draw(st.integers(0, len(signed) * 8 - 1))
    signed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(InvalidCursor):
        Signer(SECRET).read(urlsafe_b64encode(bytes(signed)).rstrip(b"=").decode())


@given(_cursors, st.data())
def test_no_other_character_and_no_truncation_is_taken(cursor: Cursor, data: st.DataObject) -> None:
    token = Signer(SECRET).sign(cursor)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda character: character != token[at]))

    for broken in (token[:at], token[at + 1 :], token[:at] + other + token[at + 1 :], token + "A", token * 2):
        # A change may be in padding only where there is none: the last character is a character too.
        if broken.rstrip("=") == token:
            continue
        with pytest.raises(InvalidCursor):
            Signer(SECRET).read(broken)


@given(st.text(max_size=1_200))
def test_garbage_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        Signer(SECRET).read(text)


@given(_cursors)
def test_another_secret_is_another_server(cursor: Cursor) -> None:
    with pytest.raises(InvalidCursor):
        Signer(bytes(SECRET_SIZE)).read(Signer(SECRET).sign(cursor))


def test_a_cursor_of_a_later_version_is_refused_and_not_misread() -> None:
    content = b"\x93\x07\x01\x02"  # an array with an unknown tag
    signed = content + hmac.digest(SECRET, content, "sha256")[:16]
    token = urlsafe_b64encode(signed).rstrip(b"=").decode()

    with pytest.raises(InvalidCursor, match="another version"):
        Signer(SECRET).read(token)


@given(_names, _names, st.integers(1, 100_000), st.data())
def test_as_many_offsets_as_promised_always_fit(
    group: str, instance: str, partitions: int, data: st.DataObject
) -> None:
    most = most_offsets(group, instance, partitions)
    assert min(partitions, 5) <= most <= partitions
    last = data.draw(st.integers(0, LARGEST))
    offsets = tuple((partitions - 1 - place, LARGEST - last) for place in range(most))
    cursor = GroupCursor(
        group=group,
        instance=instance,
        incarnation=LARGEST,
        epoch=LARGEST,
        generation=LARGEST,
        timeout_ms=2**31 - 1,
        commit_on_get=True,
        offsets=offsets,
    )

    token = Signer(SECRET).sign(of_group(UUID(int=0), LARGEST, cursor))

    assert len(token) <= LONGEST
    read = Signer(SECRET).read(token)
    assert isinstance(read, InstanceCursor)
    assert read.cursor() == cursor


def test_the_longest_names_leave_room_for_partitions() -> None:
    assert most_offsets("ü" * 127, "\N{GRINNING FACE}" * 63, 10_000) >= 10
    assert most_offsets("orders", "worker-1", 64) >= 40
    assert most_offsets("orders", "worker-1", 4) == 4


def test_too_long_a_cursor_is_a_programming_error() -> None:
    cursor = InstanceCursor(
        bytes(16), 0, "g" * 255, "i" * 255, 0, 0, 0, 1, True, tuple((n, LARGEST) for n in range(99))
    )
    with pytest.raises(ValueError, match="1024"):
        Signer(SECRET).sign(cursor)


def test_a_cursor_is_good_to_its_last_millisecond() -> None:
    cursor = PartitionCursor(bytes(16), 1_000, 0, 0)

    assert not expired(cursor, 1_000)
    assert expired(cursor, 1_001)
