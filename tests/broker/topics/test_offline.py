"""Partitions that this server leads and that take nothing: an operator hears of them."""

from types import SimpleNamespace
from typing import Any, cast

import structlog
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.offline import LONG_MS, LOOK_MS, OfflinePartitions
from headrace.testing.clock import ManualClock
from headrace.topics.errors import Fenced, StorageUnavailable


def over(clock: ManualClock, *logs: Any) -> OfflinePartitions:
    return OfflinePartitions([cast("LiveTopic", SimpleNamespace(partitions=logs))], clock)


async def looked(unopened: OfflinePartitions, clock: ManualClock, ms: int) -> None:
    for _ in range(ms // LOOK_MS):
        clock.advance(LOOK_MS)
        await unopened.look()


async def test_an_unrecovered_log_is_reported_until_it_takes_records_again(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    unopened = over(clock, partition, SimpleNamespace(log=None, offline=None))
    await looked(unopened, clock, LONG_MS)
    assert (partition.fenced_reason, unopened.told) == (None, "")
    storage.unavailable = True
    partition.on_lost(StorageUnavailable("the connection to Redis was lost"))
    with structlog.testing.capture_logs() as told:
        await looked(unopened, clock, LONG_MS)
        assert (unopened.told, told) == ("", [])
        await looked(unopened, clock, 2 * LOOK_MS)
        assert unopened.told == "partitions led here that have taken no records for 25 s: 1, see the log"
        storage.unavailable = False
        await partition.open()
        await looked(unopened, clock, LOOK_MS)
    assert (partition.fenced_reason, unopened.told) == (None, "")
    assert [(each["event"], each.get("reason")) for each in told] == [
        ("partitions accept no records: their logs are not recovered", "the connection to Redis was lost"),
        ("all partitions accept records again", None),
    ]
    partition.close()


async def test_one_that_is_in_doubt_again_and_again_is_not_taken_for_one_that_never_opened(
    partition: LeaderPartition, clock: ManualClock
) -> None:
    unopened = over(clock, partition)
    for _ in range(10):
        partition.on_lost(Fenced("another broker"))
        await looked(unopened, clock, LOOK_MS)
        await partition.open()
    assert unopened.told == ""
    partition.close()


async def test_partitions_of_other_brokers_and_of_deleted_topics_are_not_reported(
    storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    others, deleted = (
        LeaderPartition("t", index, f"headrace:t:{index}", storage.logs, budget, clock, SnapshotSchedule())
        for index in (1, 2)
    )
    others.release(7)
    deleted.close()
    unopened = over(clock, others, deleted)
    await looked(unopened, clock, 2 * LONG_MS)
    assert unopened.told == ""
