"""The storage with a journal on a real Valkey: refusals, deletions, and ends of the server and of its Valkey.

A server "is killed" here by leaving it where it is, with no connection; what it has entered is in a copy of the file.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import producers_of, state_of
from headrace.records.build import build
from headrace.store.appends import LARGE
from headrace.store.errors import StoreError
from headrace.store.journal import SMALLEST, Journal
from headrace.store.storage import RedisStorage
from headrace.topics.errors import OutOfOrderSequence, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append, Appended, StoredBatch, Topic

STREAM, OTHER = "headrace:t:0", "headrace:t:1"
DURABLE = {"appendonly": "yes", "appendfsync": "no"}


def sent(sequence: int, span: int = 1, *, producer: int = 7, size: int = 0) -> Append:
    """A batch of a producer; its sequences are the log's offsets where it is the only one."""
    value = b"%d." % sequence
    records = [(None, value.ljust(size, b"."), 5, ())] * span
    made = build(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    return Append(made, span, 5, producer, 0, sequence)


class Bench:
    """Servers, one after the other, on one Valkey and one data directory."""

    def __init__(self, folder: Path, redis_server: RedisServer) -> None:
        self.folder = folder
        self.redis = redis_server
        self.admin = redis.asyncio.from_url(redis_server.url)
        self.epoch = 0
        self.storage: RedisStorage
        self.left: list[RedisStorage] = []
        self.journal = folder / "journal"

    async def start(self, journal_bytes: int = SMALLEST) -> RedisStorage:
        self.epoch += 1
        admin = redis.asyncio.from_url(self.redis.url)
        journal = Journal.open(self.journal, journal_bytes)
        try:
            self.storage = await RedisStorage.open(
                self.redis.url, admin, self.epoch, alone=True, journal=journal, journal_bytes=journal_bytes
            )
        except BaseException:
            await admin.aclose()
            raise
        return self.storage

    async def kill(self) -> None:
        """The server is gone, at this very moment."""
        self.left.append(self.storage)
        frozen = self.folder / f"journal-{self.epoch}"
        shutil.copyfile(self.journal, frozen)
        self.journal = frozen
        await cut_off(self.storage)

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()

    async def learn(self, *streams: str) -> None:
        """Open logs, and append until they are known: two batches of producer 7, at 0 and 1."""
        for stream in streams or (STREAM,):
            await self.storage.open_partition(stream)
            for sequence in range(2):
                assert await append(self.storage, sent(sequence), stream=stream) == [Appended(sequence)]
        await self.storage.settle()

    def waiting(self) -> list[tuple[str, int]]:
        """What a server that starts now would store."""
        found = Journal.open(self.journal, SMALLEST)
        entries = [(entry.stream, entry.base_offset) for entry in found.waiting()]
        found.close()
        return entries

    async def close(self) -> None:
        for storage in (*self.left, self.storage):
            await storage.close()
        await self.admin.aclose()


async def cut_off(storage: RedisStorage) -> None:
    """As a process that is gone: what it had not yet handed to the kernel is never sent, and nothing is any more."""
    connection = storage._connection
    connection._closed = True
    link = connection._link
    if link is not None:
        link._out.clear()
        link.transport.abort()
        await link.lost


@pytest.fixture(scope="module")
def own_valkey() -> "Any":
    """One that keeps what it has written, as the embedded one does."""
    with RedisServer(options=DURABLE) as server:
        yield server


@pytest.fixture
async def bench(own_valkey: RedisServer, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, own_valkey)
    await made.admin.flushall()
    await made.start()
    yield made
    await made.admin.config_set("maxmemory", 0)
    await made.admin.config_set("min-replicas-to-write", 0)
    await made.close()


async def append(storage: RedisStorage, *each: Append, stream: str = STREAM) -> list[Appended | Exception]:
    answers: list[Appended | Exception] = []
    done = asyncio.Event()

    def answered(result: Appended | Exception) -> None:
        answers.append(result)
        if len(answers) == len(each):
            done.set()

    for one in each:
        storage.append(stream, one, answered)
    await done.wait()
    return answers


def acknowledged(storage: RedisStorage, *each: Append, stream: str = STREAM) -> list[int]:
    """Batches that are answered at once: where they lie."""
    answers: list[Appended | Exception] = []
    for one in each:
        storage.append(stream, one, answers.append)
    assert len(answers) == len(each), "some had to wait for Redis"
    return [answer.base_offset for answer in answers if isinstance(answer, Appended)]


async def log(storage: RedisStorage, stream: str = STREAM) -> list[tuple[int, bytes]]:
    """Every batch but for what the broker stamps: offset and the rest."""
    return [(found.base_offset, bytes(found.batch[16:])) for found in await storage.read(stream, 0, 10_000)]


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(sequence, bytes(sent(sequence).batch[16:])) for sequence in range(count)]


