"""Batches to a broker: what goes together, in what order, and what a failure or a stop leaves."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.harness.coordinated import turns

from headrace.http.peers.batches import MOST_BYTES, MOST_ITEMS, Batches
from headrace.topics.errors import StorageUnavailable


class Broker:
    """Responds with the items themselves once a test allows it."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.error: Exception | None = None
        self.batches = Batches[int, int](self.send, lambda item: item)

    async def send(self, items: Sequence[int]) -> Sequence[int]:
        self.sent.append(list(items))
        await self.may_respond.wait()
        if self.error is not None:
            raise self.error
        return items

    def ask(self, *items: int) -> list["asyncio.Task[int]"]:
        return [asyncio.ensure_future(self.batches.ask(item)) for item in items]


async def test_requests_of_one_turn_go_together() -> None:
    broker = Broker()
    assert await asyncio.gather(*broker.ask(1, 2, 3)) == [1, 2, 3]
    assert await broker.batches.ask(4) == 4
    assert broker.sent == [[1, 2, 3], [4]]


async def test_batches_are_bounded_and_later_ones_grow() -> None:
    broker = Broker()
    broker.may_respond.clear()
    large = MOST_BYTES // 2 + 1
    asked = broker.ask(large, large, large, large, large, large + 1, MOST_BYTES * 2, *[1] * (MOST_ITEMS + 1))
    await turns()
    assert broker.sent == [[large]] * 4, "no more at once"
    broker.may_respond.set()
    assert len(await asyncio.gather(*asked)) == len(asked)
    assert broker.sent[4:] == [[large], [large + 1], [MOST_BYTES * 2], [1] * MOST_ITEMS, [1]]


async def test_abandoned_requests_are_not_sent() -> None:
    broker = Broker()
    first, second = broker.ask(1, 2)
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 2
    assert broker.sent == [[2]]


async def test_each_request_of_a_failed_batch_fails() -> None:
    broker = Broker()
    broker.error = StorageUnavailable("away")
    found = await asyncio.gather(*broker.ask(1, 2), return_exceptions=True)
    assert [str(each) for each in found] == ["away"] * 2
    broker.error = ValueError("unexpected")
    (other,) = await asyncio.gather(*broker.ask(1), return_exceptions=True)
    assert isinstance(other, StorageUnavailable)
    broker.error = None
    assert await broker.batches.ask(3) == 3


async def test_waiting_requests_are_bounded() -> None:
    broker = Broker()
    broker.may_respond.clear()
    asked = broker.ask(*[MOST_BYTES] * 32)
    await turns()
    asked += broker.ask(*[MOST_BYTES] * 4)
    await turns()
    with pytest.raises(StorageUnavailable):
        await broker.batches.ask(MOST_BYTES)
    broker.may_respond.set()
    assert len(await asyncio.gather(*asked)) == 36


async def test_a_stop_rejects_what_waits_and_what_was_sent() -> None:
    broker = Broker()
    broker.may_respond.clear()
    asked = broker.ask(*[MOST_BYTES] * 6)
    await turns()
    broker.batches.close()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [StorageUnavailable] * 6
