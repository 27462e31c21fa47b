"""Logs as a server has them, over a storage and without the server."""

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.ports import Storage
from headrace.broker.runtime.clock import SystemClock
from headrace.topics.model import Append, Appended


async def opened(storage: Storage, stream: str) -> LeaderPartition:
    """A log that is open for writing, made where it is missing."""
    made = LeaderPartition("t", 0, stream, storage.logs, CacheBudget(1 << 20), SystemClock(), SnapshotSchedule())
    await made.open(create=True)
    return made


async def appended(log: LeaderPartition, *appends: Append) -> list[Appended | Exception]:
    """Append all at once; what each was answered."""
    answers: list[Appended | Exception] = []
    for each in appends:
        log.append(each, answers.append)
    await log.settle()
    return answers
