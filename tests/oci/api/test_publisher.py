"""Batches of a PutMessages of which some fail: what its entries say."""

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
    import json  # noqa: PLC0415

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


async def test_a_topic_deleted_concurrently_fails_too() -> None:
    broker = await broker_of(MemoryStorage())
    made = of_messages(broker, 1)
    await broker.topics.delete("t")
    with pytest.raises(OciError) as caught:
        await made.send()
    assert caught.value.status == 404
