"""The notation, and what no real table here uses: nullable structures, shared structures, every primitive type."""

from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.errors import DecodeError
from headrace.protocol.message import build_message
from headrace.protocol.notation import parse

TABLE = """
SampleRequest key 999 versions 0-2 flexible 1
  cursor Cursor? 1+
    topic string
    where Place
      partition int32
      ids []uuid
  places []Place
  flags []bool
  wide float64 = 1
  port uint16
  mask uint32
  blobs []bytes
  stretches []int64?1+
  maybe Place?1+ 1+ #3
  origin uuid 1+ #1
  notes string 1+ #2
"""


@pytest.fixture(scope="module")
def sample() -> Any:
    return build_message(parse(TABLE)[0], __name__)


def test_nullable_structures(sample: Any) -> None:
    """One byte says whether the structure follows."""
    absent = b"".join(sample().encode(1))
    assert absent[0] == 0xFF
    assert sample.decode(absent, 0, 1) == sample()

    cursor = sample.Cursor(topic="t", where=sample.Place(partition=4))
    present = b"".join(sample(cursor=cursor).encode(1))
    assert present[:3] == b"\x01\x02t"
    assert sample.decode(present, 0, 1).cursor == cursor
    for stop in range(len(present)):
        with pytest.raises(DecodeError):
            sample.decode(present[:stop], 0, 1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_type(sample: Any, version: int) -> None:
    place = sample.Place(partition=-1, ids=[UUID(int=5), UUID(int=2**128 - 1)])
    message = sample(
        places=[place, sample.Place()],
        flags=[True, False],
        wide=-0.5,
        port=65535,
        mask=2**32 - 1,
        blobs=[b"", b"x" * 200],
        stretches=[2**63 - 1] * 40,
    )
    if version:
        message.stretches = None
        message.maybe = place
        message.origin = UUID(int=9)
        message.notes = "n"
    assert sample.decode(b"".join(message.encode(version)), 0, version) == message


def test_absent_structures_start_afresh(sample: Any) -> None:
    assert sample.Cursor().where == sample.Place()
    assert sample.Cursor().where is not sample.Cursor().where


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("Sample key x", "line 1: not a message"),
        ("Sample key 1 versions 0-1\n  name", "line 2: not a field"),
        ("Sample key 1 versions 0-1\n  name strang", "line 2: unknown type strang"),
        ("Sample key 1 versions 0-1\n name string", "line 2: odd indentation"),
        ("Sample key 1 versions 0-1\n    name string", "line 2: indented too far"),
        ("Sample key 1 versions 0-1\n  name string\n    x int8", "line 3: string has no fields"),
    ],
)
def test_mistakes_are_named(table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(table)
