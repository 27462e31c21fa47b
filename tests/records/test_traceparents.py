"""The traces that records belong to are found in batches, and nothing else is taken for one."""

import pytest

from headrace.records.build import build
from headrace.records.traceparents import MOST, is_traceparent, traceparents, with_header
from headrace.records.walk import records


def parent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


@pytest.mark.parametrize("codec", range(5))
def test_the_different_ones_are_found_however_the_batch_is_packed(codec: int) -> None:
    told = [parent(1), parent(2), parent(1), "nonsense", parent(0), parent(0xABC).upper()]
    fields = [(b"k", b"v" * 9, 5, (("a", b"1"), ("traceparent", text.encode()), ("b", None))) for text in told]
    assert traceparents(build([*fields, (None, None, 5, ())], codec=codec)) == [parent(1), parent(2)]


def test_there_is_an_end_to_them() -> None:
    fields = [(None, b"", 5, (("traceparent", parent(n).encode()),)) for n in range(1, 100)]
    assert traceparents(build(fields)) == [parent(n) for n in range(1, MOST + 1)]


def test_a_batch_that_cannot_be_opened_has_none() -> None:
    batch = build([(None, b"x" * 100, 5, (("traceparent", parent(1).encode()),))], codec=1)
    batch[61:] = bytes(len(batch) - 61)
    assert traceparents(batch) == []


def test_a_header_more_leaves_the_rest_as_it_was() -> None:
    before = build([(b"k", None, 5, (("a", b"1"),)), (None, b"", 7, ())])
    after = records(with_header(before, "traceparent", parent(4)), 0)
    assert [each.headers[-1] for each in after] == [("traceparent", parent(4).encode())] * 2
    assert [(*each[:4], each.headers[:-1]) for each in after] == [tuple(each) for each in records(before, 0)]


def test_what_is_one() -> None:
    assert is_traceparent(parent(1))
    assert not any(map(is_traceparent, ["", parent(0), parent(1)[:-1], "01" + parent(1)[2:], parent(1) + "\n"]))
