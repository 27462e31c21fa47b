"""Readers that are not the leader know its transactions exactly: another server, and one that reads Redis directly."""

import random
from typing import Any

import pytest
from tests.harness.owning import STREAM, Owner
from tests.harness.waiting import until
from tests.storage.conftest import Start
from tests.storage.logs.test_log_state import Producers, sent

from headrace.broker.partition.cache import Buffer, next_offset
from headrace.broker.partition.read import read
from headrace.broker.partition.source import COMMITTED, Source
from headrace.client.errors import DataLoss, StorageUnavailable
from headrace.client.offsets import Range, TopicPartition
from headrace.records.batch import read_header
from headrace.spark.source import committed_log
from headrace.spark.source.committed_log import CommittedLog
from headrace.spark.source.redis_log import LogReader
from headrace.storage.layout.keys import aborted_of, transactions_of
from headrace.topics.model import Appended
from headrace.topics.transactions import Transactions


class Offsets:
    """A sink without an end, for batches of one record."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def room(self) -> int:
        return 1 << 20

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        self.found += [read_header(memoryview(each)[:61]).base_offset for each in batches]
        return next_offset(batches)


async def leaders_view(owner: Owner) -> tuple[int, list[int]]:
    """The last stable offset, and the offsets of committed records below it."""
    sink = Offsets()
    await read(owner.partition, owner.partition.local_start, sink, isolation=COMMITTED)
    return owner.partition.visible_end(COMMITTED), sink.found


async def followers_view(owner: Owner) -> Transactions | None:
    look = await owner.storage.logs.look(STREAM)
    return await look.transactions()


def offsets_in(url: str, start: int, end: int, **options: Any) -> list[int]:
    with LogReader(url, committed=True) as log:
        batches = log.records(STREAM, Range(TopicPartition("t", 0), start, end), **options)
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_all_readers_know_what_the_leader_knows(
    start: Start, any_redis: Any, link: Any, monkeypatch: pytest.MonkeyPatch, seed: int, small: bool
) -> None:
    if small:
        monkeypatch.setattr(committed_log, "ARGUMENTS", (2, 3))
        monkeypatch.setattr(committed_log, "HEADERS_AT_ONCE", 3)
        monkeypatch.setattr(committed_log, "_ABORTED_AT_ONCE", 2)
    chance, owner = random.Random(seed), await start()
    producers = Producers(owner)
    for _ in range(6):
        await producers.some(chance, 10)
        if chance.random() < 0.5:
            await owner.append(sent(-1, -1, transaction=None))
        if chance.random() < 0.5:
            await owner.partition.save_producers()
        if chance.random() < 0.3:
            await owner.partition.delete_before(chance.randrange(owner.partition.local_start, owner.partition.log_end))
        if chance.random() < 0.3:
            await owner.partition.open()
        end, committed = await leaders_view(owner)
        first = owner.partition.local_start
        [log] = CommittedLog.look(link, [STREAM])
        assert (log.log_start, log.log_end, log.end) == (first, owner.partition.log_end, end)
        assert offsets_in(any_redis.url, first, end) == committed
        low = chance.randint(first, end)
        high = chance.randint(low, end)
        assert offsets_in(any_redis.url, low, high) == [each for each in committed if low <= each < high]
        found = await followers_view(owner)
        assert found is not None
        found.finish(owner.partition.log_end)
        assert max(found.stable_end(owner.partition.log_end), first) == end


async def test_a_transaction_before_the_first_snapshot_is_known(start: Start, any_redis: Any) -> None:
    """No field of the state says yet that the log has transactions."""
    owner = await start()
    await Producers(owner).send(1)
    found = await followers_view(owner)
    assert found is not None
    assert found.stable_end(1) == 0
    with pytest.raises(DataLoss, match="offsets 0 to 0 of t-0 are not committed: an open transaction begins there"):
        offsets_in(any_redis.url, 0, 1)
    assert offsets_in(any_redis.url, 0, 1, fail_on_data_loss=False) == []


@pytest.mark.parametrize("lost", [transactions_of, aborted_of])
async def test_a_lost_index_is_an_error_until_the_leader_has_rebuilt_it(
    start: Start, any_redis: Any, link: Any, monkeypatch: pytest.MonkeyPatch, lost: Any
) -> None:
    monkeypatch.setattr(committed_log, "_WAIT_S", 0)
    owner = await start()
    producers = Producers(owner)
    for commit in (False, True, False):
        await producers.send(1)
        await producers.end(1, commit=commit)
    await producers.send(2)
    await owner.partition.save_producers()
    assert offsets_in(any_redis.url, 0, 6) == [2]
    link.delete(lost(STREAM))
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="the stored transactions of headrace:t:0 are incomplete"):
            offsets_in(any_redis.url, 0, 6)
        assert await followers_view(owner) is None
        # Later snapshots store changes only, and must not hide the loss.
        await producers.send(1)
        await producers.end(1, commit=False)
        await owner.partition.save_producers()
    await owner.partition.open()
    await until(lambda: owner.partition.transactions is not None)
    await owner.partition.save_producers()
    assert offsets_in(any_redis.url, 0, 6) == [2]


async def test_readers_without_a_leader_see_an_empty_log(link: Any, any_redis: Any) -> None:
    [log] = CommittedLog.look(link, [STREAM])
    assert (log.log_start, log.end) == (0, 0)
    assert offsets_in(any_redis.url, 0, 0) == []


async def test_plain_logs_end_at_the_log_end(start: Start, any_redis: Any) -> None:
    owner = await start()
    assert await owner.append(sent(-1, -1, transaction=None)) == Appended(0)
    assert offsets_in(any_redis.url, 0, 1) == [0]
