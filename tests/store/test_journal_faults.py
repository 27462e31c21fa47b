"""What Redis refuses of the acknowledged batches, and who asks about their logs meanwhile: faults once found."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import state_of
from headrace.records.build import build
from headrace.store import journaled
from headrace.store.connection import Connection
from headrace.store.direct import DirectAppends
from headrace.store.journal import Journal
from headrace.store.journaled import JournaledAppends
from headrace.store.storage import RedisStorage
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append, Appended

OpenStorage = Callable[..., Awaitable[RedisStorage]]
STREAM = "headrace:t:0"


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A client with which a test does something to Redis before the server can."""
    with redis.Redis.from_url(any_redis.url) as link:
        yield link
        link.config_set("maxmemory", 0)


@pytest.fixture
async def storage(open_storage: OpenStorage, tmp_path: Path) -> RedisStorage:
    """One with a journal; its log has two batches, and the next ones are acknowledged at once."""
    journal = Journal.open(tmp_path / "journal", 1 << 20)
    opened = await open_storage(alone=True, journal=journal, journal_bytes=1 << 20)
    await opened.open_partition(STREAM)
    assert [await append(opened), await append(opened)] == [Appended(0), Appended(1)]
    return opened


def batch(timestamp: int = 5) -> Append:
    return Append(bytearray(build([(None, b"value", timestamp, ())])), 1, timestamp)


async def append(storage: RedisStorage) -> Appended | Exception:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    storage.append(STREAM, batch(), answer.set_result)
    return await answer


def acknowledge(storage: RedisStorage, timestamp: int = 5, base_offset: int = 2) -> Append:
    """One more batch, acknowledged before Redis has been sent anything."""
    done: list[Appended | Exception] = []
    given = batch(timestamp)
    storage.append(STREAM, given, done.append)
    assert done == [Appended(base_offset)]
    return given


@pytest.fixture(params=["taken", "refused"])
def newest(request: pytest.FixtureRequest, storage: RedisStorage, raw: "redis.Redis") -> Callable[[], Append]:
    """Acknowledges a batch; as soon as Redis is sent it, it takes it, or is full."""

    def give() -> Append:
        given = acknowledge(storage, timestamp=9)
        if request.param == "refused":
            raw.config_set("maxmemory", 1)
        return given

    return give


# Whoever asks about a log is told of all that was acknowledged


async def test_a_log_that_is_opened_never_ends_before_what_was_acknowledged(
    storage: RedisStorage, newest: Callable[[], Append]
) -> None:
    newest()
    assert (await storage.open_partition(STREAM)).next_offset == 3


async def test_an_acknowledged_batch_can_be_read(storage: RedisStorage, newest: Callable[[], Append]) -> None:
    newest()
    assert [found.base_offset for found in await storage.read(STREAM, 2, 10)] == [2]


async def test_an_acknowledged_batch_is_found_by_its_time(storage: RedisStorage, newest: Callable[[], Append]) -> None:
    newest()
    found = await storage.find_timestamp(STREAM, 9)
    assert found is not None
    assert found.base_offset == 2


async def test_an_acknowledged_batch_is_found_as_the_newest(
    storage: RedisStorage, newest: Callable[[], Append]
) -> None:
    newest()
    found = await storage.find_max_timestamp(STREAM)
    assert found is not None
    assert found.base_offset == 2


async def test_acknowledged_records_can_be_deleted(storage: RedisStorage, newest: Callable[[], Append]) -> None:
    newest()
    assert await storage.delete_records(STREAM, 3) == 3


async def test_an_acknowledged_batch_counts_in_the_size(storage: RedisStorage, newest: Callable[[], Append]) -> None:
    given = newest()
    assert await storage.size(STREAM) == 3 * len(given.batch)


async def test_a_read_that_has_all_it_was_asked_for_is_not_done_twice(
    storage: RedisStorage, raw: "redis.Redis"
) -> None:
    acknowledge(storage)
    raw.config_resetstat()
    assert [found.base_offset for found in await storage.read(STREAM, 0, 10, end=2)] == [0, 1]
    assert [found.base_offset for found in await storage.read(STREAM, 0, 2)] == [0, 1]
    assert raw.info("commandstats")["cmdstat_xrange"]["calls"] == 2


# Redis does not take what it has to


async def test_what_is_refused_by_a_full_redis_is_stored_without_touching_the_limit(
    storage: RedisStorage, raw: "redis.Redis"
) -> None:
    """Whoever raises it just then, since Redis is full, would have the old one put back over it."""
    acknowledge(storage)
    raw.config_resetstat()
    raw.config_set("maxmemory", 1)
    await storage.settle()
    assert [found.base_offset for found in await storage.read(STREAM, 0, 10)] == [0, 1, 2]
    assert raw.config_get("maxmemory") == {"maxmemory": "1"}
    assert raw.info("commandstats")["cmdstat_config|set"]["calls"] == 1


