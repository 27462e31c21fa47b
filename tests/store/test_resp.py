"""Templates filled in C and in Python, and as Redis reads them."""

import importlib.util
import sys
from collections.abc import Callable

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store import resp
from headrace.store.resp import BULK, NUMBER, PAIR, fill, plain_fill

numbers = st.integers(-(2**63), 2**63 - 1)
templates = st.lists(st.sampled_from([BULK, NUMBER, PAIR, b"$1\r\nb\r\n", b"", b"\x00\x04\xff"]), max_size=8).map(
    b"".join
)
both = pytest.mark.parametrize("function", [fill, plain_fill])


@given(prefix=st.binary(max_size=20), template=templates, data=st.data())
def test_both_ways_write_the_same(prefix: bytes, template: bytes, data: st.DataObject) -> None:
    places = template.count(NUMBER) + template.count(BULK) + 2 * template.count(PAIR)
    given_numbers = data.draw(st.lists(numbers, min_size=places, max_size=places))
    assert fill(prefix, template, *given_numbers) == plain_fill(prefix, template, *given_numbers)


@both
def test_redis_reads_it(function: Callable[..., bytes]) -> None:
    reader = hiredis.Reader()
    reader.feed(
        function(b"*4\r\n$1\r\n\2\r\n", BULK + PAIR + b"$" + NUMBER + b"\r\n", -7, 2**53 - 1, 10, 3) + b"abc\r\n"
    )
    # The prefix stays as it is, whatever is in it.
    assert reader.gets() == [b"\2", b"-7", b"9007199254740991-10", b"abc"]


@both
@pytest.mark.parametrize("given_numbers", [(), (1,), (1, 2, 3)])
def test_numbers_and_places_agree(function: Callable[..., bytes], given_numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="numbers than the template has places"):
        function(b"", PAIR, *given_numbers)


@pytest.mark.skipif(fill is plain_fill, reason="no C extension here")
@pytest.mark.parametrize("arguments", [(), (b"",), ("", b""), (b"", ""), (b"", NUMBER, "1")])
def test_nothing_else_is_taken(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        fill(*arguments)


@pytest.mark.skipif(fill is plain_fill, reason="no C extension here")
def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        fill(b"", NUMBER, 2**63)


def test_without_a_compiler_it_is_done_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.store._resp", None)
    spec = importlib.util.spec_from_file_location("without_extension", resp.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert plain.fill is plain.plain_fill
