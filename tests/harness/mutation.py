"""Bytes that are nearly right: where a reader's mistakes are found."""

from array import array
from collections.abc import Sequence
from random import Random

from hypothesis import strategies as st

_EXTREMES = (
    b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f",
)  # fmt: skip
"""Ends of integers and of varints."""
_MOST_CHANGES = 4
_MOST_BYTES = 9
"""Taken out or written twice at a time."""
_WAYS = ("set", "put in", "take out", "double", "cut")


def _change(data: bytearray, way: str, at: int, count: int, token: bytes) -> None:
    match way:
        case "set":
            data[at : at + len(token)] = token
        case "put in":
            data[at:at] = token
        case "take out":
            del data[at : at + count]
        case "double":
            data[at:at] = data[at : at + count]
        case "cut":
            del data[at:]


@st.composite
def mutated(draw: st.DrawFn, sources: st.SearchStrategy[bytes], tokens: Sequence[bytes] = _EXTREMES) -> bytes:
    """Return a source with a few changes: bytes set, inserted, removed, duplicated, or the end cut off.

    Args:
        draw: given by Hypothesis.
        sources: valid data.
        tokens: values to overwrite or insert, in addition to single bytes.
    """
    data = bytearray(draw(sources))
    for _ in range(draw(st.integers(0, _MOST_CHANGES))):
        at = draw(st.integers(0, len(data)))
        count = draw(st.integers(0, _MOST_BYTES))
        token = draw(st.sampled_from(tokens) | st.binary(min_size=1, max_size=1))
        _change(data, draw(st.sampled_from(_WAYS)), at, count, token)
    return bytes(data)


def mutated_by(chance: Random, source: bytes, tokens: Sequence[bytes] = _EXTREMES) -> bytes:
    """As `mutated`, by a generator of random numbers: for what is made while an answer is waited for. One change at
    least.
    """
    data = bytearray(source)
    for _ in range(chance.randint(1, _MOST_CHANGES)):
        token = chance.choice([*tokens, chance.randbytes(1)])
        _change(data, chance.choice(_WAYS), chance.randint(0, len(data)), chance.randint(0, _MOST_BYTES), token)
    return bytes(data)


def bounded(data: bytes) -> memoryview:
    """The same bytes in memory of exactly their size: unlike `bytes`, which have a zero after their end."""
    # An array that is made larger has room to spare; one that is multiplied has none.
    view = memoryview(array("B", b"\0") * len(data))
    view[:] = data
    return view