async def eventually(ready: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(20):
        while not await ready():
            await asyncio.sleep(0.005)


async def goes_on(storage: RedisStorage, sequence: int, stream: str = STREAM) -> None:
    """As a client does: once more until it is taken."""

    async def taken() -> bool:
        (answer,) = await append(storage, sent(sequence), stream=stream)
        if isinstance(answer, Appended):
            assert answer.base_offset == sequence
            return True
        assert isinstance(answer, StorageUnavailable)
        return False

    await eventually(taken)


# Reads see what is acknowledged


async def test_what_is_acknowledged_can_be_read_at_once(bench: Bench) -> None:
    storage = bench.storage
    await bench.learn()
    assert acknowledged(storage, *(sent(2 + number) for number in range(100))) == list(range(2, 102))
    assert await log(storage) == expected(102)
    assert acknowledged(storage, sent(102)) == [102]
    assert (await storage.open_partition(STREAM)).next_offset == 103
    assert bench.waiting() == []


async def test_whoever_looks_for_a_time_or_a_size_sees_it_too(bench: Bench) -> None:
    storage = bench.storage
    await bench.learn()
    batch = build([(None, b"x", 1_000, ())])
    looks: list[Callable[[], Awaitable[StoredBatch | None]]] = [
        lambda: storage.find_timestamp(STREAM, 900),
        lambda: storage.find_max_timestamp(STREAM),
    ]
    for look in looks:
        storage._appends.forget(STREAM)
        await append(storage, Append(build([(None, b"x", 5, ())]), 1, 5))
        (offset,) = acknowledged(storage, Append(batch, 1, 1_000))
        found = await look()
        assert found is not None
        assert found.base_offset <= offset
        await storage.delete_records(STREAM, offset + 1)
        assert await storage.size(STREAM) == 0


async def test_settled_is_stored(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, sent(2), sent(3))
    await bench.storage.settle()
    assert bench.waiting() == []
    assert await bench.admin.xlen(STREAM) == 4


async def test_a_batch_that_was_stamped_meanwhile_is_stored(bench: Bench) -> None:
    """The broker writes base offset and leader epoch into it as soon as it is acknowledged, and serves it so."""
    await bench.learn()
    given = sent(2)
    acknowledged(bench.storage, given)
    assert isinstance(given.batch, bytearray)
    given.batch[:8] = (2).to_bytes(8)
    given.batch[12:16] = (0).to_bytes(4)
    assert await log(bench.storage) == expected(3)


async def test_a_stop_drains(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, *(sent(2 + number) for number in range(200)))
    answers: list[Appended | Exception] = []
    bench.storage.append(STREAM, sent(202, size=LARGE), answers.append)
    await bench.storage.close()
    assert answers == [Appended(202)]
    assert await bench.admin.xlen(STREAM) == 203
    assert bench.waiting() == []
    assert await log(await bench.start()) == [
        *expected(202), (202, bytes(sent(202, size=LARGE).batch[16:])),
    ]  # fmt: skip


# The server ends


@pytest.mark.parametrize("sends", ["nothing", "some", "all"])
@pytest.mark.parametrize("victims", ["server", "both"])
async def test_what_was_acknowledged_is_there_after_a_kill(bench: Bench, sends: str, victims: str) -> None:
    await bench.learn(STREAM, OTHER)
    for stream in (STREAM, OTHER):
        acknowledged(bench.storage, *(sent(2 + number) for number in range(50)), stream=stream)
    if sends == "some":
        # Written to the socket, and perhaps done.
        bench.storage._appends.flush()
        await asyncio.sleep(0)
    elif sends == "all":
        await bench.admin.ping()
        bench.storage._appends.flush()
        await eventually(lambda: _has(bench, 52))
    await bench.kill()
    if victims == "both":
        bench.kill_redis()
    storage = await bench.start()
    for stream in (STREAM, OTHER):
        assert (await storage.open_partition(stream)).next_offset == 52
        assert await log(storage, stream) == expected(52)
        assert await append(storage, sent(51), stream=stream) == [Appended(51, duplicate=True)]
        assert isinstance((await append(storage, sent(53), stream=stream))[0], OutOfOrderSequence)
        assert await append(storage, sent(52), sent(53), stream=stream) == [Appended(52), Appended(53)]


async def _has(bench: Bench, count: int) -> bool:
    return int(await bench.admin.xlen(STREAM)) >= count


async def test_kills_one_after_the_other(bench: Bench) -> None:
    """Each server is killed with something unstored, some before they have done anything."""
    await bench.learn()
    count = 2
    for turn in range(6):
        if turn % 3 < 2:
            await append(bench.storage, sent(count), sent(count + 1))
            await append(bench.storage, sent(count + 2))
            acknowledged(bench.storage, sent(count + 3), sent(count + 4))
            count += 5
        await bench.kill()
        if turn % 2:
            bench.kill_redis()
        await bench.start()
        await bench.storage.open_partition(STREAM)
    assert await log(bench.storage) == expected(count)


async def test_a_kill_during_the_replay(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, *(sent(2 + number) for number in range(300)))
    await bench.kill()
    # The next one gets as far as some of them, and no entry is marked as stored.
    starting = asyncio.create_task(bench.start())
    await eventually(lambda: _has(bench, 20))
    starting.cancel()
    await asyncio.wait([starting])
    bench.kill_redis()
    await bench.start()
    assert await log(bench.storage) == expected(302)


async def test_without_a_journal_from_now_on(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, sent(2), sent(3))
    await bench.kill()
    storage = await bench.start(journal_bytes=0)
    assert not bench.journal.exists()
    await storage.open_partition(STREAM)
    assert await log(storage) == expected(4)
    assert await append(storage, sent(4), sent(5)) == [Appended(4), Appended(5)]
    answers: list[Appended | Exception] = []
    storage.append(STREAM, sent(6), answers.append)
    assert answers == []
    await storage.settle()
    assert answers == [Appended(6)]
    bench.journal = bench.folder / "anew"
    await storage.close()
    assert await log(await bench.start()) == expected(7)


async def test_another_size_from_now_on(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, sent(2))
    await bench.kill()
    await bench.start(journal_bytes=4 * SMALLEST)
    assert bench.journal.stat().st_size > 4 * SMALLEST
    assert await log(bench.storage) == expected(3)


async def test_a_redis_that_refuses_what_is_in_the_journal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.learn()
    acknowledged(bench.storage, sent(2))
    await bench.kill()
    await bench.admin.hset(state_of(STREAM), "e", 1_000)
    with pytest.raises(StoreError, match="does not take what is in the journal"):
        await bench.start()
    assert bench.waiting() == [(STREAM, 2)]
    await bench.admin.hset(state_of(STREAM), "e", 1)
    await bench.start()
    assert await log(bench.storage) == expected(3)


# Redis does not take what was acknowledged


def _name(what: Any) -> str:
    return str(what.__name__)


async def refuse_by_memory(bench: Bench) -> Callable[[], Awaitable[Any]]:
    await bench.admin.config_set("maxmemory", 1)
    return lambda: bench.admin.config_set("maxmemory", 0)


async def refuse_by_disk(bench: Bench) -> Callable[[], Awaitable[Any]]:
    """A Redis that is told to write only where replicas are is as unwilling as one whose disk is full."""
    await bench.admin.config_set("min-replicas-to-write", 1)
    return lambda: bench.admin.config_set("min-replicas-to-write", 0)


async def lose_the_connection(bench: Bench) -> Callable[[], Awaitable[Any]]:
    await bench.admin.client_kill_filter(_type="normal", skipme=True)
    return bench.admin.ping


async def lose_the_scripts(bench: Bench) -> Callable[[], Awaitable[Any]]:
    await bench.admin.script_flush()
    return bench.admin.ping


async def die(bench: Bench) -> Callable[[], Awaitable[Any]]:
    bench.kill_redis()
    return bench.admin.ping


Refusal = Callable[[Bench], Coroutine[Any, Any, Callable[[], Awaitable[Any]]]]


@pytest.mark.parametrize("forgotten", [False, True], ids=["", "by the script"])
@pytest.mark.parametrize(
    "refuse",
    [refuse_by_memory, refuse_by_disk, lose_the_connection, lose_the_scripts, die],
    ids=lambda each: each.__name__,
)
async def test_what_was_acknowledged_is_stored_as_soon_as_redis_takes_it(
    bench: Bench, refuse: Refusal, forgotten: bool
) -> None:
    storage = bench.storage
    await bench.learn(STREAM, OTHER)
    answers: list[Appended | Exception] = []
    for stream in (STREAM, OTHER):
        acknowledged(storage, *(sent(2 + number) for number in range(20)), stream=stream)
        # Something uncertain behind them, that the refusal may let by.
        storage.append(stream, sent(22, size=LARGE), answers.append)
        if forgotten:
            storage._appends.forget(stream)
    allow = await refuse(bench)
    storage._appends.flush()
    await asyncio.sleep(0.01)
    await allow()
    await storage.settle()
    for stream in (STREAM, OTHER):
        found = await log(storage, stream)
        assert found[:22] == expected(22)
        taken = [answer for answer in answers if isinstance(answer, Appended)]
        assert len(answers) == 2
        if not taken:
            await goes_on(storage, 22, stream)
        # Whoever was refused sends it once more.
        await goes_on(storage, 22, stream)
        await goes_on(storage, 23, stream)
        assert [offset for offset, _ in await log(storage, stream)] == list(range(24))
    assert bench.waiting() == []
    assert acknowledged(storage, sent(24)) == [24]


@pytest.mark.parametrize("refuse", [refuse_by_memory, refuse_by_disk], ids=_name)
async def test_appends_are_refused_meanwhile_and_a_kill_loses_nothing(bench: Bench, refuse: Refusal) -> None:
    await bench.learn(STREAM, OTHER)
    for stream in (STREAM, OTHER):
        acknowledged(bench.storage, *(sent(2 + number) for number in range(20)), stream=stream)
    allow = await refuse(bench)
    bench.storage._appends.flush()
    if refuse is refuse_by_disk:
        await eventually(lambda: _refuses(bench.storage))
        (answer,) = await append(bench.storage, sent(22))
        assert "acknowledged batches are not in Redis yet" in str(answer)
        assert len(bench.waiting()) == 40
    await bench.kill()
    await allow()
    await bench.start()
    for stream in (STREAM, OTHER):
        assert await log(bench.storage, stream) == expected(22)


async def _refuses(storage: RedisStorage) -> bool:
    return not storage._appends.whole()


async def test_the_limit_of_memory_is_what_it_was(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, *(sent(2 + number) for number in range(200)))
    await bench.admin.config_set("maxmemory", 1_000)
    await bench.admin.client_kill_filter(_type="normal", skipme=True)
    await eventually(lambda: _has(bench, 202))
    await bench.storage.settle()
    assert (await bench.admin.config_get("maxmemory"))["maxmemory"] == "1000"


async def test_a_redis_that_is_nearly_full_is_waited_for_and_refuses_what_it_cannot_take(bench: Bench) -> None:
    await bench.learn()
    acknowledged(bench.storage, *(sent(2 + number) for number in range(20)))
    await bench.storage.settle()
    used = (await bench.admin.info("memory"))["used_memory"]
    await bench.admin.config_set("maxmemory", used + (1 << 20))
    bench.storage._appends._allowed = 0  # type: ignore[union-attr]
    offset, refused = 22, 0
    for number in range(200):
        (answer,) = await append(bench.storage, sent(offset, size=60_000))
        if isinstance(answer, Appended):
            assert answer.base_offset == offset
            offset += 1
            # None is acknowledged early: the journal itself might not find room.
            assert bench.waiting() == [], number
        else:
            refused += 1
            if refused > 3:
                break
    assert refused > 3
    assert [place for place, _ in await log(bench.storage)] == list(range(offset))


# Logs that go


async def topic(storage: RedisStorage, number: int = 1) -> Topic:
    made = Topic(name="t", id=UUID(int=number), created_ms=0, streams=(STREAM, OTHER), config={})
    await storage.create_topic(made)
    return made


async def test_nothing_of_a_deleted_log_is_in_the_next_one(bench: Bench) -> None:
    storage = bench.storage
    for turn in range(1, 6):
        made = await topic(storage, turn)
        await bench.learn(STREAM, OTHER)
        for stream in (STREAM, OTHER):
            acknowledged(storage, *(sent(2 + number) for number in range(turn)), stream=stream)
        await storage.delete_topic(made)
        assert bench.waiting() == []
        assert await bench.admin.keys("*headrace:t*") == []
        (answer,) = await append(storage, sent(2 + turn))
        assert isinstance(answer, UnknownTopic)


async def test_appends_that_go_on_during_a_deletion_disturb_nobody(bench: Bench) -> None:
    """Some are acknowledged between the flush and the deletion: they go with the log."""
    storage = bench.storage
    streams = [f"headrace:t:{index}" for index in range(150)]
    await bench.learn(streams[-1], "headrace:other:0")
    for stream in streams[:-1]:
        await storage.open_partition(stream)
    deleting = asyncio.create_task(storage._drop(streams))
    answers: list[Appended | Exception] = []
    others: list[Appended | Exception] = []
    sequence = 2
    while not deleting.done():
        storage.append(streams[-1], sent(sequence), answers.append)
        storage.append("headrace:other:0", sent(sequence), others.append)
        sequence += 1
        await asyncio.sleep(0)
    await deleting
    await storage.settle()
    assert others == [Appended(place) for place in range(2, sequence)]
    assert isinstance(answers[0], Appended)
    assert await bench.admin.keys("*headrace:t*") == []
    assert bench.waiting() == []


@pytest.mark.parametrize("victims", ["server", "both"])
@pytest.mark.parametrize("moment", ["before", "registry", "dropped", "created", "appended"])
async def test_a_kill_around_a_deletion_brings_nothing_back(bench: Bench, moment: str, victims: str) -> None:
    storage = bench.storage
    made = await topic(storage)
    await bench.learn(STREAM, OTHER)
    # Longer than what will be made in its place, as long, and shorter.
    acknowledged(storage, *(sent(2 + number, producer=7) for number in range(5)))
    acknowledged(storage, sent(2), stream=OTHER)
    after: list[tuple[int, bytes]] = []
    if moment == "registry":
        await storage._remove_topic("begin", made)
    elif moment != "before":
        await storage.delete_topic(made)
    if moment in ("created", "appended"):
        await topic(storage, 2)
    if moment == "appended":
        for stream in (STREAM, OTHER):
            await bench.learn(stream)
            assert acknowledged(storage, sent(2), stream=stream) == [2]
        after = expected(3)
    await bench.kill()
    if victims == "both":
        bench.kill_redis()
    storage = await bench.start()
    topics = await storage.load_topics()
    if moment == "before":
        assert await log(storage) == expected(7)
        assert await log(storage, OTHER) == expected(3)
        return
    assert len(topics) == (moment in ("created", "appended"))
    if not topics:
        assert await bench.admin.keys("*headrace:t*") == []
        await topic(storage, 3)
    for stream in (STREAM, OTHER):
        assert (await storage.open_partition(stream)).next_offset == len(after)
        assert await log(storage, stream) == after


async def test_a_deletion_while_redis_refuses_what_was_acknowledged(bench: Bench) -> None:
    storage = bench.storage
    made = await topic(storage)
    await bench.learn(STREAM, OTHER)
    acknowledged(storage, sent(2), sent(3))
    acknowledged(storage, sent(2), stream=OTHER)
    await bench.admin.config_set("min-replicas-to-write", 1)
    storage._appends.flush()
    await eventually(lambda: _refuses(storage))
    with pytest.raises(StorageUnavailable):
        await storage.delete_topic(made)
    await bench.admin.config_set("min-replicas-to-write", 0)
    await storage.delete_topic(made)
    await topic(storage, 2)
    assert await log(storage) == await log(storage, OTHER) == []
    assert bench.waiting() == []


async def test_a_trim_while_batches_are_pending(bench: Bench) -> None:
    storage = bench.storage
    await bench.learn()
    acknowledged(storage, *(sent(2 + number) for number in range(10)))
    assert await storage.trim(STREAM, before_ms=None, max_bytes=1) == 1
    assert await log(storage) == expected(12)[1:]
    assert await append(storage, sent(12), sent(13)) == [Appended(12), Appended(13)]
    acknowledged(storage, sent(14))
    assert await storage.trim(STREAM, before_ms=100, max_bytes=None) <= 15
    assert (await storage.open_partition(STREAM)).next_offset == 15
    # Its producer is as it was.
    assert await append(storage, sent(14)) == [Appended(14, duplicate=True)]


async def test_producers_that_are_forgotten_begin_anew(bench: Bench) -> None:
    storage = bench.storage
    await bench.learn()
    acknowledged(storage, sent(2))
    await storage.settle()
    storage._producer_expiry_ms = -1_000
    await storage.trim(STREAM, before_ms=None, max_bytes=None)
    assert await bench.admin.exists(producers_of(STREAM)) == 0
    # Anything goes, as with any producer not known.
    assert await append(storage, sent(50)) == [Appended(3)]
