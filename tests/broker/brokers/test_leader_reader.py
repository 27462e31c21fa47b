"""What readers of a log that another broker leads are shown, where Redis has lost records."""

import asyncio

import pytest
from tests.broker.batches import batch
from tests.broker.partition.test_high_watermark import waits
from tests.broker.partition.test_recovery import lose_log
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers import leader_reader
from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.log_ports import LogLook
from headrace.broker.partition.leader import LeaderPartition
from headrace.testing.clock import ManualClock
from headrace.topics.errors import OffsetOutOfRange


async def test_a_primary_that_was_just_woken_is_asked_again_where_a_reader_has_come_further(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_reader, "_WOKEN_S", 0)
    partition.append(batch(3), lambda _: None)
    storage.logs.answer()
    woken = await storage.logs.look(partition.stream)
    partition.append(batch(4), lambda _: None)
    storage.logs.answer()
    partition.release(7)
    looks, look = [woken], storage.logs.look

    async def told(stream: str) -> LogLook:
        return looks.pop() if looks else await look(stream)

    monkeypatch.setattr(storage.logs, "look", told)
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 7)
    followed.check_readable(7)
    assert followed.log_end == 7


async def test_remote_readers_are_notified_of_records_lost_in_redis(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the replicas, or if none are required, the end in Redis is the end."""
    monkeypatch.setattr(leader_reader, "_WOKEN_S", 0)
    partition.append(batch(7), lambda _: None)
    storage.logs.answer()
    partition.release(7)
    await lose_log(partition, storage, clock)
    for copies in (1, 2):
        partition.want_copies(copies)
        looking = asyncio.create_task(RemotePartitionReader.look_at(partition, storage.logs, 7))
        if copies > 1:
            await waits(storage)
            storage.logs.copies.answer()
        followed = await looking
        assert followed.log_end == 5
        with pytest.raises(OffsetOutOfRange):
            followed.check_readable(7)
