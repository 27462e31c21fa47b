"""A server's owner of one log over a real storage, without the server: opened, crashed, taken over, read."""

import asyncio
import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis.asyncio

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.runtime.clock import SystemClock
from headrace.metrics.counters import StoreCounters
from headrace.records.build import build
from headrace.records.walk import records
from headrace.storage.journal.journal import SMALLEST, Journal
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import state_of
from headrace.storage.storage import RedisStorage
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, Appended

STREAM = "headrace:t:0"
_PATIENCE_S = 60


def batch(*numbers: int, producer: int = -1, epoch: int = 0, sequence: int = 0, size: int = 8, time: int = 5) -> Append:
    """A batch with a record for each number."""
    made = [(None, b"%d" % number + b"." * size, time, ()) for number in numbers]
    if producer < 0:
        return Append(build(made), len(numbers), time)
    data = build(made, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return Append(data, len(numbers), time, producer, epoch, sequence)


def epoch_of(epochs: LeaderEpochs, offset: int) -> int:
    """The leader epoch of the record at an offset."""
    first, *others = epochs.rows
    return max([first.epoch, *(row.epoch for row in others if row.first <= offset)])


class Owner:
    """One server, as far as one log sees it."""

    def __init__(self, storage: RedisStorage, journal: bool, counted: StoreCounters) -> None:
        self.storage = storage
        self.counted = counted
        self.has_journal = journal
        self.snapshots = SnapshotSchedule()
        self.partition = LeaderPartition(
            "t", 0, STREAM, storage.logs, CacheBudget(1 << 20), SystemClock(), self.snapshots
        )

    @classmethod
    async def start(cls, url: str, view: int, journal: Path | None = None) -> "Owner":
        """Connect, replay the journal, open the log."""
        admin = redis.asyncio.from_url(url)
        counted = StoreCounters()
        options: dict[str, Any] = {}
        if journal is not None:
            options = {"journal": Journal.open(journal, SMALLEST), "journal_bytes": SMALLEST}
        storage = await RedisStorage.open(url, admin, view, counted=counted, **options)
        owner = cls(storage, journal is not None, counted)
        await owner.partition.open(create=True)
        return owner

    def send(self, append: Append) -> "asyncio.Future[Appended | Exception]":
        """Append without waiting."""
        answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
        try:
            self.partition.append(append, answer.set_result)
        except Exception as error:
            answer.set_result(error)
        return answer

    async def append(self, append: Append) -> Appended | Exception:
        """Append and wait."""
        async with asyncio.timeout(_PATIENCE_S):
            return await self.send(append)

    async def acknowledged(self, append: Append) -> int:
        """Append as a client does, again and again until it is acknowledged; its offset."""
        async with asyncio.timeout(_PATIENCE_S):
            while isinstance(answer := await self.send(append), Exception):
                await asyncio.sleep(0.001)
        return answer.base_offset

    def cut(self) -> None:
        """The connection breaks, with what the socket has taken on its way."""
        connection: Any = self.storage.logs._shards
        connection._link.transport.abort()

    async def crash(self) -> None:
        """As if the process were killed: what is under way is left to itself."""
        connection: Any = self.storage.logs._shards
        link = connection._link
        connection._closed = True
        if link is not None:
            link.transport.abort()
            await link.lost
        with contextlib.suppress(Exception):
            self.partition.close()
        await self.storage.logs.close()
        await self.storage.close()

    async def close(self) -> None:
        """End in order."""
        await self.snapshots.save()
        await self.storage.close()


class Contents:
    """The contents of a log."""

    def __init__(self, link: Any) -> None:
        """Read it. `link`: a client that does not decode."""
        state = link.hmget(state_of(STREAM), "b", "l")
        self.log_start = int(state[0])
        self.epochs = partition.epochs(state[1])
        raw = [
            (entry_id, [part for pair in fields.items() for part in pair]) for entry_id, fields in link.xrange(STREAM)
        ]
        self.batches = entries.decode(raw)
        self.strays = len(raw) - len(self.batches)
        self.log_end = self.batches[-1].next_offset if self.batches else self.log_start
        self.by_offset: dict[int, int] = {}
        """Offset -> number of the record there."""
        for stored in self.batches:
            for record in records(stored.batch, stored.base_offset):
                assert record.offset not in self.by_offset, f"two records at {record.offset}"
                assert record.value is not None
                self.by_offset[record.offset] = int(bytes(record.value).partition(b".")[0])

    @property
    def holes(self) -> list[int]:
        """Offsets between log start and end that no record has."""
        return [offset for offset in range(self.log_start, self.log_end) if offset not in self.by_offset]

    @property
    def doubled(self) -> list[int]:
        """Numbers that are there more than once."""
        found = sorted(self.by_offset.values())
        return [one for one, other in pairwise(found) if one == other]

    def check_rows(self) -> None:
        """Check that each batch is at the location in the rows."""
        for stored in self.batches:
            for offset in (stored.base_offset, stored.next_offset - 1):
                assert self.epochs.term_of(offset) >= epoch_of(self.epochs, offset)
