"""Records as entries of plain Redis Streams, in C and in Python alike."""

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.mutation import mutated

from headrace.records import streams
from headrace.records.batch import check, peek
from headrace.records.build import build
from headrace.records.errors import BatchTooLarge, CorruptBatch
from headrace.records.fallback import streams as fallback_streams
from headrace.records.walk import records

BUILDERS: list[Any] = [fallback_streams.build_batches]
ARGUMENTS: list[Any] = [fallback_streams.xadd_arguments]
if streams.available:
    from headrace.records import _streams

    BUILDERS.append(_streams.build_batches)
    ARGUMENTS.append(_streams.xadd_arguments)

TEXT = st.text(max_size=5)
MAYBE = st.none() | st.binary(max_size=20)
FIELDS = st.tuples(MAYBE, MAYBE, st.integers(-1, 2**52), st.lists(st.tuples(TEXT, MAYBE), max_size=3).map(tuple))


def parse(arguments: bytes) -> list[bytes]:
    """RESP bulk strings."""
    found = []
    while arguments:
        size, _, rest = arguments[1:].partition(b"\r\n")
        found.append(rest[: int(size)])
        arguments = rest[int(size) + 2 :]
    return found


def entries_of(batch: bytes | bytearray, first_ms: int = 5) -> list[Any]:
    """What the append script would add, an entry per millisecond."""
    text, count = streams.xadd_arguments(batch)
    parts = parse(text)
    assert len(parts) == count
    entries: list[Any] = []
    while parts:
        fields = int(parts[0])
        entries.append([b"%d-0" % (first_ms + len(entries)), parts[1 : fields + 1]])
        parts = parts[fields + 1 :]
    return entries


def record_of(fields: list[bytes]) -> fallback_streams.Row:
    """The record of an entry at 5 ms."""
    row = streams.read_fields(fields, 5)
    assert row is not None
    return row


def test_a_null_component_is_an_absent_field_and_an_empty_one_an_empty_field() -> None:
    batch = build([(b"k", None, 1, ()), (None, b"", 2, (("h", None), ("h", b"x"))), (None, None, -1, ())])
    assert [fields for _, fields in entries_of(batch)] == [
        [b"key", b"k", b"timestamp", b"1"],
        [b"value", b"", b"headers", b'[["h",null],["h","x"]]', b"timestamp", b"2"],
        [b"timestamp", b"-1"],
    ]


@given(st.lists(FIELDS, min_size=1, max_size=8), st.integers(0, 4))
def test_records_come_back_as_they_went(given_records: list[Any], codec: int) -> None:
    batch = build(given_records, codec=codec)
    batches, unfit, gone = streams.build_batches(entries_of(batch), 10, 1 << 20)
    assert (unfit, gone) == ([], [])
    found = [record for base, _, made in batches for record in records(made, base)]
    assert [(r.key, r.value, r.timestamp, r.headers) for r in found] == [tuple(one) for one in given_records]
    assert [r.offset for r in found] == [(5 + place) << 10 for place in range(len(given_records))]


@given(st.lists(FIELDS, min_size=1, max_size=8), st.booleans())
def test_c_and_python_write_the_same_arguments(given_records: list[Any], fixed: bool) -> None:
    batch = build(given_records)
    header = peek(batch)
    asked = (bytes(batch[61:]), header.count, header.last_offset_delta, header.base_timestamp, 7 if fixed else None)
    answers = [each(*asked) for each in ARGUMENTS]
    assert answers == answers[:1] * len(answers)


NAMES = st.sampled_from([b"key", b"value", b"headers", b"timestamp", b"a", b"\xff"])
VALUES = st.sampled_from(
    [b"", b"x", b"\xfe", b"12", b"-3", b"1e5", b"[]", b'[["a","b"]]', b'{"a":"b"}', b"{", b"[[1,2]]"]
)


def entry_of(parts: tuple[bytes, list[tuple[bytes, bytes]] | None]) -> list[Any]:
    name, fields = parts
    return [name, None if fields is None else [part for pair in fields for part in pair]]


IDS = st.tuples(st.integers(0, 2**44), st.integers(0, 1300)).map(lambda each: b"%d-%d" % each)
ENTRIES: st.SearchStrategy[list[Any]] = st.lists(
    st.tuples(IDS, st.none() | st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=4)).map(entry_of),
    max_size=8,
    unique_by=lambda entry: entry[0],
).map(lambda found: sorted(found, key=lambda entry: tuple(map(int, entry[0].split(b"-")))))


