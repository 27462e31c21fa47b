"""Retention where partitions cannot be trimmed just now, and where they cannot be at all."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from headrace.broker.topics.retention import Retention
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageMoving, StorageNotWritten, StorageUnavailable, TopicError

PATIENCE_MS = 60_000
MOVED = StorageUnavailable("another node has its slot by now, try again")
MOVING = StorageMoving("its slot is being moved to another shard, try again")


class Plain:
    """A partition whose trims fail with these errors, one after the other, and work after them."""

    def __init__(self, index: int, errors: Iterable[TopicError]) -> None:
        self.topic, self.index = "t", index
        self.deleted, self.leader, self.log = False, None, None
        self.refusals = SimpleNamespace(expire=lambda _: None)
        self.log_start = 0
        self.errors = list(errors)

    def expire_producers(self, before_ms: int) -> None:
        pass

    async def trim(self, *_: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.log_start = 5


async def trimmed(clock: ManualClock, ms: int, *partitions: Plain) -> list[str]:
    """What the log has when all have been tried for so long."""
    config = SimpleNamespace(remote=False, retention_ms=1, retention_bytes=-1)
    topics: Any = [SimpleNamespace(config=config, partitions=partitions)]
    with structlog.testing.capture_logs() as told:
        enforcing = asyncio.create_task(Retention(topics, clock, 1, None).enforce(PATIENCE_MS))
        for _ in range(ms // 50):
            await asyncio.sleep(0)
            clock.advance(50)
        await asyncio.sleep(0)
        enforcing.cancel()
        await asyncio.wait([enforcing])
    return [f"{each['partition']}: {each.get('reason', each['event'])}" for each in told]


async def test_a_slot_that_is_or_was_moved_is_trimmed_a_moment_later_without_a_word() -> None:
    """A warning came 73 s after a reshard, when nothing was wrong any more; the next interval trimmed it."""
    moved, other = Plain(0, [MOVED, MOVING]), Plain(1, [])
    assert await trimmed(ManualClock(), 2_000, moved, other) == ["1: log trimmed", "0: log trimmed"]


async def test_a_lasting_failure_is_reported_after_long_retries() -> None:
    clock, stuck = ManualClock(), Plain(0, [MOVING] * 1_000)
    assert await trimmed(clock, PATIENCE_MS - 3_000, stuck) == []
    assert await trimmed(clock, PATIENCE_MS + 3_000, stuck) == [f"0: {MOVING}"]


async def test_a_partition_that_has_another_leader_by_then_is_left_to_it() -> None:
    gone = Plain(0, [MOVED])
    task = asyncio.create_task(trimmed(ManualClock(), 2_000, gone))
    while gone.errors:
        await asyncio.sleep(0)
    gone.deleted = True
    assert await task == []


@pytest.mark.parametrize(
    "error", [StorageNotWritten("it cannot write its own files"), TopicError("Redis answered: ERR")]
)
async def test_a_permanent_failure_is_reported_at_once(error: TopicError) -> None:
    assert await trimmed(ManualClock(), 50, Plain(0, [error])) == [f"0: {error}"]
