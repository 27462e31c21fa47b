"""A plain Produce request gets the same answer, to the byte, by its shortcut and by the message tables."""

import importlib.util
import sys
from uuid import uuid4

import pytest
from tests.harness.wire import Wire, batch, produce_request

from headrace.protocol import produce


def answers(wire: Wire, topic: str, data: bytes | None, *, partition: int = 0, version: int) -> list[bytes]:
    """By the shortcut, then by the tables: a byte after the request is skipped, but is not plain."""
    frame = wire.head(0, version, 7) + b"".join(
        bytes(chunk) for chunk in produce_request(topic, data, partition=partition).encode(version)
    )
    found = []
    for each in (frame, frame + b"\0"):
        wire.send_frame(each)
        found.append(wire.receive_frame())
    return found


@pytest.mark.parametrize("version", range(3, 10))
def test_the_same_answer_both_ways(wire: Wire, version: int) -> None:
    first, second = (wire.create(f"t-{uuid4().hex[:8]}", 2) for _ in range(2))
    # The same batch has the same place in either log.
    direct, _ = answers(wire, first, batch(b"x"), version=version)
    _, by_tables = answers(wire, second, batch(b"x"), version=version)
    offset = (0).to_bytes(8, "big") + b"\xff" * 8
    assert direct.replace(first.encode(), b"") == by_tables.replace(second.encode(), b"").replace(
        (1).to_bytes(8, "big") + b"\xff" * 8, offset
    )


@pytest.mark.parametrize("version", range(3, 10))
@pytest.mark.parametrize(
    ("data", "partition"),
    [
        (batch(b"x"), 2),
        (batch(b"x"), 2**31 - 1),
        (batch(b"x")[:-1] + b"?", 0),
        (batch(b"x")[:-1], 0),
        (batch(b"x") + b"?", 0),
        (b"", 0),
        (b"x", 0),
        (None, 0),
    ],
)
def test_the_same_refusal_both_ways(wire: Wire, version: int, data: bytes | None, partition: int) -> None:
    topic = wire.create(f"t-{uuid4().hex[:8]}", 2)
    direct, by_tables = answers(wire, topic, data, partition=partition, version=version)
    assert direct == by_tables


@pytest.mark.parametrize("version", range(3, 10))
def test_a_topic_that_is_not_there(wire: Wire, version: int) -> None:
    direct, by_tables = answers(wire, "nowhere", batch(b"x"), version=version)
    assert direct == by_tables


def test_without_a_compiler_the_tables_read_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.protocol._produce", None)
    spec = importlib.util.spec_from_file_location("without_extension", produce.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert plain.read(b"anything", 0, 8, False) is None
    assert plain.accepted(7, 1, "t", 0, 5, -1, 0) == produce.accepted(7, 1, "t", 0, 5, -1, 0)
