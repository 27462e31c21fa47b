"""One log with a million aborted transactions: the event loop and the memory of who opens and reads it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from resource import getpagesize
from struct import pack_into
from typing import Any

from tests.harness.owning import STREAM, Owner
from tests.storage.conftest import Start

from headrace.broker.fetch import DelayedFetch, Found, PartitionFetch, Wakeups
from headrace.broker.partition.cache import Buffer, next_offset
from headrace.broker.partition.read import read
from headrace.broker.partition.source import COMMITTED, Source
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import SystemClock
from headrace.records.build import build
from headrace.storage.layout.keys import aborted_of, state_of, transactions_of
from headrace.topics.model import Append, Appended

MANY = 1_000_000
SPAN_AT, COUNT_AT = 23, 57
"""Places of the last offset delta and of the number of records in a batch."""
STALL_S, MEMORY = 0.1, 64 << 20
FILL = """
local rows, last = {}, tonumber(ARGV[1]) + tonumber(ARGV[2])
for first = tonumber(ARGV[1]), last - 1 do
  rows[#rows + 1] = first + tonumber(ARGV[3])
  rows[#rows + 1] = string.format('%.0f %.0f %.0f', first + 100, first, first + 1)
end
return redis.call('ZADD', KEYS[1], unpack(rows))
"""


def spanning(span: int) -> Append:
    """A batch that claims many offsets, of one producer."""
    made = build([(None, b"value", 5, ())], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    pack_into(">i", made, SPAN_AT, span - 1)
    pack_into(">i", made, COUNT_AT, span)
    return Append(made, span, 5)


async def fill(start: Start, link: Any) -> None:
    """Transactions of a million producers begin in the first batch, and are aborted in the second one."""
    owner = await start()
    for _ in range(2):
        assert isinstance(await owner.append(spanning(MANY)), Appended)
    await owner.partition.save_producers()
    await owner.crash()
    for first in range(0, MANY, 2_000):
        link.eval(FILL, 1, aborted_of(STREAM), first, 2_000, MANY)
    link.hset(transactions_of(STREAM), "aborted", MANY)
    link.hset(state_of(STREAM), mapping={"x": 1, "o": 2 * MANY})


class Watch:
    """The longest time of one turn of the event loop, and how much the process grew.

    The time is that of the thread, in seconds: the machine may be busy.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.grown = 0

    @asynccontextmanager
    async def over(self) -> AsyncIterator["Watch"]:
        async def watch() -> None:
            last = time.thread_time()
            while True:
                await asyncio.sleep(0)
                self.longest_s = max(self.longest_s, time.thread_time() - last)
                self.grown = max(self.grown, resident() - before)
                last = time.thread_time()

        before = resident()
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        try:
            yield self
        finally:
            watching.cancel()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * getpagesize()


async def fetched(owner: Owner, offset: int) -> Found:
    clock = SystemClock()
    done: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()
    DelayedFetch(
        [PartitionFetch(owner.partition, offset, 1 << 20, isolation=COMMITTED)],
        min_bytes=1,
        max_bytes=1 << 20,
        deadline_ms=clock.ticks_ms() + 60_000,
        first=0,
        clock=clock,
        wakeups=Wakeups(),
        budget=ReadBudget(),
        done=done.set_result,
    ).start()
    return (await done)[0]


async def test_committed_reads_of_a_log_with_a_million_aborted_transactions(start: Start, link: Any) -> None:
    await fill(start, link)
    async with Watch().over() as opening:
        owner = await start(2)
    assert owner.partition.aborted_from > 0, "memory has the newest ones only"
    async with Watch().over() as fetching:
        found = await fetched(owner, 0)
    assert (found.error, len(found.chunks), found.aborted) == (None, 1, [])
    async with Watch().over() as reading:
        sink = Taken()
        assert await read(owner.partition, 0, sink, isolation=COMMITTED) in {MANY, 2 * MANY}
    assert sink.batches
    # Every transaction as an object takes 200 MB.
    seen = [(each.longest_s, each.grown) for each in (opening, fetching, reading)]
    assert all(longest_s < STALL_S and grown < MEMORY for longest_s, grown in seen), seen


class Taken:
    """A sink of a reader that gets committed batches only."""

    def __init__(self) -> None:
        self.batches = 0

    def room(self) -> int:
        return 1 << 20

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        self.batches += len(batches)
        return next_offset(batches)
