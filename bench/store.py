"""The storage alone: appends by a log's owner and reads, on an embedded Valkey over one connection.

CPU is counted for this process ("ours": encoding, sending, decoding) and for the Valkey, per GB of batches and per
append. Nothing here touches the records, and there is no client: no server can be faster than this. Appends are those
of an idempotent producer; some megabytes are under way at any time.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import redis.asyncio
import uvloop
from tests.harness.valkey import running_valkey

from bench.machine import describe
from bench.processes import cpu_s
from bench.table import Cell, table
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.runtime.clock import SystemClock
from headrace.records.batch import peek
from headrace.records.build import build
from headrace.storage.storage import RedisStorage
from headrace.topics.model import Append, Appended

SIZES = (100, 16 << 10, 64 << 10, 1 << 20)
_MOST_BATCHES = 40_000
_TOTAL_BYTES = 512 << 20
_QUICK = 16
_UNDER_WAY_BYTES = 4 << 20
_MOST_UNDER_WAY = 256
_READ_BYTES = 1 << 20
_STREAM = "headrace:bench:0"
_PRODUCER = 7


class Spent(msgspec.Struct):
    """What some work took, in seconds."""

    clock_s: float = 0
    ours_s: float = 0
    valkey_s: float = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="batches of these sizes")


def run(options: argparse.Namespace) -> None:
    print(describe(appended=f"at most {_TOTAL_BYTES >> 20 if not options.quick else _TOTAL_BYTES // _QUICK >> 20} MiB"))
    print()
    rows = [uvloop.run(_measure(size, options.quick)) for size in options.sizes]
    head = ["batch", "append MB/s", "appends/s", "ours s/GB", "Valkey s/GB", "ours us", "Valkey us"]
    print(table([*head, "read MB/s", "ours s/GB", "Valkey s/GB"], rows))


async def _measure(size: int, quick: bool) -> list[Cell]:
    count = min(_MOST_BATCHES, _TOTAL_BYTES // size) // (_QUICK if quick else 1)
    batch = _batch(size)
    gigabytes = count * len(batch) / 1e9
    appending, reading = await alone(batch, count)
    return [
        f"{size:,}",
        gigabytes * 1e3 / appending.clock_s,
        count / appending.clock_s,
        appending.ours_s / gigabytes,
        appending.valkey_s / gigabytes,
        appending.ours_s / count * 1e6,
        appending.valkey_s / count * 1e6,
        gigabytes * 1e3 / reading.clock_s,
        reading.ours_s / gigabytes,
        reading.valkey_s / gigabytes,
    ]


async def alone(batch: bytearray, count: int) -> tuple[Spent, Spent]:
    """Append a batch `count` times and read all of it, on a Valkey of its own; what the one and the other took."""
    async with running_valkey() as valkey:
        storage = await RedisStorage.open(valkey.url, redis.asyncio.from_url(valkey.url), epoch=1, alone=True)
        try:
            log = LeaderPartition("bench", 0, _STREAM, storage.logs, CacheBudget(0), SystemClock(), SnapshotSchedule())
            await log.open(create=True)
            appending, reading = Spent(), Spent()
            with _spending(appending, valkey.pid):
                await _append(log, batch, count)
            with _spending(reading, valkey.pid):
                await _read(storage, max(1, _READ_BYTES // len(batch)), count * peek(batch).span)
        finally:
            await storage.close()
    return appending, reading


def _batch(size: int) -> bytearray:
    """A batch of one record and about `size` bytes."""
    smallest = len(build([(None, b"", 0, ())]))
    value = bytes(number * 7919 % 251 for number in range(max(1, size - smallest)))
    return build([(None, value, 1_700_000_000_000, ())], producer_id=_PRODUCER, producer_epoch=0, base_sequence=0)


@contextmanager
def _spending(spent: Spent, pid: int) -> Iterator[None]:
    clock, ours, valkey = time.perf_counter(), time.process_time(), cpu_s(pid)
    yield
    spent.clock_s = time.perf_counter() - clock
    spent.ours_s = time.process_time() - ours
    spent.valkey_s = cpu_s(pid) - valkey


def _append(log: LeaderPartition, batch: bytearray, count: int) -> Awaitable[Any]:
    """Append `count` times, some concurrently; the sequence in the batch is not checked, so it stays the same."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent = answered = 0
    span = peek(batch).span

    def done(answer: Appended | Exception) -> None:
        nonlocal answered
        answered += 1
        if isinstance(answer, Exception):
            if not finished.done():
                finished.set_exception(answer)
        elif answered == count:
            finished.set_result(None)
        elif sent < count:
            send()

    def send() -> None:
        nonlocal sent
        log.append(Append(bytearray(batch), span, 1_700_000_000_000, _PRODUCER, 0, sent * span), done)
        sent += 1

    for _ in range(min(count, max(4, min(_MOST_UNDER_WAY, _UNDER_WAY_BYTES // len(batch))))):
        send()
    return finished


async def _read(storage: RedisStorage, at_once: int, records: int) -> None:
    offset = 0
    while found := await storage.logs.read(_STREAM, offset, at_once):
        offset = found[-1].next_offset
    if offset != records:
        raise RuntimeError(f"{records} records were appended, {offset} read")