@given(ENTRIES, st.sampled_from([8, 10, 12]), st.sampled_from([1, 100, 1 << 20]))
def test_c_and_python_build_the_same_batches_of_anybodys_entries(entries: list[Any], bits: int, limit: int) -> None:
    answers = [each(entries, bits, limit, streams.read_fields) for each in BUILDERS]
    assert answers == answers[:1] * len(answers)
    batches, unfit, gone = answers[0]
    assert sum(peek(batch).count for _, _, batch in batches) + len(unfit) + len(gone) == len(entries)
    for base, next_offset, batch in batches:
        found = records(batch, base)
        assert peek(batch).base_offset == base == found[0].offset
        assert next_offset == found[-1].offset + 1


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        ([b"temperature", b"21"], (None, b"21", 5, ())),
        ([b"value", b"x"], (None, b"x", 5, ())),
        ([b"key", b"x"], (None, b"x", 5, ())),
        ([b"key", b"k", b"value", b"v"], (b"k", b"v", 5, ())),
        ([b"key", b"k", b"timestamp", b"9"], (b"k", None, 9, ())),
        ([b"timestamp", b"9"], (None, None, 9, ())),
        ([b"value", b"v", b"timestamp", b"yesterday"], (None, b'{"value":"v","timestamp":"yesterday"}', 5, ())),
        ([b"a", b"1", b"b", b"\xff"], (None, b'{"a":"1","b":{"base64":"/w=="}}', 5, ())),
        ([b"a", b"1", b"a", b"2"], (None, b'{"a":["1","2"]}', 5, ())),
        ([b"a", b"1", b"key", b"2"], (None, b'{"a":"1","key":"2"}', 5, ())),
        ([b"\xff", b"1", b"b", b"2"], (None, b'{"base64:/w==":"1","b":"2"}', 5, ())),
        ([b"value", b"v", b"headers", b'[["a","b"],["c",null]]'], (None, b"v", 5, ((b"a", b"b"), (b"c", None)))),
        ([b"value", b"v", b"headers", b'[["a",{"base64":"/w=="}]]'], (None, b"v", 5, ((b"a", b"\xff"),))),
        ([b"value", b"v", b"headers", b'{"a":"b"}'], (None, b"v", 5, ((b"a", b"b"),))),
        ([b"value", b"v", b"headers", b"nonsense"], (None, b'{"value":"v","headers":"nonsense"}', 5, ())),
        ([b"value", b"v", b"headers", b"[[1,2]]"], (None, b'{"value":"v","headers":"[[1,2]]"}', 5, ())),
        ([b"", b""], (None, b"", 5, ())),
    ],
)
def test_entries_of_others_are_records(fields: list[bytes], record: tuple[Any, ...]) -> None:
    assert streams.read_fields(fields, 5) == record


ESCAPES = st.sampled_from(
    [
        '"',
        "\\",
        "\\n",
        "\\u0041",
        "\\u00e9",
        "\\ud83d",
        "\\ude00",
        "\\x",
        "\\/",
        "{",
        "[",
        ",",
        " ",
        "\x01",
        "é",
        "QQ==",
        "é",
    ]
)
STRINGS = st.lists(ESCAPES | st.text(max_size=2), max_size=6).map(lambda parts: '"' + "".join(parts) + '"')
WRAPPED = (STRINGS | st.binary(max_size=5).map(lambda data: f'"{b64encode(data).decode()}"')).map(
    lambda text: '{"base64": ' + text + "}"
)
JSON_PARTS = STRINGS | WRAPPED | st.just("null") | st.sampled_from(["nul", "1", "[]", "", '{"a":"b"}'])
HEADER_TEXTS = (
    st.lists(st.tuples(JSON_PARTS, JSON_PARTS).map(lambda pair: f"[{pair[0]}, {pair[1]}]"), max_size=3)
    .map(lambda pairs: f" [{','.join(pairs)}]\n")
    .map(lambda text: text.encode("utf-8", "surrogatepass"))
)


@given(HEADER_TEXTS | mutated(HEADER_TEXTS))
def test_c_and_python_read_the_same_headers(text: bytes) -> None:
    entries = [[b"5-0", [b"value", b"v", b"headers", text]]]
    answers = [each(entries, 10, 1 << 20, streams.read_fields) for each in BUILDERS]
    assert answers == answers[:1] * len(answers)


@given(
    st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9) | st.text().map(str.encode)), max_size=4)
)
def test_headers_of_any_bytes_come_back_as_they_went(pairs: list[tuple[str, bytes | None]]) -> None:
    headers = tuple((name.encode(), value) for name, value in pairs)
    assert fallback_streams.decode_headers(fallback_streams.encode_headers(headers)) == headers
    batch = build([(None, b"v", 5, tuple(pairs))])
    ((base, _, made),) = streams.build_batches(entries_of(batch), 10, 1 << 20)[0]
    assert [record.headers for record in records(made, base)] == [tuple(pairs)]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_headers_of_a_batch_have_a_length_as_text(arguments: Any) -> None:
    """What JSON escapes has six times the bytes: 96 MB for Redis out of a batch of a kilobyte."""
    batch = build([(None, None, 5, (("h", b"\1" * (1 << 20)),))] * 6)
    with pytest.raises(CorruptBatch, match="33554432 bytes"):
        arguments(bytes(batch[61:]), 6, 5, 5, None)


