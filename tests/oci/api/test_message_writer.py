"""A crowd of readers leaves others their turns on the event loop, however small the messages are."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.runtime.decompression import Decompression
from headrace.oci.api.message_writer import MessageSink
from headrace.records.build import build

CROWD = 60
MOST_JSON = 4 << 20
"""Bytes of JSON that one turn may write: some milliseconds."""


@pytest.mark.parametrize(("count", "size"), [(10_000, 0), (800, 1000)])
async def test_a_crowd_takes_turns(count: int, size: int) -> None:
    decompression = Decompression()
    partition: Any = SimpleNamespace(topic="t", index=0)
    batch = build([(None, bytes(size), 1, ())] * count)
    written, turns = 0, [0]

    async def read() -> None:
        nonlocal written
        sink = MessageSink("t", 10_000, 1 << 20, decompression)
        await sink.take(partition, [batch], 0, None)
        assert sink.count == count
        written += len(sink.answer())

    reading = [asyncio.create_task(read()) for _ in range(CROWD)]
    while not all(each.done() for each in reading):
        before = written
        await asyncio.sleep(0)
        turns.append(written - before)
    await asyncio.gather(*reading)
    decompression.close()
    assert max(turns) <= MOST_JSON
