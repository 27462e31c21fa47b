"""Messages of a REST API into batches: C and Python build the same, and C leaves to others what is not plain."""

import base64
import json
from collections.abc import Callable
from struct import pack
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.batch import check
from headrace.records.fallback.messages import Shares, receipts
from headrace.records.partition_batches import partition_of, share
from headrace.records.walk import records

try:
    import headrace.records._compiled as extension
except ImportError:
    EXTENSIONS: list[ModuleType] = []
else:
    EXTENSIONS = [extension]

NOW = 1_700_000_000_123
MIB = 1 << 20

with_c = pytest.mark.parametrize("extension", EXTENSIONS)
_messages = st.lists(
    st.tuples(st.none() | st.binary(max_size=256), st.binary(min_size=1, max_size=120)), min_size=1, max_size=30
)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def entry(key: bytes | None, value: bytes) -> dict[str, Any]:
    return {"value": b64(value)} if key is None else {"key": b64(key), "value": b64(value)}


def body_of(messages: list[tuple[bytes | None, bytes]], **form: Any) -> bytes:
    return json.dumps({"messages": [entry(*message) for message in messages]}, **form).encode()


def published(extension: ModuleType, body: bytes, partitions: int = 1, left_out: int = 0) -> Shares | None:
    found: Shares | None = extension.publish(body, partitions, NOW, 7, left_out, MIB, MIB)
    return found


@with_c
@given(
    messages=_messages,
    partitions=st.integers(1, 20),
    seed=st.integers(0, 2**64 - 1),
    left_out=st.integers(0, 4),
    indent=st.sampled_from([None, 1, "\t"]),
)
def test_c_shares_out_as_python_does(
    extension: ModuleType,
    messages: list[tuple[bytes | None, bytes]],
    partitions: int,
    seed: int,
    left_out: int,
    indent: int | str | None,
) -> None:
    body = body_of(messages, indent=indent)
    assert extension.publish(body, partitions, NOW, seed, left_out, MIB, MIB) == share(
        messages, partitions, NOW, seed, left_out
    )


@given(_messages, st.integers(1, 8))
def test_every_message_is_in_its_partition_once_and_in_order(
    messages: list[tuple[bytes | None, bytes]], partitions: int
) -> None:
    places, shares = share(messages, partitions, NOW, 99, 0)
    where = memoryview(places).cast("i").tolist()
    assert len(where) == len(messages)
    for partition, batch, size in shares:
        header = check(batch)
        assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW)
        found = [(record.key, record.value) for record in records(batch, 0)]
        assert found == [message for message, place in zip(messages, where, strict=True) if place == partition]
        assert size == sum(len(key or b"") + len(value or b"") for key, value in found)
    for (key, _), place in zip(messages, where, strict=True):
        assert key is None or partitions == 1 or place == partition_of(key, partitions)


def test_chance_spreads_messages_without_key() -> None:
    places, _ = share([(None, b"v")] * 4_000, 4, NOW, 5, 0)
    counts = [memoryview(places).cast("i").tolist().count(partition) for partition in range(4)]
    assert min(counts) > 850
    assert share([(None, b"v")] * 20, 4, NOW, 5, 0)[0] != share([(None, b"v")] * 20, 4, NOW, 6, 0)[0]


@with_c
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}", b"[]", b'{"messages":[]}', b'{"messages":[{}]}', b'{"messages":[{"value":"YQ=="}]',
        b'{"messages":[{"value":"YQ=="}]}x', b'{"messages":[{"value":"YQ=="},]}', b'{"messages":[{"value":"YQ==",}]}',
        b'{"messages":[{"value":""}]}', b'{"messages":[{"value":null}]}', b'{"messages":[{"value":7}]}',
        b'{"messages":[{"value":"YQ"}]}', b'{"messages":[{"value":"Y"}]}', b'{"messages":[{"value":"===="}]}',
        b'{"messages":[{"value":"Y==="}]}', b'{"messages":[{"value":"YQ=a"}]}', b'{"messages":[{"value":"YR=="}]}',
        b'{"messages":[{"value":"YWE\xff"}]}', b'{"messages":[{"value":"-_-_"}]}',
        b'{"messages":[{"value":"YW\\u0051="}]}',
        b'{"messages":[{"value":"YQ==","value":"YQ=="}]}', b'{"messages":[{"key":null,"key":null,"value":"YQ=="}]}',
        b'{"messages":[{"value":"YQ==","other":1}]}', b'{"messages":[{"key":"YQ=="}]}',
        b'{"messages":[{"key":"Y","value":"YQ=="}]}',
        b'{"Messages":[{"value":"YQ=="}]}', b'{"messages":[{"value":"YQ=="}],"x":1}',
        b'{"x":1,"messages":[{"value":"YQ=="}]}',
        b'\xef\xbb\xbf{"messages":[{"value":"YQ=="}]}', b'{"messages":{"value":"YQ=="}}',
        b'{"messages":[{"value":"YQ=="]}}',
        b'{"messages":[{"value":"YQ==" "key":null}]}', b'{"messages":[{"value":"YQ=="}{"value":"YQ=="}]}',
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_others(extension: ModuleType, body: bytes) -> None:
    assert published(extension, body) is None


