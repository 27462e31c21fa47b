"""Retention and the index of a log with transactions."""

import asyncio
from collections.abc import Callable

import pytest
from tests.broker.transactional import Log, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.source import COMMITTED
from headrace.topics.errors import (
    NotLeader,
)


async def test_deleted_records_do_not_lose_the_end_of_their_transaction(log: Log) -> None:
    """Trap 11 (KAFKA-8542, KAFKA-5435)."""
    log.stored(sent(0), sent(1))
    await log.partition.delete_before(2)
    assert log.ends == (2, 2)
    log.stored(sent(2))
    await log.partition.open()
    assert log.ends == (3, 2)
    log.finish()
    assert log.ends == (4, 4)


async def test_retention_keeps_what_is_not_stable(log: Log) -> None:
    log.stored(sent(0, producer=8, transaction=None), sent(0), sent(1))
    await log.partition.trim(None, 0)
    assert log.partition.log_start == 1
    log.finish()
    await log.partition.trim(None, 0)
    assert log.partition.log_start >= 3


async def test_a_lost_index_is_rebuilt_before_committed_records_are_served(
    log: Log, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    """Trap 25: aborted records must not appear as committed."""
    log.stored(sent(0))
    log.finish(commit=False)
    await log.partition.save_producers()
    stored = storage.logs.logs[log.partition.stream]
    stored.aborted, stored.unstable, stored.index_lost = [], {}, True
    await log.partition.open()
    assert log.ends == (2, 0)
    with pytest.raises(NotLeader):
        log.partition.check_stable()
    with pytest.raises(NotLeader):
        log.append(sent(1))
    log.end()
    assert isinstance(log.ended[0], NotLeader)
    woken: list[int] = []
    log.partition.watch(woken.append, COMMITTED)
    for _ in range(5):
        await asyncio.sleep(0)
    log.partition.check_stable()
    assert (log.ends, log.aborted(), len(woken)) == ((2, 2), [(7, 0)], 1)
    await log.partition.save_producers()
    assert [each.first_offset for each in stored.aborted] == [0]
