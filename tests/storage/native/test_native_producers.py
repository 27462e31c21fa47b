"""Appends to a native partition: sequences of producers, and late appends of a server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import redis
import redis.asyncio
from tests.conftest import OpenStorage
from tests.harness.plain import KEY, STREAM, append, base, batch, ids
from tests.harness.redis import RedisServer

from headrace.storage.layout.keys import state_of
from headrace.storage.layout.native import id_of
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import Fenced, InvalidProducerEpoch, OutOfOrderSequence, StorageUnavailable
from headrace.topics.model import Append, Appended

# Producers


async def test_a_batch_sent_again_gets_its_first_offset(storage: RedisStorage, raw: Any) -> None:
    sent = [batch(3, producer=7, epoch=0, sequence=sequence) for sequence in (0, 3, 6, 9, 12)]
    firsts = await append(storage, *sent)
    again = await append(storage, *sent)
    assert [answer.base_offset for answer in again if isinstance(answer, Appended) and answer.duplicate] == [
        answer.base_offset for answer in firsts if isinstance(answer, Appended)
    ]
    assert raw.xlen(KEY) == 15


async def test_sequences_and_epochs_are_kept_in_order(storage: RedisStorage, raw: Any) -> None:
    await base(storage, batch(3, producer=7, epoch=1, sequence=0))
    answers = await append(
        storage,
        batch(1, producer=7, epoch=1, sequence=4),
        batch(1, producer=7, epoch=0, sequence=3),
        batch(1, producer=7, epoch=2, sequence=1),
        batch(1, producer=7, epoch=2, sequence=0),
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [OutOfOrderSequence, InvalidProducerEpoch, OutOfOrderSequence, Appended]
    assert raw.xlen(KEY) == 4


async def test_a_producer_that_is_not_known_is_refused_behind_what_was_sent_ahead(
    storage: RedisStorage, raw: Any
) -> None:
    answers: list[Appended | Exception] = []
    for follows in (True, False, True):
        sequence = 0 if len(answers) < 2 else 1
        storage.native.append(STREAM, batch(1, producer=7, epoch=0, sequence=sequence), answers.append, follows=follows)
        await storage.ping()
    assert [type(answer) for answer in answers] == [OutOfOrderSequence, Appended, Appended]
    assert raw.xlen(KEY) == 2


# Appends that were given up


def give_up(storage: RedisStorage, *appends: Append) -> Callable[[], Awaitable[list[Any]]]:
    """Send them on a connection that is lost with them on their way; what lets them come in."""
    shards: Any = storage.scripts.shards
    send, held = shards.send, []

    def lose(chunks: Any, callback: Callable[[Any], None]) -> None:
        held.append(chunks)
        callback(StorageUnavailable("the connection to Redis was lost"))

    answers: list[Any] = []
    shards.send = lose
    for each in appends:
        storage.native.append(STREAM, each, answers.append)
    del shards.send
    assert [type(answer) for answer in answers] == [StorageUnavailable] * len(appends)

    async def arrive() -> list[Any]:
        said: list[Any] = []
        for chunks in held:
            send(chunks, said.append)
        await storage.ping()
        return said

    return arrive


async def test_abandoned_appends_are_not_stored_after_later_ones(storage: RedisStorage, raw: Any) -> None:
    """Of a producer without sequences: its own retry is there, and what it sent next."""
    arrive = give_up(storage, batch(1))
    first, second = await base(storage, batch(1)), await base(storage, batch(1))
    [said] = await arrive()
    assert str(said).startswith("FENCED")
    assert ids(raw) == [id_of(first), id_of(second)]
    await base(storage, batch(1))


async def test_abandoned_appends_may_be_stored_before_later_ones(storage: RedisStorage, raw: Any) -> None:
    arrive = give_up(storage, batch(1), batch(1))
    assert [type(said) for said in await arrive()] == [bytes, bytes]
    await base(storage, batch(1))
    assert raw.xlen(KEY) == 3


async def test_abandoned_appends_of_one_server_fence_no_other(
    storage: RedisStorage, open_storage: OpenStorage, raw: Any
) -> None:
    """Every broker may write to a plain stream, by the same view."""
    other = await open_storage()
    arrive = give_up(storage, batch(1))
    for each in (storage, other, storage, other):
        await base(each, batch(1))
    await arrive()
    assert raw.xlen(KEY) == 4


async def test_late_appends_by_an_earlier_membership_are_refused_once_the_next_leader_has_written(
    storage: RedisStorage, open_storage: OpenStorage, raw: Any
) -> None:
    """It was stopped, its producer has gone on elsewhere, and it wakes."""
    later = await open_storage(2)
    await base(storage, batch(1))
    await base(later, batch(1))
    [late] = await append(storage, batch(1))
    assert isinstance(late, Fenced)
    assert raw.xlen(KEY) == 2


async def test_writing_continues_if_redis_has_lost_the_count_of_abandoned_appends(
    storage: RedisStorage, raw: Any
) -> None:
    """A replica without it was promoted: as if nothing had been given up."""
    arrive = give_up(storage, batch(1))
    await base(storage, batch(1))
    raw.hdel(state_of(KEY), "w")
    await arrive()
    await base(storage, batch(1))
    assert raw.xlen(KEY) == 3


class Line:
    """The way to a Redis; what is sent while it holds is kept, and comes in when it is let go."""

    def __init__(self, server: RedisServer) -> None:
        self._socket = server.socket
        self._path = server.socket.parent / "line"
        self.url = f"unix://{self._path}"
        self.holds = False
        self.held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self._ways: list[asyncio.StreamWriter] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in (*self._ways, *self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, way = await asyncio.open_unix_connection(self._socket)
        self._ways.append(way)
        self._writers.append(writer)
        answering = asyncio.create_task(self._answer(answers, writer))
        while data := await reader.read(1 << 16):
            if self.holds:
                self.held.append((way, data))
            else:
                way.write(data)
        # The sender has disconnected; the batch is still in flight.
        await answering

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(1 << 16):
            writer.write(data)

    def cut(self) -> None:
        """Disconnect all clients. Held data stays in flight, new data is not held."""
        self.holds = False
        for writer in self._writers:
            writer.close()

    def let_go(self) -> None:
        for way, data in self.held:
            way.write(data)


def appending(storage: RedisStorage, made: Append) -> "asyncio.Future[Appended | Exception]":
    answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    storage.native.append(STREAM, made, answer.set_result)
    return answer


async def test_a_batch_of_a_lost_connection_does_not_come_in_behind_those_of_the_next(
    any_redis: RedisServer, raw: Any
) -> None:
    """A network that was cut comes back: appends of the old connection are sent again, after those of the new one."""
    raw.flushall()
    async with Line(any_redis) as line, redis.asyncio.from_url(any_redis.url) as admin:
        storage = await RedisStorage.open(line.url, admin, 1)
        await storage.native.open(STREAM)
        line.holds = True
        lost = appending(storage, batch(1))
        async with asyncio.timeout(60):
            while not line.held:
                await asyncio.sleep(0)
            line.cut()
            assert isinstance(await lost, StorageUnavailable)
            while not isinstance(await appending(storage, batch(1)), Appended):
                await asyncio.sleep(0)
            before = ids(raw)
            line.let_go()
            way, _ = line.held[-1]
            way.write(b"SET there 1\r\n")
            while not raw.exists("there"):
                await asyncio.sleep(0)
        assert ids(raw) == before
        await storage.close()
