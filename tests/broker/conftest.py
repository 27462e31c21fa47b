"""A storage in memory for the broker's own tests. `tests/store` holds the real one to the same promises."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import pytest

from headrace.broker.cache import CacheBudget
from headrace.broker.log import Partition
from headrace.broker.ports import AppendDone
from headrace.groups.model import GroupChange, StoredGroup
from headrace.groups.snapshot import Snapshot
from headrace.records.batch import peek
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable, TopicExists
from headrace.topics.model import Append, Appended, PartitionState, StoredBatch, Topic


class MemoryStorage:
    """All of `broker.ports`. Appends are answered when `answer` is called, as Redis answers later."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.logs: dict[str, list[StoredBatch]] = {}
        self.starts: dict[str, int] = {}
        self.groups: dict[str, Snapshot] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.mirrored: dict[tuple[str, str], int] = {}
        self.waiting: list[tuple[str, Append, AppendDone]] = []
        self.reads = 0
        self.ids = 0
        self.unavailable = False

    async def load_topics(self) -> list[Topic]:
        return [self.topics[name] for name in sorted(self.topics)]

    async def create_topic(self, topic: Topic) -> None:
        if topic.name in self.topics:
            raise TopicExists(topic.name)
        self.topics[topic.name] = topic

    async def replace_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic

    async def delete_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        for stream in topic.streams:
            self.logs.pop(stream, None)
            self.starts.pop(stream, None)

    def _end(self, stream: str) -> int:
        log = self.logs.setdefault(stream, [])
        return log[-1].next_offset if log else 0

    async def open_partition(self, stream: str) -> PartitionState:
        self._check()
        return PartitionState(log_start=self.starts.get(stream, 0), next_offset=self._end(stream), leader_epoch=0)

    def append(self, stream: str, append: Append, done: AppendDone) -> None:
        self.waiting.append((stream, append, done))

    def answer(self, count: int | None = None) -> None:
        """Redis answers the oldest appends, all by default."""
        answered = self.waiting[:count]
        del self.waiting[: len(answered)]
        for stream, append, done in answered:
            if self.unavailable:
                done(StorageUnavailable("the connection was lost"))
                continue
            base = self._end(stream)
            self.logs[stream].append(StoredBatch(base, base + append.span, bytes(append.batch)))
            done(Appended(base))

    async def settle(self) -> None:
        self.answer()

    async def read(self, stream: str, offset: int, count: int, end: int | None = None) -> list[StoredBatch]:
        self._check()
        self.reads += 1
        log = self.logs.get(stream, [])
        first = bisect_right(log, offset, key=lambda stored: stored.next_offset)
        found = log[first : first + count]
        return found if end is None else [stored for stored in found if stored.next_offset <= end]

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        return next((b for b in self.logs.get(stream, []) if peek(b.batch).max_timestamp >= timestamp), None)

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        return max(self.logs.get(stream, []), key=lambda b: peek(b.batch).max_timestamp, default=None)

    async def trim(self, stream: str, *, before_ms: int | None, max_bytes: int | None) -> int:
        log = self.logs.get(stream, [])
        start = self.starts.get(stream, 0)
        while log and before_ms is not None and peek(log[0].batch).max_timestamp < before_ms:
            start = log.pop(0).next_offset
        while log and max_bytes is not None and sum(len(b.batch) for b in log[1:]) >= max_bytes:
            start = log.pop(0).next_offset
        self.starts[stream] = start
        return start

    async def delete_records(self, stream: str, before_offset: int) -> int:
        self.starts[stream] = max(before_offset, self.starts.get(stream, 0))
        return self.starts[stream]

    async def size(self, stream: str) -> int:
        return sum(len(b.batch) for b in self.logs.get(stream, []))

    async def allocate_producer_ids(self, count: int) -> int:
        self._check()
        self.ids += count
        return self.ids - count

    async def load_groups(self) -> list[StoredGroup]:
        return [group.stored for group in self.groups.values() if not group.nothing]

    async def save_group(self, group: str, changes: Sequence[GroupChange]) -> None:
        self._check()
        self.groups.setdefault(group, Snapshot.empty(group)).apply(changes)

    async def mirror_position(self, stream: str, group: str, offset: int) -> None:
        self.mirrored[stream, group] = offset

    async def load_documents(self, kind: str) -> dict[str, bytes]:
        return {name: value for (k, name), value in sorted(self.documents.items()) if k == kind}

    async def save_documents(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        self._check()
        for key, value in changes.items():
            if value is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = value

    def _check(self) -> None:
        if self.unavailable:
            raise StorageUnavailable("the connection was lost")


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def budget() -> CacheBudget:
    return CacheBudget(1 << 20)


@pytest.fixture
def partition(storage: MemoryStorage, budget: CacheBudget) -> Partition:
    state = PartitionState(log_start=0, next_offset=0, leader_epoch=0)
    return Partition("t", 0, "headrace:t:0", state, storage, budget)
