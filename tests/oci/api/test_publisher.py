"""Batches of a PutMessages of which some fail: what its entries say."""

import json

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.oci.api.publisher import Publication
from headrace.oci.errors import OciError
from headrace.records.partition_batches import partition_of, share
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageFull, StorageUnavailable


# Storage that fails, on a storage in memory
async def broker_of(storage: MemoryStorage) -> Broker:
    """A broker with the topic `t` of two partitions."""
    broker = Broker(
        storage,
        BrokerSettings.of({}),
        ManualClock(),
        cluster_id="c",
        stream_of=lambda name, _, partition: f"{name}-{partition}",
    )
    await broker.topics.create("t", 2, {})
    return broker


async def publication(storage: MemoryStorage, count: int) -> Publication:
    return of_messages(await broker_of(storage), count)


def of_messages(broker: Broker, count: int) -> Publication:
    keys = {partition_of(b"%d" % number, 2): b"%d" % number for number in range(10)}
    messages = [(keys[number % 2], b"v") for number in range(count)]
    return Publication(broker, broker.topics.get("t"), share(messages, 2, broker.clock.now_ms(), 1, 0))


async def sent(made: Publication, storage: MemoryStorage, failing: dict[str, Exception]) -> None:
    import asyncio  # noqa: PLC0415

    sending = asyncio.ensure_future(made.send())
    await asyncio.sleep(0)
    logs = storage.logs
    for stream, *_, done in list(logs.waiting):
        if stream in failing:
            done(failing[stream])
    logs.waiting = [each for each in logs.waiting if each[0] not in failing]
    logs.answer()
    await sending


async def test_one_failing_partition_is_reported_in_its_entries() -> None:
    storage = MemoryStorage()
    made = await publication(storage, 4)
    await sent(made, storage, {"t-1": StorageFull("full")})
    told = json.loads(made.answer())
    assert told["failures"] == 2
    assert told["entries"][1::2] == [{"error": "503", "errorMessage": "full"}] * 2
    assert [(entry["partition"], entry["offset"]) for entry in told["entries"][::2]] == [("0", 0), ("0", 1)]


async def test_when_all_partitions_fail_the_request_does() -> None:
    storage = MemoryStorage()
    made = await publication(storage, 4)
    with pytest.raises(OciError) as caught:
        await sent(made, storage, {"t-0": StorageUnavailable("away"), "t-1": RuntimeError("odd")})
    assert (caught.value.status, caught.value.code) == (503, "ServiceUnavailable")


async def test_messages_that_are_rejected_one_by_one_have_their_own_entries() -> None:
    storage = MemoryStorage()
    broker = await broker_of(storage)
    await broker.topics.configure("t", lambda _: {"cleanup.policy": "compact"})
    first, second = ({partition_of(b"%d" % number, 2): b"%d" % number for number in range(10)}[at] for at in (0, 1))
    seed = next(seed for seed in range(100) if {place for place, *_ in share([(None, b"v")], 2, 0, seed, 0)[1]} == {0})
    messages = [(first, b"a"), (None, b"b"), (second, b"c"), (first, b"d")]
    made = Publication(broker, broker.topics.get("t"), share(messages, 2, broker.clock.now_ms(), seed, 0))
    await sent(made, storage, {})
    told = json.loads(made.answer())
    assert told["failures"] == 3
    assert told["entries"][2]["partition"] == "1"
    reason = "Compacted topic cannot accept message without key in topic partition t-0."
    assert told["entries"][1] == {"error": "400", "errorMessage": reason}
    for entry in (told["entries"][0], told["entries"][3]):
        assert entry["error"] == "400"
        assert "due to 1 record errors" in entry["errorMessage"]


async def test_messages_without_key_alone_are_entries_too() -> None:
    broker = await broker_of(MemoryStorage())
    await broker.topics.configure("t", lambda _: {"cleanup.policy": "compact"})
    made = Publication(broker, broker.topics.get("t"), share([(None, b"v")] * 3, 2, broker.clock.now_ms(), 1, 0))
    await made.send()
    told = json.loads(made.answer())
    assert told["failures"] == 3
    assert {entry["error"] for entry in told["entries"]} == {"400"}
    assert all("without key" in entry["errorMessage"] for entry in told["entries"])


async def test_a_topic_deleted_concurrently_fails_too() -> None:
    broker = await broker_of(MemoryStorage())
    made = of_messages(broker, 1)
    await broker.topics.delete("t")
    with pytest.raises(OciError) as caught:
        await made.send()
    assert caught.value.status == 404
