"""What the journal has and Redis has not is stored once, where it was acknowledged, whatever came between."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import hiredis
import pytest
import redis
import redis.asyncio
import structlog.testing
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import producers_of, state_of
from headrace.records.build import build
from headrace.store.connection import Connection, Reply
from headrace.store.journal import Entry
from headrace.store.logs import load_commands
from headrace.store.replay import replay
from headrace.store.storage import RedisStorage
from headrace.topics.errors import Fenced, OutOfOrderSequence, StorageUnavailable
from headrace.topics.model import Append, Appended

OpenStorage = Callable[..., Awaitable[RedisStorage]]
STREAM, OTHER = "headrace:t:0", "headrace:t:1"


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A client that sees what is stored."""
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        yield link
        link.config_set("maxmemory", 0)


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    """Two logs, each with one batch of producer 7 at offset 0."""
    opened = await open_storage()
    for stream in (STREAM, OTHER):
        await opened.open_partition(stream)
        assert await append(opened, sent(0), stream) == Appended(0)
    return opened


@pytest.fixture
async def connection(storage: RedisStorage, any_redis: RedisServer) -> AsyncIterator[Connection]:
    made = Connection(any_redis.url, load_commands())
    await made.open()
    yield made
    await made.close()


def sent(sequence: int, span: int = 1, producer: int = 7, epoch: int = 0, timestamp: int = 5) -> Append:
    """A batch of a producer, whose sequences are the log's offsets where it is the only one."""
    value = b"%d" % sequence
    made = build(
        [(None, value, timestamp, ())] * span, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return Append(bytes(made), span, timestamp, producer, epoch, sequence)


def entries(count: int, streams: tuple[str, ...] = (STREAM,)) -> list[Entry]:
    """Batches behind the first one, in turn for each log."""
    return [
        Entry(1 + len(streams) * place + number, stream, 1 + place, 1_000, sent(1 + place))
        for place in range(count)
        for number, stream in enumerate(streams)
    ]


async def append(storage: RedisStorage, batch: Append, stream: str = STREAM) -> Appended | Exception:
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    storage.append(stream, batch, answer.set_result)
    return await answer


async def stored(storage: RedisStorage, stream: str = STREAM) -> object:
    admin = storage._admin
    return (
        await admin.xrange(stream),
        await admin.hgetall(state_of(stream)),
        await admin.hgetall(producers_of(stream)),
    )


async def offsets(storage: RedisStorage, stream: str = STREAM) -> list[int]:
    return [found.base_offset for found in await storage.read(stream, 0, 1_000)]


async def test_nothing_to_store(connection: Connection) -> None:
    await connection.close()
    assert await replay(connection, 1, []) == 0


async def test_it_stores_what_the_script_would_have_stored(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis"
) -> None:
    storage._now_ms = lambda: 1_000
    timeless = Append(bytes(build([(None, b"x", -1, ())])), 1, -1)
    batches = [sent(1), timeless, sent(2, 3), sent(0, producer=8), sent(0, epoch=1), sent(1, epoch=1, timestamp=3)]
    offset = 1
    for number, batch in enumerate(batches):
        assert await append(storage, batch) == Appended(offset)
        assert await replay(connection, 1, [Entry(number, OTHER, offset, 1_000, batch)]) == 0
        offset += batch.span
    here, there = await stored(storage), await stored(storage, OTHER)
    assert here == there
    assert raw.hget(producers_of(OTHER), "7") == "1 1000 1 1 8 0 0 7"


async def test_twice_is_once(storage: RedisStorage, connection: Connection) -> None:
    given = entries(200, (STREAM, OTHER))
    assert await replay(connection, 1, given) == 0
    once = await stored(storage), await stored(storage, OTHER)
    assert await offsets(storage) == await offsets(storage, OTHER) == list(range(201))
    assert await replay(connection, 1, given) == 0
    assert (await stored(storage), await stored(storage, OTHER)) == once


@pytest.mark.parametrize("there", [1, 3, 64, 100])
async def test_what_was_done_and_not_answered_is_not_done_again(
    storage: RedisStorage, connection: Connection, there: int
) -> None:
    given = entries(100)
    for entry in given[:there]:
        assert await append(storage, entry.append) == Appended(entry.base_offset)
    assert await replay(connection, 1, given) == 0
    found = await storage.read(STREAM, 0, 1_000)
    assert [each.batch for each in found] == [sent(0).batch, *(entry.append.batch for entry in given)]


async def test_a_client_hears_of_a_retry_where_its_batch_lies_and_goes_on(
    storage: RedisStorage, connection: Connection
) -> None:
    await replay(connection, 1, entries(10))
    for sequence in (10, 8, 6):
        assert await append(storage, sent(sequence)) == Appended(sequence, duplicate=True)
    # Only five are remembered, as ever.
    assert isinstance(await append(storage, sent(5)), OutOfOrderSequence)
    assert isinstance(await append(storage, sent(12)), OutOfOrderSequence)
    assert await append(storage, sent(11)) == Appended(11)


async def test_a_log_that_was_deleted_stays_so(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis"
) -> None:
    await storage._drop([STREAM])
    assert await replay(connection, 1, entries(3, (STREAM, OTHER))) == 0
    assert sorted(raw.keys("*headrace:t*")) == sorted([OTHER, state_of(OTHER), producers_of(OTHER)])
    assert await offsets(storage, OTHER) == [0, 1, 2, 3]


async def test_an_older_server_stores_nothing(connection: Connection, open_storage: OpenStorage) -> None:
    newer = await open_storage(epoch=2)
    await newer.open_partition(STREAM)
    with pytest.raises(Fenced):
        await replay(connection, 1, entries(3))
    assert await offsets(newer) == [0]


async def test_a_new_server_stores_what_the_one_before_left(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis"
) -> None:
    assert await replay(connection, 2, entries(3)) == 0
    assert raw.hget(state_of(STREAM), "e") == "2"
    assert isinstance(await append(storage, sent(4)), Fenced)


@pytest.mark.parametrize(
    "write",
    [
        lambda raw: raw.xadd(STREAM, {"b": "x"}, id="2-7"),
        lambda raw: raw.xadd(STREAM, {"b": "x"}, id="100-1"),
        lambda raw: raw.hset(state_of(STREAM), "n", 0),
        lambda raw: (raw.delete(STREAM), raw.set(STREAM, "x")),
        lambda raw: (raw.delete(producers_of(STREAM)), raw.set(producers_of(STREAM), "x")),
        lambda raw: (raw.delete(state_of(STREAM)), raw.set(state_of(STREAM), "x")),
    ],
    ids=["entry", "entry far away", "state", "no stream", "no producers", "no state"],
)
async def test_a_log_that_somebody_else_wrote_to_is_told_and_holds_up_no_other(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis", write: Callable[["redis.Redis"], object]
) -> None:
    write(raw)
    with structlog.testing.capture_logs() as said:
        lost = await replay(connection, 1, entries(3, (STREAM, OTHER)))
    assert 1 <= lost <= 3
    assert [(line["stream"], line["log_level"]) for line in said] == [(STREAM, "error")] * lost
    assert "is lost" in said[0]["event"]
    assert await offsets(storage, OTHER) == [0, 1, 2, 3]


async def test_the_limit_of_memory_does_not_hold_and_stays(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis"
) -> None:
    raw.config_set("maxmemory", 1_000)
    assert await replay(connection, 1, entries(100)) == 0
    assert raw.config_get("maxmemory") == {"maxmemory": "1000"}
    assert len(await offsets(storage)) == 101


class Breaking:
    """A connection that is lost after so many appends, done or not; those behind are not sent."""

    def __init__(self, connection: Connection, appends: int, *, done: bool) -> None:
        self._connection = connection
        self._left = appends
        self._done = done

    async def call(self, *arguments: str | bytes | int) -> Reply:
        if self._left < 0:
            raise StorageUnavailable("no connection to Redis")
        if arguments[0] == "EVALSHA":
            self._left -= 1
            if self._left < 0:
                if self._done:
                    await self._connection.call(*arguments)
                raise StorageUnavailable("the connection to Redis was lost")
        return await self._connection.call(*arguments)


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("appends", [0, 1, 63, 64, 99])
async def test_a_connection_lost_half_way_is_made_up_for(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis", appends: int, done: bool
) -> None:
    raw.config_set("maxmemory", 1_000)
    breaking: object = Breaking(connection, appends, done=done)
    with pytest.raises(StorageUnavailable):
        await replay(breaking, 1, entries(50, (STREAM, OTHER)))  # type: ignore[arg-type]
    assert await replay(connection, 1, entries(50, (STREAM, OTHER))) == 0
    assert await offsets(storage) == await offsets(storage, OTHER) == list(range(51))
    assert raw.config_get("maxmemory") == {"maxmemory": "1000"}


class Refusing:
    """A connection to a Redis that refuses one append for a reason that passes."""

    def __init__(self, connection: Connection, append: int) -> None:
        self._connection = connection
        self._left = append

    async def call(self, *arguments: str | bytes | int) -> Reply:
        if arguments[0] == "EVALSHA":
            self._left -= 1
            if self._left == -1:
                return hiredis.ReplyError("MISCONF cannot write")
        return await self._connection.call(*arguments)


@pytest.mark.parametrize("append", [0, 30, 64])
async def test_a_refusal_that_passes_loses_nothing_behind_it(
    storage: RedisStorage, connection: Connection, append: int
) -> None:
    """Those behind it find the log too short: that is no reason to give them up."""
    refusing: object = Refusing(connection, append)
    with structlog.testing.capture_logs() as said, pytest.raises(StorageUnavailable, match="MISCONF"):
        await replay(refusing, 1, entries(100))  # type: ignore[arg-type]
    assert said == []
    assert await offsets(storage) == list(range(append + 1))
    assert await replay(connection, 1, entries(100)) == 0
    assert await offsets(storage) == list(range(101))


async def test_scripts_that_redis_has_forgotten(
    storage: RedisStorage, connection: Connection, raw: "redis.Redis"
) -> None:
    raw.script_flush()
    with pytest.raises(StorageUnavailable):
        await replay(connection, 1, entries(100))
    async with asyncio.timeout(10):
        while not connection.connected:
            await asyncio.sleep(0.001)
    assert await replay(connection, 1, entries(100)) == 0
    assert await offsets(storage) == list(range(101))
