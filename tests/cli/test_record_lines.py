import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.record_lines import BadLine, Record, read_json, read_text, write_json, write_text
from headrace.text import times

maybe_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
records = st.builds(
    Record,
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple),
    timestamp=st.integers(0, 2**62),
)


@given(records)
def test_produce_reads_the_output_of_tail(record: Record) -> None:
    line = write_json("t", 0, 7, record)
    assert "\n" not in line
    assert read_json(line.encode()) == record


@given(st.binary().filter(lambda line: b"\n" not in line))
def test_a_plain_line_is_a_value_byte_for_byte(line: bytes) -> None:
    assert read_text(line, None) == Record(value=line)


def test_a_key_ends_at_the_first_separator() -> None:
    assert read_text(b"a::b::c", b"::") == Record(key=b"a", value=b"b::c")
    assert read_text(b"::", b"::") == Record(key=b"", value=b"")
    with pytest.raises(BadLine, match="expected KEY::VALUE, found 'abc'"):
        read_text(b"abc", b"::")


def test_other_json_values_are_sent_as_json() -> None:
    assert read_json(b'{"value": {"a": [1, null]}, "key": 7}') == Record(key=b"7", value=b'{"a":[1,null]}')


def test_headers_may_be_an_object() -> None:
    assert read_json(b'{"value": null, "headers": {"h": "x", "n": null}}').headers == (("h", b"x"), ("n", None))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", 'an object with a "value"'),
        (b'{"key": "k"}', 'an object with a "value"'),
        (b'{"value": 1, "vlaue": 2}', "unknown field 'vlaue'"),
        (b'{"value": 1, "timestamp": "now"}', "timestamp: expected milliseconds"),
        (b'{"value": 1, "timestamp": true}', "timestamp: expected milliseconds"),
        (b'{"value": {"base64": "!"}}', "not base64"),
        (b'{"value": {"base64": 1}}', "not base64"),
        (b'{"value": 1, "headers": [["h"]]}', "headers: expected"),
        (b'{"value": 1, "headers": "h"}', "headers: expected"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        read_json(line)


def test_a_line_for_people_shows_place_time_key_and_value() -> None:
    record = Record(key=b"k", value="grüße\t\x1b[31m".encode(), timestamp=1_000)
    assert write_text(2, 5, record) == rf"2/5  {times.local(1_000)}  k  grüße\t\x1b[31m"
    assert write_text(0, 0, Record(value=b"\xff")) == r"0/0  -  -  \xff"


def test_json_lines_keep_letters_readable() -> None:
    assert json.loads(write_json("t", 0, 0, Record(value="ü".encode())))["value"] == "ü"
    assert "ü" in write_json("t", 0, 0, Record(value="ü".encode()))
