"""Look-ups by time find the same wherever a log is led."""

import pytest
from tests.broker.batches import batch
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.timestamps import FoundOffset, Searcher, Special
from headrace.broker.runtime.decompression import Decompression
from headrace.topics.errors import NotLeader


async def test_by_time_a_log_is_the_same_wherever_it_is_led(partition: LeaderPartition, storage: MemoryStorage) -> None:
    partition.want_copies(2)
    for time_ms in (1_000, 3_000):
        partition.append(batch(3, timestamp=time_ms), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    partition.release(7)
    storage.logs.copies.why = "1 has it"
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 0)
    partition.lead(8)
    await partition.open()
    for each in (partition, followed):
        assert each.log_end == 3
        assert await each.find_offset(500, Searcher(Decompression())) == FoundOffset(0, 1_000)
        for timestamp in (Special.LATEST, Special.MAX_TIMESTAMP, 2_000, 9_000):
            with pytest.raises(NotLeader, match="t-0: how far it can be read is known when its replicas have"):
                await each.find_offset(timestamp, Searcher(Decompression()))
