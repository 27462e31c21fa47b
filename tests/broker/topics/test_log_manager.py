"""Logs of topics: opened where they are new, and handed over with their topic."""

from uuid import UUID

from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.leadership import LeaderRegistry, Leadership
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.producer_snapshots import Saved, SnapshotSchedule
from headrace.broker.topics.log_manager import LogManager
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.model import Topic

TOPIC = Topic(name="t", id=UUID(int=1), streams=("a", "b", "c"), config={}, created_ms=0)
CONFIG = resolve({}, TopicDefaults())


class Noted(SnapshotSchedule):
    """Keeps which partitions were added, however often."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[Saved] = []

    def add(self, partition: Saved) -> None:
        self.added.append(partition)
        super().add(partition)


def over(storage: MemoryStorage, clock: ManualClock, snapshots: SnapshotSchedule) -> LogManager:
    leading = Leadership(Ownership(0), LeaderRegistry(), storage.topics)
    return LogManager(storage.logs, leading, clock, lambda *_: "unused", CacheBudget(1 << 20), snapshots)


async def test_partitions_are_opened_from_the_first_new_one_on(storage: MemoryStorage, clock: ManualClock) -> None:
    opened = await over(storage, clock, Noted()).open(TOPIC, CONFIG, 1)
    assert [(each.topic, each.index, each.stream) for each in opened] == [("t", 1, "b"), ("t", 2, "c")]
    assert all(each.log is not None and each.log.is_open for each in opened)
    assert set(storage.logs.logs) == {"b", "c"}


async def test_producers_of_a_log_are_written_down_where_its_topic_has_moved(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    here, there = Noted(), Noted()
    opened = await over(storage, clock, here).open(TOPIC, CONFIG, 2)
    over(storage, clock, here).adopt("t", opened)
    assert (here.added, there.added) == ([], [])
    over(storage, clock, there).adopt("t", opened)
    assert (here.added, there.added) == ([], [opened[0].log])
