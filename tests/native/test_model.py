"""One member doing anything in any order: fetches begin with the next record there is, commits are kept exactly."""

import random
from collections.abc import Iterator

import pytest
import redis
from tests.harness.member import Member
from tests.harness.wire import Wire, batch

from headrace.storage.layout.native import id_of, offset_at
from headrace.testing import Server, server

from .conftest import Link

STEPS = 150
ACTIONS = ("add", "produce", "read", "read", "read", "seek", "commit", "rejoin", "sync", "drop", "trim")


class Walk:
    """What a member does, and what there is by then."""

    def __init__(self, kafka: str, storage: str, topic: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.wire = Wire(kafka)
        self.link: Link = redis.Redis.from_url(storage, decode_responses=True)
        self.topic = self.wire.create(topic, headrace_storage="native")
        self.stream = f"headrace:{topic}:0"
        self.reader = Member(kafka, topic, topic, client_id=topic).join()
        self.records: list[int] = []
        self.at, self.committed, self.trimmed = 0, -1, 0

    def close(self) -> None:
        self.reader.close()
        self.wire.close()
        self.link.close()

    def step(self) -> None:
        getattr(self, self.chance.choice(ACTIONS))()

    def place(self) -> int:
        """An offset worth trying: a record's, its neighbours', the ends."""
        known = self.chance.choice([*self.records, 0]) + self.chance.choice([-1, 0, 0, 0, 1, 5])
        return max(self.trimmed, min(known, self.records[-1] + 1 if self.records else 0))

    def add(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            entry: str = self.link.xadd(self.stream, {"a": "b"})
            self.records.append(offset_at(entry.encode()))

    def produce(self) -> None:
        count = self.chance.randint(1, 30)
        base = self.wire.produce(self.topic, batch(*[b"v" * 50] * count)).base_offset
        self.records += range(base, base + count)

    def read(self) -> None:
        records = self.reader.read(self.at, partition_max_bytes=self.chance.choice([1, 300, 1 << 20]))
        found = [record.offset for record in records]
        wanted = [offset for offset in self.records if offset >= self.at]
        assert found == wanted[: len(found)]
        assert bool(found) == bool(wanted)
        if found and self.chance.random() < 0.8:  # else the answer was lost
            self.at = found[-1] + 1

    def seek(self) -> None:
        self.at = self.place()

    def commit(self) -> None:
        self.committed = self.chance.choice([self.at, self.at, self.place()])
        assert self.reader.commit(self.committed) == 0
        assert self.reader.committed() == self.committed

    def rejoin(self) -> None:
        """Leave, and return as another member."""
        self.reader.leave()
        self.reader.member_id = ""
        self.sync()

    def sync(self) -> None:
        """A new generation; begin at the group's offset."""
        self.reader.join()
        start = self.reader.committed()
        if self.committed >= 0:
            assert start >= self.committed
            assert [offset for offset in self.records if self.committed <= offset < start] == []
        self.at = max(start, self.trimmed)

    def drop(self) -> None:
        """XGROUP DESTROY by another client."""
        if self.link.exists(self.stream):
            self.link.xgroup_destroy(self.stream, self.topic)

    def trim(self) -> None:
        """XTRIM by another client; the member continues after the trimmed entries."""
        if not self.records or self.chance.random() < 0.7:
            return
        self.trimmed = self.chance.choice(self.records)
        self.link.xtrim(self.stream, minid=id_of(self.trimmed), approximate=False)
        self.records = [offset for offset in self.records if offset >= self.trimmed]
        self.at = max(self.at, self.trimmed)
        if self.committed >= 0:
            self.committed = max(self.committed, self.trimmed)
            assert self.reader.commit(self.committed) == 0


@pytest.fixture(scope="module")
def with_few_pending() -> Iterator[Server]:
    with server(num_partitions=1, group_initial_rebalance_delay_ms=0, headrace_native_max_pending=7) as started:
        yield started


@pytest.mark.parametrize("seed", range(8))
def test_anything_in_any_order(running: Server, topic: str, seed: int) -> None:
    walk_on(running, f"{topic}-walk", seed)


@pytest.mark.parametrize("seed", range(8))
def test_anything_in_any_order_with_few_pending_entries(with_few_pending: Server, seed: int) -> None:
    walk_on(with_few_pending, f"walk-{seed}", seed)


def walk_on(running: Server, topic: str, seed: int) -> None:
    walk = Walk(running.kafka, running.storage, topic, seed)
    try:
        for _ in range(STEPS):
            walk.step()
        walk.commit()
    finally:
        walk.close()
