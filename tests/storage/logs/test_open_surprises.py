"""What an owner finds in Redis that it has not written: entries of others, entries gone, a Redis with less."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import structlog
from tests.harness.owning import STREAM, Contents, Owner, batch
from tests.harness.rawlog import RawLog
from tests.harness.redis import RedisServer
from tests.harness.waiting import until
from tests.storage.conftest import Start

from headrace.records.walk import records
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import StorageNotWritten, StorageUnavailable, UnknownTopic
from headrace.topics.model import Appended

# Another program writes


@pytest.mark.parametrize("journal", [False, True], ids=["", "journal"])
async def test_a_stray_entry_is_set_aside_and_the_log_goes_on(
    start: Start, link: Any, tmp_path: Path, journal: bool
) -> None:
    owner = await start(journal=tmp_path / "journal" if journal else None)
    for number in range(9):
        assert await owner.acknowledged(batch(number, producer=7, sequence=number)) == number
        if number % 3 == 1:
            await owner.storage.logs.settle(STREAM)
            link.xadd(STREAM, {"what": "ever"})
    await owner.acknowledged(batch(-1, size=100_000))
    found = Contents(link)
    assert found.strays == 0
    assert [found.by_offset[offset] for offset in range(9)] == list(range(9))
    assert found.holes == []
    assert link.xlen(RawLog(link).foreign) == 3


async def test_a_stray_entry_is_not_read(start: Start, link: Any) -> None:
    """Also without appends: a reader at the end gets nothing, and the log is repaired."""
    owner = await start()
    await owner.append(batch(0))
    link.xadd(STREAM, {"what": "ever"})
    assert [found.base_offset for found in await owner.storage.logs.read(STREAM, 0, 10)] == [0]
    await until(lambda: link.xlen(RawLog(link).foreign) == 1)
    assert await owner.acknowledged(batch(1)) == 1


@pytest.mark.parametrize("ask", ["time", "newest", "trim"])
async def test_a_query_of_a_log_with_a_stray_entry_is_answered_a_moment_later(
    start: Start, link: Any, ask: str
) -> None:
    owner = await start()
    await owner.append(batch(0, time=7))
    await owner.partition.save_producers()
    link.xadd(STREAM, {"what": "ever"})
    logs_, found = owner.storage.logs, None
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "time": lambda: logs_.find_timestamp(STREAM, 3),
        "newest": lambda: logs_.find_max_timestamp(STREAM),
        "trim": lambda: logs_.trim(STREAM, before_offset=1),
    }
    with pytest.raises(StorageUnavailable, match="somebody else wrote"):
        await asked[ask]()
    async with asyncio.timeout(60):
        while found is None:
            try:
                found = await asked[ask]()
            except StorageUnavailable:
                await asyncio.sleep(0)
    assert found == 1 if ask == "trim" else found.base_offset == 0


async def test_deleted_entries_are_reported_and_their_offsets_not_reused(start: Start, link: Any) -> None:
    owner = await start()
    for number in range(5):
        await owner.append(batch(number, producer=7, sequence=number))
    await owner.partition.save_producers()
    ids = [entry_id for entry_id, _ in link.xrange(STREAM)]
    link.xdel(STREAM, ids[4], ids[1])
    assert isinstance(await owner.append(batch(5, producer=7, sequence=5)), StorageUnavailable)
    offset = await owner.acknowledged(batch(5, producer=7, sequence=5))
    found = Contents(link)
    assert found.by_offset[offset] == 5
    assert offset >= 5
    assert {0: 0, 2: 2, 3: 3}.items() <= found.by_offset.items()
    assert found.doubled == []


# A Redis that comes back with less


async def of_a_redis_that_lost_the_end(start: Start, link: Any) -> Owner:
    """An owner that has appended six batches, of which Redis has the first three again; it has not noticed yet."""
    owner = await start()
    for number in range(3):
        await owner.append(batch(number))
    before = {key: link.dump(key) for key in link.scan_iter()}
    for number in range(3, 6):
        await owner.append(batch(number))
    for key, value in before.items():
        link.restore(key, 0, value, replace=True)
    return owner


async def test_a_redis_that_comes_back_with_less_raises_the_leader_epoch_and_says_so(start: Start, link: Any) -> None:
    owner = await of_a_redis_that_lost_the_end(start, link)
    epoch = owner.partition.leader_epoch
    with structlog.testing.capture_logs() as told:
        link.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: owner.partition.leader_epoch > epoch)
    assert owner.partition.log_end == 3
    assert owner.partition.end_of_epoch(epoch) == (epoch, 3)
    assert await owner.append(batch(30)) == Appended(3)
    assert owner.partition.end_of_epoch(owner.partition.leader_epoch) == (owner.partition.leader_epoch, 4)
    assert sum("came back without records" in line["event"] for line in told) == 1
    assert Contents(link).by_offset == {0: 0, 1: 1, 2: 2, 3: 30}


async def test_records_that_replaced_lost_ones_are_read_although_the_log_is_as_long(start: Start, link: Any) -> None:
    """A broker is paused while a failover loses its last records and the membership of another leader."""
    owner = await of_a_redis_that_lost_the_end(start, link)
    second = await start(view=2)
    for number in range(3, 6):
        assert await second.append(batch(10 * number)) == Appended(number)
    await second.crash()
    epoch = owner.partition.leader_epoch
    with structlog.testing.capture_logs() as told:
        owner.partition.lead(3)
        owner.partition.led_elsewhere()
        owner.cut()
        await until(lambda: owner.partition.leader_epoch > epoch)
    assert owner.partition.log_end == 6
    log = owner.partition
    for number in range(3, 6):
        [chunk], _ = (
            log.read_cached(number, 1, whole_first=True) if log.cached(number) else await log.read_stored(number, 1)
        )
        assert [each.value for each in records(chunk, number)] == [b"%d........" % (10 * number)]
    assert [line["lost"] for line in told if "came back without records" in line["event"]] == [3]


async def test_entries_of_a_deleted_topic_do_not_fill_the_journal(
    start: Start, any_redis: RedisServer, link: Any, tmp_path: Path
) -> None:
    """Its records were to go after its name, and Redis was away. The journal had no room again until the next start."""
    owner = await start(journal=tmp_path / "journal")
    process = int(link.info("server")["process_id"])
    assert await owner.acknowledged(batch(0)) == 0
    await owner.storage.logs.settle(STREAM)
    os.kill(process, signal.SIGSTOP)
    try:
        assert await owner.append(batch(1)) == Appended(1)
        counted = owner.counted
        assert counted.journal_waiting > 0
        owner.cut()
        owner.partition.close()
        assert counted.journal_waiting == 0
    finally:
        os.kill(process, signal.SIGCONT)


async def test_a_log_that_could_not_be_opened_keeps_no_other_one_from_hearing_of_a_lost_connection(
    any_redis: RedisServer, link: Any
) -> None:
    """The logs after it were not recovered: their partitions were refused until the broker ended."""
    storage = await RedisStorage.open(any_redis.url, redis.asyncio.from_url(any_redis.url), 1)
    lost: list[Exception] = []
    with pytest.raises(UnknownTopic):
        await storage.logs.open("headrace:missing:0", lost.append)
    await storage.logs.open("headrace:there:0", lost.append, create=True)
    link.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: bool(lost))
    assert [type(error) for error in lost] == [StorageUnavailable]
    await storage.logs.close()
    await storage.close()


async def test_one_that_comes_back_with_less_in_the_middle_of_a_connection_is_noticed_too(
    start: Start, link: Any
) -> None:
    owner = await of_a_redis_that_lost_the_end(start, link)
    assert isinstance(await owner.append(batch(6)), StorageUnavailable)


@pytest.mark.parametrize("other_has_led", [False, True])
async def test_a_read_only_redis_shows_whether_another_broker_has_led_a_log(
    start: Start, *, other_has_led: bool
) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as link:
        owner = await start(url=server.url)
        assert await owner.append(batch(1)) == Appended(0)
        if other_has_led:
            other = await start(view=2, url=server.url)
            assert await other.append(batch(2)) == Appended(1)
            await other.crash()
        (Path(link.config_get("dir")["dir"]) / "dump.rdb").mkdir()
        link.config_set("save", "3600 1")
        link.bgsave()
        await until(lambda: link.info("persistence")["rdb_last_bgsave_status"] == "err")
        owner.partition.led_elsewhere()
        with pytest.raises(StorageNotWritten, match="MISCONF"):
            await owner.partition.save_producers()
        assert owner.partition.is_end_known is not other_has_led
        await owner.crash()


async def test_a_redis_with_full_memory_accepts_the_write_that_verifies_the_leader(start: Start, link: Any) -> None:
    owner = await start()
    assert await owner.append(batch(1)) == Appended(0)
    link.config_set("maxmemory", 1)
    owner.partition.led_elsewhere()
    await owner.partition.save_producers()
    assert owner.partition.is_end_known
