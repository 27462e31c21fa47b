"""One broker among others that leads a log by the views it goes by, in memory: no heartbeats, no server."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.leadership import BeforeOpening, LeaderRegistry, Leadership
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.membership.view import Leader, Member, Rendezvous, View
from headrace.testing.clock import ManualClock
from headrace.topics.model import Topic

ALL, WITHOUT_2 = (1, 2, 3), (1, 3)
STREAM = next(
    name
    for name in (f"headrace:t:{number}" for number in range(1_000))
    if (Rendezvous(ALL).choose(name), Rendezvous(WITHOUT_2).choose(name)) == (2, 1)
)
"""Led by 2, and without it by 1."""
TOPIC = Topic(name="t", id=UUID(int=1), streams=(STREAM,), config={}, created_ms=0)


class OneBroker:
    """One broker's state of a log, and its announcements to other brokers."""

    def __init__(self, node_id: int, before_opening: BeforeOpening | None = None) -> None:
        self.told: dict[str, Leader] = {}
        self.ownership = Ownership(node_id)
        self.leaders = LeaderRegistry(node_id, self._publish)
        self.storage = MemoryStorage()
        self.leading = Leadership(self.ownership, self.leaders, self.storage.topics, before_opening=before_opening)
        self.snapshots = SnapshotSchedule()
        budget = CacheBudget(1 << 20)
        self.log = LeaderPartition("t", 0, STREAM, self.storage.logs, budget, ManualClock(), self.snapshots)

    async def _publish(self, leaders: Mapping[str, Leader]) -> None:
        self.told |= leaders

    async def has_told(self) -> None:
        for _ in range(1_000):
            if self.told:
                return
            await asyncio.sleep(0)
        raise AssertionError("it has told nothing")

    async def join(self, number: int, nodes: tuple[int, ...]) -> None:
        await self.storage.topics.create(TOPIC)
        self.adopt(number, nodes)
        await self.leading.open(TOPIC, [self.log])

    def go_by(self, number: int, nodes: tuple[int, ...]) -> None:
        self.adopt(number, nodes)
        self.leading.adopt(TOPIC, [self.log])

    def adopt(self, number: int, nodes: tuple[int, ...]) -> None:
        members = [Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes]
        self.ownership.adopt(View(number, tuple(members)), inside=self.ownership.node_id in nodes)

    def hear(self, leader: Leader) -> Leader:
        """Return the leader that it names after an announcement."""
        news = self.leaders.news({STREAM: leader})
        if news:
            self.leaders.known |= news
            self.leading.hear(TOPIC, self.log)
        return self.log.named