async def test_nobody_waits_for_ever_for_a_redis_that_takes_nothing(
    storage: RedisStorage, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> int:
        raise StorageUnavailable("the disk is full")

    monkeypatch.setattr(journaled, "_PATIENCE_S", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(journaled, "replay", refused)
        acknowledge(storage)
        raw.config_set("maxmemory", 1)
        with pytest.raises(StorageUnavailable, match="not in Redis yet"):
            await storage.settle()
        for ask in (storage.open_partition(STREAM), storage.read(STREAM, 0, 10), storage.size(STREAM)):
            with pytest.raises(StorageUnavailable, match="not in Redis yet"):
                await ask
    monkeypatch.undo()
    assert (await storage.open_partition(STREAM)).next_offset == 3


class Direct:
    """Takes everything, and answers nothing by itself."""

    def __init__(self) -> None:
        self.under_way: list[Callable[[Appended | Exception], None]] = []

    def append(
        self, _: str, append: Append, done: Callable[[Appended | Exception], None], certain: int = -1, least: int = 0
    ) -> None:
        if certain < 0:
            done(Appended(0))
        else:
            self.under_way.append(done)

    def forget(self, stream: str) -> None:
        pass


class Away:
    """A connection that was lost; before that Redis had memory left."""

    def send(self, _: object, callback: Callable[[bytes], None]) -> None:
        callback(b"used_memory:1\r\nmaxmemory:0\r\n")

    async def call(self, *_: object) -> object:
        raise StorageUnavailable("no connection")


async def test_what_was_held_goes_to_redis_in_one_call_where_it_has_to_decide(tmp_path: Path) -> None:
    """One at a time they would each take a round trip: producers that are new, or a Redis that is nearly full."""
    journal = Journal.open(tmp_path / "journal", 1 << 20).renewed(1 << 20)
    sent: list[tuple[int, Callable[[Appended | Exception], None]]] = []
    direct = Direct()
    direct.append = lambda _, append, done, certain=-1, least=0: sent.append((append.producer_id, done))  # type: ignore[method-assign]
    appends = JournaledAppends(
        cast("DirectAppends", direct), journal, cast("Connection", Away()), epoch=1, now_ms=lambda: 1
    )
    answers: list[Appended | Exception] = []
    for producer in range(5):
        given = Append(batch().batch, 1, 5, producer, 0, 0)
        appends.append(STREAM, given, answers.append)
    (producer, answer), sent[:] = sent[0], []
    answer(Appended(0))
    assert producer == 0
    assert [producer for producer, _ in sent] == [1, 2, 3, 4]
    for place, (_, answer) in enumerate(sent[:], 1):
        answer(Appended(place))
    assert answers == [Appended(place) for place in range(5)]
    appends.append(STREAM, Append(batch().batch, 1, 5, 3, 0, 1), answers.append)
    assert answers[-1] == Appended(5)
    await appends.close()


async def test_many_batches_that_fail_together_do_not_stop_the_server(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", 16 << 20).renewed(16 << 20)
    direct = Direct()
    appends = JournaledAppends(
        cast("DirectAppends", direct), journal, cast("Connection", Away()), epoch=1, now_ms=lambda: 1
    )
    given = batch()
    for _ in range(30_001):
        appends.append(STREAM, given, lambda _: None)
    assert len(direct.under_way) == 30_000
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for answer in direct.under_way:
        answer(StorageUnavailable("the connection was lost"))
    # Counted anew for each of them it is a minute.
    assert loop.time() - begun < 5
    await appends.close()


# The connection


async def test_what_is_arranged_at_the_end_of_a_turn_from_there_has_the_next_one(any_redis: RedisServer) -> None:
    connection = Connection(any_redis.url)
    await connection.open()
    ran: list[str] = []

    def again() -> None:
        ran.append("second")

    def first() -> None:
        ran.append("first")
        connection.before_flush(again)

    connection.before_flush(first)
    async with asyncio.timeout(10):
        while len(ran) < 2:
            await asyncio.sleep(0)
    assert ran == ["first", "second"]
    await connection.close()


# What Redis has taken and not written down


async def test_what_redis_took_and_may_not_have_written_down_is_replayed(storage: RedisStorage, tmp_path: Path) -> None:
    """A Redis whose disk is full takes what comes in one turn, answers, and takes no more: that dies with it."""
    for number in range(3):
        acknowledge(storage, base_offset=2 + number)
        await storage.settle()
    journal = Journal.open(tmp_path / "journal", 1 << 20)
    assert journal.waiting() == []
    assert [entry.base_offset for entry in journal.in_doubt()] == [4]
    journal.close()


async def test_a_later_log_of_the_name_gets_nothing_of_an_earlier_one(storage: RedisStorage, tmp_path: Path) -> None:
    acknowledge(storage)
    await storage.settle()
    await storage._drop([STREAM])
    await storage.open_partition(STREAM)
    assert await append(storage) == Appended(0)
    journal = Journal.open(tmp_path / "journal", 1 << 20)
    assert journal.in_doubt() == []
    journal.close()


async def test_a_start_stores_what_redis_has_lost_again(
    storage: RedisStorage, open_storage: OpenStorage, raw: "redis.Redis", tmp_path: Path
) -> None:
    acknowledge(storage)
    await storage.settle()
    await storage.close()
    # As it was before its last transaction, which it had no room for.
    link = cast("Any", raw)
    (_, first), (_, second), (_, last) = link.xrange(STREAM)
    link.delete(STREAM)
    link.xadd(STREAM, first, id="1-1")
    link.xadd(STREAM, second, id="2-1")
    link.hset(state_of(STREAM), mapping={"n": 2, "s": second[b"s"], "t": second[b"t"]})
    again = await open_storage(epoch=2, alone=True, journal=Journal.open(tmp_path / "journal", 1), journal_bytes=1)
    assert [found.base_offset for found in await again.read(STREAM, 0, 10)] == [0, 1, 2]
    assert link.xrange(STREAM) == [(b"1-1", first), (b"2-1", second), (b"3-1", last)]
