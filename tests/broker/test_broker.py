"""The broker as what every API talks to."""

from tests.harness.memory import MemoryStorage

from headrace.broker.broker import Broker
from headrace.broker.fetch import Ask, Found
from headrace.broker.settings import BrokerSettings
from headrace.records.build import build
from headrace.testing.clock import ManualClock


async def test_clients_that_take_turns_begin_with_other_partitions_each_time() -> None:
    """An answer may have room for the first only: who always began with the same would never get the others."""
    storage = MemoryStorage()
    broker = Broker(
        storage,
        BrokerSettings.of({}),
        ManualClock(),
        cluster_id="c",
        stream_of=lambda name, _, index: f"{name}:{index}",
    )
    await broker.topics.create("t", 2, {})
    data = build([(None, b"x", 5, ())])
    for index in (0, 1):
        broker.append("t", index, bytearray(data), lambda _: None)
    storage.logs.answer()
    asks = [Ask(broker.topics.partition("t", index), 0, 1 << 20) for index in (0, 1)]
    began: dict[str, set[int]] = {"first": set(), "second": set()}
    for _ in range(40):
        for seen in began.values():

            def done(found: list[Found], seen: set[int] = seen) -> None:
                seen.update(index for index, answer in enumerate(found) if answer.size)
                broker.reads.release(sum(answer.size for answer in found))

            broker.fetch(asks, min_bytes=1, max_bytes=len(data), max_wait_ms=0, done=done)
    assert began == {"first": {0, 1}, "second": {0, 1}}