def test_headers_in_another_form_have_a_length() -> None:
    most = streams.LONGEST_OTHER
    fitting, long = (b'{"a":"%b"}' % bytes(size).replace(b"\0", b"x") for size in (most - 8, most))
    assert record_of([b"value", b"v", b"headers", fitting])[3] == ((b"a", b"x" * (most - 8)),)
    key, value, _, headers = record_of([b"value", b"v", b"headers", long])
    assert (key, headers) == (None, ())
    assert value is not None
    assert value.startswith(b'{"value":"v","headers":"{')


@pytest.mark.parametrize("builder", BUILDERS)
def test_an_entry_that_would_be_too_much_json_is_no_record(builder: Any) -> None:
    half = bytes(streams.LARGEST_OBJECT // 2 - 1)
    entries = [
        [b"5-0", [b"a", half, b"b", half]],
        [b"6-0", [b"a", half, b"b", half + b"x"]],
        [b"7-0", [b"a", 2 * half + b"more"]],
        [b"8-0", [b"value", b"v", b"headers", b"[" + bytes(fallback_streams.MOST_HEADER_TEXT) + b"]"]],
    ]
    batches, unfit, gone = builder(entries, 10, 1, streams.read_fields)
    assert [base for base, _, _ in batches] == [5 << 10, 7 << 10]
    assert (unfit, gone) == ([b"6-0", b"8-0"], [])


@pytest.mark.parametrize("builder", BUILDERS)
def test_an_entry_of_which_only_the_size_is_known_is_no_record(builder: Any) -> None:
    entries = [[b"5-0", 1 << 30], [b"6-0", [b"a", b"v"]], [b"7-0", None]]
    batches, unfit, gone = builder(entries, 10, 1 << 20, streams.read_fields)
    assert [base for base, _, _ in batches] == [6 << 10]
    assert (unfit, gone) == ([b"5-0"], [b"7-0"])


def test_no_batch_is_written_whose_entries_would_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tuple(("h", b"\1" * 100) for _ in range(10))
    small, large, escaped = (
        bytes(build([(None, value, 1, had)])) for value, had in ((b"v" * 900, ()), (b"v" * 2_000, ()), (b"", headers))
    )
    monkeypatch.setattr(streams, "LARGEST_ENTRY", 2_000)
    streams.xadd_arguments(small)
    for each in (large, escaped):
        with pytest.raises(BatchTooLarge, match="2000 in one batch"):
            streams.xadd_arguments(each)


@given(
    st.lists(
        st.tuples(st.text(max_size=3).filter(bool), st.text(max_size=3)),
        min_size=2,
        max_size=4,
        unique_by=lambda each: each[0],
    )
)
def test_several_fields_are_json(pairs: list[tuple[str, str]]) -> None:
    names = {name for name, _ in pairs}
    if names <= {"key", "value", "headers", "timestamp"}:
        return
    _, value, _, _ = record_of([part.encode() for pair in pairs for part in pair])
    assert value is not None
    assert json.loads(value) == dict(pairs)


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_batch_ends_where_an_offset_would_be_too_far_from_its_first(builder: Any) -> None:
    far = (2**31 >> 10) + 5
    entries = [[b"5-0", [b"a", b"1"]], [b"6-0", [b"a", b"2"]], [b"%d-0" % far, [b"a", b"3"]]]
    batches, _, _ = builder(entries, 10, 1 << 20, streams.read_fields)
    assert [(base, end) for base, end, _ in batches] == [(5 << 10, (6 << 10) + 1), (far << 10, (far << 10) + 1)]


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_batch_is_no_larger_than_asked_but_for_one_record(builder: Any) -> None:
    entries = [[b"5-%d" % number, [b"value", b"v" * 100]] for number in range(20)]
    batches, _, _ = builder(entries, 10, 500, streams.read_fields)
    assert len(batches) > 5
    assert all(len(batch) <= 500 for _, _, batch in batches)
    assert len(builder(entries, 10, 1, streams.read_fields)[0]) == 20


@pytest.mark.parametrize("builder", BUILDERS)
def test_sparse_batches_are_whole_batches(builder: Any) -> None:
    batches, _, _ = builder([[b"5-3", [b"a", b"1"]], [b"5-900", [b"a", b"2"]]], 10, 1 << 20, streams.read_fields)
    ((base, end, batch),) = batches
    header = peek(batch)
    assert (header.count, header.last_offset_delta, header.max_timestamp) == (2, 897, 5)
    assert (base, end) == ((5 << 10) + 3, (5 << 10) + 901)
    dense, _, _ = builder([[b"5-3", [b"a", b"1"]], [b"5-4", [b"a", b"2"]]], 10, 1 << 20, streams.read_fields)
    assert check(dense[0][2]).count == 2  # its CRC is right


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_records_that_cannot_be_read_are_refused(arguments: Any) -> None:
    with pytest.raises(CorruptBatch):
        arguments(b"\x05nonsense", 1, 0, 0, None)


@pytest.mark.parametrize("builder", BUILDERS)
def test_what_is_no_entry(builder: Any) -> None:
    with pytest.raises(ValueError, match="no entry id"):
        builder([[b"five", [b"a", b"b"]]], 10, 100, streams.read_fields)
