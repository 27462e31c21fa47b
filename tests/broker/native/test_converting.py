"""A topic that changes its storage while producers are at full speed, on a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.live import LiveTopic
from headrace.broker.settings import BrokerSettings
from headrace.records.build import build
from headrace.store.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.model import Appended, StoredBatch

OpenStorage = Callable[..., Awaitable[RedisStorage]]
BATCHES, SIZE = 48, 1_000_000


class NoPositions:
    """No group stands anywhere in the topic."""

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        return {}

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        pass


@pytest.mark.parametrize("alone", [True, False])
async def test_an_append_that_waits_behind_other_topics_comes_along(
    open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    storage = await open_storage(alone=alone)
    settings = BrokerSettings.of({})
    broker = Broker(
        storage, settings, ManualClock(), cluster_id="c", stream_of=lambda name, _, index: f"{name}:{index}"
    )
    await broker.topics.create("busy", 1, {})
    live = await broker.topics.create("t", 1, {})
    answers: list[Appended | Exception] = []
    read = storage.logs.read

    async def read_while_producers_are_busy(*args: Any) -> list[StoredBatch]:
        found = await read(*args)
        # More than a few calls hold: the last one goes to Redis only when what went before is there.
        if not answers:
            for topic, size in [("busy", SIZE)] * BATCHES + [("t", 1)]:
                broker.append(topic, 0, bytearray(build([(None, b"x" * size, 5, ())])), answers.append)
        return found

    monkeypatch.setattr(storage.logs, "read", read_while_producers_are_busy)
    await broker.topics.convert("t", "native", NoPositions())
    async with asyncio.timeout(60):
        while len(answers) <= BATCHES:
            await asyncio.sleep(0.01)
    assert isinstance(answers[-1], Appended)
    (stream,) = live.topic.streams
    assert await storage.scripts.shards.at(stream).call("XLEN", stream) == 1
