"""Fetches of lagging readers, whatever they ask for: what comes has no gap, keeps to its bounds, and is not waited for.

Two clients read three partitions, of which memory has the end or nothing: one whose batches may come as one, and one
that wants each by itself now and then. What is read ahead of one is taken, or left, by the other.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from tests.broker.test_fetch import Reader
from tests.harness.memory import MemoryStorage

from headrace.broker.fetch import Found, PartitionFetch
from headrace.broker.partition.cache import Buffer, CacheBudget, count_records
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.records.build import build
from headrace.testing.clock import ManualClock
from headrace.topics.model import Append

TURNS = 60
"""In which an answer comes, unless it is waited for more."""


def extents(chunk: Buffer) -> list[tuple[int, int]]:
    """Offset of each batch in a buffer, and the next one."""
    view, at = memoryview(chunk), 0
    found: list[tuple[int, int]] = []
    while at < len(view):
        header = read_header(view[at : at + HEADER_SIZE])
        found.append((header.base_offset, header.base_offset + header.span))
        at += header.size
    assert at == len(view)
    return found


class Lagging:
    """Logs in a storage, and clients that read them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.storage = MemoryStorage()
        self.reader = Reader(ManualClock())
        cache = CacheBudget(self.random.choice((0, 20_000, 1 << 18)))
        self.logs = [
            LeaderPartition(
                "t",
                index,
                f"log-{index}",
                self.storage.logs,
                cache,
                self.reader.clock,
                SnapshotSchedule(),
                self.reader.budget,
            )
            for index in range(3)
        ]
        self.offsets = [[0, 0, 0], [0, 0, 0]]

    def append(self, log: LeaderPartition) -> None:
        count, size = self.random.choice((1, 1, 3, 50)), self.random.choice((1, 10, 300, 5_000))
        log.append(Append(build([(None, b"v" * size, 1_000, ())] * count), count, 1_000), lambda _: None)
        self.storage.logs.answer()

    def bytes(self) -> int:
        """Of any order up to 1 MiB."""
        return int(2 ** self.random.uniform(0, 20))

    def bytes_from(self, log: int, offset: int) -> int:
        """What there is to be read."""
        batches = self.storage.logs.logs[self.logs[log].stream].batches
        return sum(len(each.batch) for each in batches if each.next_offset > offset)

    async def fetch(self, client: int) -> None:
        """Ask for some of what the client has not read."""
        random, offsets = self.random, self.offsets[client]
        wanted = [each for each in range(3) if random.random() < 0.8 and offsets[each] < self.logs[each].log_end]
        if not wanted:
            return
        random.shuffle(wanted)
        if random.random() < 0.05:
            offsets[wanted[0]] = max(0, offsets[wanted[0]] - random.randrange(10))
        join, most = client == 0 or random.random() < 0.5, self.bytes()
        asks = [PartitionFetch(self.logs[each], offsets[each], self.bytes(), join=join) for each in wanted]
        least, first = min(most, self.bytes()), random.randrange(3)
        answers = self.reader.answers
        answers.clear()
        self.reader.fetch(*asks, min_bytes=least, max_bytes=most, first=first)
        for _ in range(TURNS):
            if answers:
                break
            await asyncio.sleep(0)
        at_once = bool(answers)
        while not answers:
            self.reader.clock.advance(500)
            await asyncio.sleep(0)
        (found,) = answers
        check(asks, found, most)
        assert at_once or sum(self.bytes_from(each, offsets[each]) for each in wanted) < least
        for each, answer in zip(wanted, found, strict=True):
            if answer.chunks:
                offsets[each] = extents(answer.chunks[-1])[-1][1]
        self.reader.budget.release(sum(answer.size for answer in found))


def check(asks: Sequence[PartitionFetch], found: Sequence[Found], most: int) -> None:
    """What an answer has is whole, and no more than was asked for."""
    several = 0
    for ask, answer in zip(asks, found, strict=True):
        assert answer.error is None
        assert answer.size == sum(len(chunk) for chunk in answer.chunks)
        batches = [each for chunk in answer.chunks for each in extents(chunk)]
        several += len(batches)
        if batches:
            assert batches[0][0] <= ask.offset < batches[0][1]
            assert all(end == base for (_, end), (base, _) in pairwise(batches))
            assert answer.size <= ask.max_bytes or len(batches) == 1
            assert count_records(answer.chunks, has_gaps=False) == batches[-1][1] - batches[0][0]
            assert ask.join or len(batches) == len(answer.chunks)
    assert sum(answer.size for answer in found) <= most or several == 1
    assert several


@pytest.mark.parametrize("seed", range(40))
async def test_lagging_readers_get_complete_batches(seed: int) -> None:
    lagging = Lagging(seed)
    for log in lagging.logs:
        await log.open(create=True)
        for _ in range(lagging.random.randrange(1, 150)):
            lagging.append(log)
    while any(
        offset < log.log_end for offsets in lagging.offsets for offset, log in zip(offsets, lagging.logs, strict=True)
    ):
        await lagging.fetch(lagging.random.randrange(2))
        for _ in range(lagging.random.choice((0, 0, 3, 15))):
            await asyncio.sleep(0)
        if lagging.random.random() < 0.02:
            lagging.append(lagging.random.choice(lagging.logs))
