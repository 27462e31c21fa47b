"""Becoming the leader of a log, with committed and with aborted transactions in it, on an embedded Valkey.

Each log has transactions of one record, so two entries for each. The time is from opening the log to a leader that
serves committed records, and the memory is what this process has more then.
"""

import argparse
import asyncio
import gc
import os
import statistics
import time
from itertools import count

import msgspec
import redis.asyncio
import uvloop
from tests.harness.valkey import running_valkey

from bench.machine import describe
from bench.processes import resident_mb
from bench.table import Cell, table
from headrace.broker.partition.admission import AdmitDone
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.participant import transaction_ended
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.runtime.clock import SystemClock
from headrace.records.build import build
from headrace.records.markers import Marker
from headrace.storage.storage import RedisStorage
from headrace.topics.model import Append, Appended

_REQUIRED_S = 0.3
_STREAM = "headrace:bench:0"
_PRODUCERS = 200
_NOW_MS = 1_700_000_000_000


class _Opened(msgspec.Struct, frozen=True):
    """What opening took."""

    seconds: float
    cpu_s: float
    """Of this process."""
    memory_mb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, help="in a log (100 000; quick: 5 000)")
    parser.add_argument("--rounds", type=int, help="openings whose median counts (5; quick: 1)")


def run(options: argparse.Namespace) -> None:
    rounds = options.rounds or (1 if options.quick else 5)
    transactions = options.transactions or (5_000 if options.quick else 100_000)
    print(describe(fsync="no", median_of=f"{rounds} openings"), end="\n\n", flush=True)
    rows: list[list[Cell]] = []
    for commit in (True, False):
        found = uvloop.run(_measure(transactions, rounds, commit=commit))
        seconds = [each.seconds for each in found]
        what = f"a log with {transactions:,} {'committed' if commit else 'aborted'} transactions"
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        cpu_s = statistics.median(each.cpu_s for each in found)
        memory = statistics.median(each.memory_mb for each in found)
        rows.append([what, statistics.median(seconds), spread, _REQUIRED_S, cpu_s, memory])
    print(table(["becoming the leader of", "s", "spread", "required", "CPU s", "MB"], rows))


async def _measure(transactions: int, rounds: int, *, commit: bool) -> list[_Opened]:
    async with running_valkey() as valkey:
        storage = await RedisStorage.open(valkey.url, redis.asyncio.from_url(valkey.url), epoch=1, alone=True)
        try:
            log = _log(storage)
            await log.open(create=True)
            await _fill(log, storage, transactions, commit=commit)
            await log.save_producers()
            await storage.logs.settle(_STREAM)
            end = log.log_end
        finally:
            await storage.close()
        found = []
        for epoch in range(2, rounds + 2):
            storage = await RedisStorage.open(valkey.url, redis.asyncio.from_url(valkey.url), epoch=epoch, alone=True)
            try:
                found.append(await _open(storage, end, 0 if commit else transactions))
            finally:
                await storage.close()
        return found


async def _open(storage: RedisStorage, end: int, aborted: int) -> _Opened:
    log = _log(storage)
    gc.collect()
    memory, began, cpu_began = resident_mb(os.getpid()), time.perf_counter(), time.process_time()
    await log.open()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    if log.transactions is None or log.log_end != end or len(log.transactions.aborted) != aborted:
        raise RuntimeError(f"the log was not recovered: {log.log_end} of {end} records")
    return _Opened(seconds, cpu_s, resident_mb(os.getpid()) - memory)


def _log(storage: RedisStorage) -> LeaderPartition:
    return LeaderPartition("bench", 0, _STREAM, storage.logs, CacheBudget(0), SystemClock(), SnapshotSchedule())


async def _fill(log: LeaderPartition, storage: RedisStorage, transactions: int, *, commit: bool) -> None:
    """Let producers end transactions of one record, one after the other each."""
    numbers = count(1)

    def admit(topic: str, index: int, append: Append, done: AdmitDone) -> None:
        done(next(numbers))

    log.admission.admit = admit
    if (raising := storage.logs.allow_transactions()) is not None:
        await raising
    shares = [transactions // _PRODUCERS + (each < transactions % _PRODUCERS) for each in range(_PRODUCERS)]
    await asyncio.gather(*(_produce(log, 1_000 + each, share, commit) for each, share in enumerate(shares)))


async def _produce(log: LeaderPartition, producer: int, transactions: int, commit: bool) -> None:
    for sequence in range(transactions):
        placed: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
        made = build(
            [(None, b"value", _NOW_MS, ())],
            producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        log.append(Append(made, 1, _NOW_MS, producer, 0, sequence, "bench"), placed.set_result)
        if isinstance(answer := await placed, Exception):
            raise answer
        await transaction_ended(log, Marker(producer, 0, commit, -1))