@with_c
def test_limits_are_left_to_others_too(extension: ModuleType) -> None:
    def size_of(*sizes: tuple[int | None, int]) -> Shares | None:
        return published(
            extension, body_of([(None if key is None else bytes(key), bytes(value)) for key, value in sizes])
        )

    assert size_of((256, 10)) is not None
    assert size_of((257, 10)) is None
    assert size_of((None, MIB)) is not None
    assert size_of((None, MIB + 1)) is None
    assert size_of((1, MIB)) is None
    assert size_of((1, MIB // 2 - 1), (None, MIB // 2)) is not None
    assert size_of((1, MIB // 2), (None, MIB // 2)) is None
    assert extension.publish(body_of([(None, b"v")]), 2**14 + 1, NOW, 0, 0, MIB, MIB) is None


@with_c
@given(_messages, st.data())
def test_a_body_with_changed_bytes_is_read_right_or_not_at_all(
    extension: ModuleType, messages: list[tuple[bytes | None, bytes]], data: st.DataObject
) -> None:
    body = bytearray(body_of(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = published(extension, bytes(body), 3)
    if found is not None:
        read = json.loads(bytes(body))["messages"]
        strict = [
            (None if each.get("key") is None else base64.b64decode(each["key"], validate=True),
             base64.b64decode(each["value"], validate=True))
            for each in read
        ]  # fmt: skip
        assert found == share(strict, 3, NOW, 7, 0)


@with_c
def test_values_of_every_length_and_every_wrong_character(extension: ModuleType) -> None:
    """Long runs are decoded many characters at a time: a wrong one must be found at any position."""
    for size in range(1, 120):
        value = bytes(range(size))
        assert published(extension, body_of([(value, value)])) == share([(value, value)], 1, NOW, 7, 0)
    good = b64(bytes(range(96)))
    for place in range(len(good)):
        for wrong in "\x00-_=. @`{~\x7f":
            body = b'{"messages":[{"value":"%s"}]}' % (good[:place] + wrong + good[place + 1 :]).encode()
            assert published(extension, body) is None


def test_without_c_nothing_is_read(implementation: str) -> None:
    body = body_of([(b"k", b"v")])
    found = accelerator.publish(body, 1, NOW, 0, 0, MIB, MIB)
    assert found == (share([(b"k", b"v")], 1, NOW, 0, 0) if implementation == "compiled" else None)


def test_receipts_count_offsets_up_for_each_place(implementation: str) -> None:
    places = pack("=6i", 1, 0, 1, -1, 2, 1)
    told = [(b"<out>", -1, b""), (b"<a ", 10, b">"), (b"<b ", 2**62, b">"), (b"<failed>", -1, b"unused")]
    expected = b"<b %d>,<a 10>,<b %d>,<out>,<failed>,<b %d>" % (2**62, 2**62 + 1, 2**62 + 2)
    assert accelerator.receipts(places, list(told), b"[", b"]") == b"[" + expected + b"]"


@pytest.mark.parametrize("call", [receipts, *(each.receipts for each in EXTENSIONS)])
def test_receipts_without_reported_offsets(call: Callable[[bytes, list[Any], bytes, bytes], bytes]) -> None:
    for place in (-2, 0, 1, 2**31 - 1):
        with pytest.raises(ValueError, match="without a result"):
            call(pack("=i", place), [(b"out", -1, b""), None], b"", b"")
    assert call(b"", [], b"{", b"}") == b"{}"


@with_c
@given(st.lists(st.integers(-1, 3), max_size=40), st.lists(st.integers(-1, 10**12), min_size=5, max_size=5))
def test_receipts_are_the_same(extension: ModuleType, places: list[int], offsets: list[int]) -> None:
    told = [(b"before %d " % number, offset, b" after") for number, offset in enumerate(offsets)]
    packed = pack(f"={len(places)}i", *places)
    assert extension.receipts(packed, told, b"(", b")") == receipts(packed, list(told), b"(", b")")
