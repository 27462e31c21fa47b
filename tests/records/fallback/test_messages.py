"""Messages of a REST answer out of batches: the same bytes from C and from Python, and what they say."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.accelerator import MessageWriter
from headrace.records.batch import log_append_time, peek
from headrace.records.build import build
from headrace.records.errors import CorruptBatch
from headrace.records.fallback.messages import LATEST_MS, PureMessages, time_text
from headrace.records.walk import fixed_timestamp, payload, records

try:
    import headrace.records._compiled as extension
except ImportError:
    EXTENSIONS: list[ModuleType] = []
else:
    EXTENSIONS = [extension]

PREFIX = b'{"stream":"orders","partition":"7","key":'
FIRST = 1_000

Opener = Callable[[int, int], MessageWriter]


def write(
    writer: MessageWriter, batch: bytes | bytearray, first: int = 0, not_before: int | None = None, cut: int = 0
) -> int:
    header = peek(batch)
    opened = bytes(payload(header, batch))
    return writer.write(
        opened[: len(opened) - cut],
        header.count,
        header.last_offset_delta,
        FIRST,
        header.base_timestamp,
        fixed_timestamp(header),
        first,
        not_before,
        PREFIX,
    )


_bytes = st.one_of(st.none(), st.binary(max_size=40))
_times = st.one_of(st.integers(-5, 2_000_000_000_000), st.integers(-(2**62), 2**62))
_records = st.lists(st.tuples(_bytes, _bytes, _times, st.just((("name", b"left out"),))), min_size=1, max_size=12)


@pytest.mark.parametrize("extension", EXTENSIONS)
@given(
    batches=st.lists(_records, min_size=1, max_size=3),
    most_count=st.integers(0, 20),
    most_bytes=st.integers(0, 300),
    first=st.integers(FIRST - 2, FIRST + 14),
    not_before=st.one_of(st.none(), _times),
    append_time=st.booleans(),
    cut=st.sampled_from([0, 0, 0, 1, 5, 30]),
)
def test_both_write_the_same(
    extension: ModuleType,
    batches: list[list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]]],
    most_count: int,
    most_bytes: int,
    first: int,
    not_before: int | None,
    append_time: bool,
    cut: int,
) -> None:
    def all_of(opener: Opener) -> list[object]:
        writer = opener(most_count, most_bytes)
        told: list[object] = []
        for each in batches:
            batch = build(each)
            if append_time:
                log_append_time(batch, 1_700_000_000_321)
            try:
                told.append(write(writer, batch, first, not_before, cut if len(each) > 1 else 0))
            except CorruptBatch:
                # Nothing of the batch was taken. In which words differs: aiokafka has its own.
                told.append("corrupt")
            told += [writer.count, writer.size, writer.full]
        return [*told, writer.take(), writer.count, writer.take()]

    assert all_of(extension.Messages) == all_of(PureMessages)


def test_what_a_message_says(implementation: str) -> None:
    batch = build(
        [
            (b"k", b"value", 1_524_704_586_051, (("h", b"x"),)),
            (None, b"\xff\x00", -1, ()),
            (b"", None, LATEST_MS + 1, ()),
            (b"k", b"", 951_782_400_000, ()),
        ]
    )
    writer = accelerator.open_messages(100, 1_000)

    assert write(writer, batch) == FIRST + 4
    assert not writer.full
    written = writer.take()

    assert json.loads(written) == [
        {"stream": "orders", "partition": "7", "key": "aw==", "value": "dmFsdWU=", "offset": 1000,
         "timestamp": "2018-04-26T01:03:06.051Z"},
        {"stream": "orders", "partition": "7", "key": None, "value": "/wA=", "offset": 1001,
         "timestamp": "1970-01-01T00:00:00.000Z"},
        {"stream": "orders", "partition": "7", "key": "", "value": "", "offset": 1002,
         "timestamp": "9999-12-31T23:59:59.999Z"},
        {"stream": "orders", "partition": "7", "key": "aw==", "value": "", "offset": 1003,
         "timestamp": "2000-02-29T00:00:00.000Z"},
    ]  # fmt: skip


def test_no_messages_are_an_empty_array(implementation: str) -> None:
    assert accelerator.open_messages(10, 10).take() == b"[]"
    assert accelerator.open_messages(0, 10).full


@pytest.mark.parametrize("codec", range(5))
def test_compressed_batches_are_opened_before(implementation: str, codec: int) -> None:
    values = [b"%d" % number * 50 for number in range(200)]
    batch = build([(None, value, 5, ()) for value in values], codec=codec)
    writer = accelerator.open_messages(1_000, 1 << 20)

    write(writer, batch)

    assert [base64.b64decode(each["value"]) for each in json.loads(writer.take())] == values


def test_count_and_bytes_bound_it_and_the_first_message_always_fits(implementation: str) -> None:
    batch = build([(b"kk", bytes(10), 5, ())] * 10)

    by_count = accelerator.open_messages(3, 1 << 20)
    assert write(by_count, batch) == FIRST + 3
    assert (by_count.count, by_count.size, by_count.full) == (3, 36, True)

    by_bytes = accelerator.open_messages(100, 35)
    assert write(by_bytes, batch, first=FIRST + 5) == FIRST + 7
    assert (by_bytes.count, by_bytes.size, by_bytes.full) == (2, 24, True)

    exactly = accelerator.open_messages(100, 36)
    assert write(exactly, batch) == FIRST + 3
    assert exactly.full

    large = accelerator.open_messages(100, 5)
    assert write(large, batch, first=FIRST + 9) == FIRST + 10
    assert (large.count, large.full) == (1, True)


def test_records_before_an_offset_or_a_time_are_passed_over(implementation: str) -> None:
    batch = build([(None, b"%d" % time, time, ()) for time in (10, 40, 20, 50)])
    writer = accelerator.open_messages(100, 1_000)

    assert write(writer, batch, first=FIRST + 1, not_before=30) == FIRST + 4

    assert [each["offset"] for each in json.loads(writer.take())] == [FIRST + 1, FIRST + 3]


def test_a_batch_that_cannot_be_read_leaves_what_was_there(implementation: str) -> None:
    writer = accelerator.open_messages(100, 10_000)
    write(writer, build([(None, b"kept", 5, ())]))

    with pytest.raises(CorruptBatch):
        write(writer, build([(None, b"first", 5, ()), (None, b"second", 5, ())]), cut=3)

    assert (writer.count, writer.size) == (1, 4)
    assert [each["value"] for each in json.loads(writer.take())] == [base64.b64encode(b"kept").decode()]


def test_wrong_arguments_are_programming_errors() -> None:
    writer = accelerator.open_messages(100, 10_000)
    with pytest.raises(TypeError):
        writer.write("text")  # type: ignore[arg-type, call-arg]


@given(st.integers(0, LATEST_MS))
def test_times_follow_the_calendar(time_ms: int) -> None:
    batch = build([(None, b"", time_ms, ())])
    assert records(batch, 0)[0].timestamp == time_ms
    for writer in (accelerator.open_messages(1, 1), PureMessages(1, 1)):
        write(writer, batch)
        told = json.loads(writer.take())[0]["timestamp"]
        assert told == time_text(time_ms)
        read = datetime.strptime(told, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        assert round(read.timestamp() * 1000) == time_ms


def test_messages_that_are_too_large_are_passed_over_and_counted() -> None:
    batch = build([(b"k", b"x" * size, 1, ()) for size in (9, 10, 3, 200, 4)])
    for opener in (accelerator.open_messages, PureMessages):
        writer = opener(100, 1_000, 10)
        assert write(writer, batch) == FIRST + 5
        assert (writer.count, writer.passed_over) == (3, 2)
        assert [each["offset"] for each in json.loads(writer.take())] == [FIRST, FIRST + 2, FIRST + 4]


@pytest.mark.parametrize("wrong", [False, True])
def test_large_batches_are_read_like_small_ones(wrong: bool) -> None:
    """The C code releases the GIL, wherever the read starts and ends."""
    every = [(None, b"%07d" % number, number % 3, ()) for number in range(60_000)]
    batch = build(every)
    cut = 5 if wrong else 0
    for first, not_before in ((0, None), (FIRST + 59_990, None), (FIRST + 100, 2), (0, 3)):
        told = []
        for opener in (accelerator.open_messages, PureMessages):
            writer = opener(1_000, 1 << 20)
            try:
                following = write(writer, batch, first, not_before, cut)
            except CorruptBatch:
                following = -1
            told.append((following, writer.count, writer.size, writer.full, writer.take()))
        assert told[0] == told[1]
