"""When appends go without the script, in which order, and what becomes of those that fail; what they store is held
against the script in `tests/properties/test_direct.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import hiredis
import pytest
import redis
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import producers_of, state_of
from headrace.records.build import build
from headrace.store.connection import Connection
from headrace.store.direct import DirectAppends
from headrace.store.storage import RedisStorage
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError
from headrace.topics.model import Append, Appended

from .conftest import Wire

OpenStorage = Callable[..., Awaitable[RedisStorage]]
STREAM, OTHER = "headrace:t:0", "headrace:t:1"


@pytest.fixture
def appends(wire: Wire) -> DirectAppends:
    return DirectAppends(cast("Connection", wire), 1, lambda: 1_000)


def batch(text: bytes = b"x", size: int = 100) -> Append:
    return Append(text.ljust(size, b"."), 2, 5)


def sent(sequence: int, epoch: int = 0) -> Append:
    return Append(b"y" * 100, 2, 5, 7, epoch, sequence)


def learn(wire: Wire, appends: DirectAppends, stream: str = STREAM, *, first: Append | None = None) -> None:
    """One append by the script: base offset 8, so the log ends at 10."""
    appends.append(stream, first or batch(), lambda _: None)
    wire.turn()
    wire.answer([b"8"])
    if first is None:
        wire.answer([b"10", b"5", b"300"])
    else:
        last = first.base_sequence + 1
        wire.answer([b"10", b"5", b"300"], [b"0 1000 %d %d 8" % (first.base_sequence, last)])
    wire.turn()


def test_a_log_is_learnt_behind_the_script_and_then_appended_to_directly(wire: Wire, appends: DirectAppends) -> None:
    done = list[Appended | Exception]()
    appends.append(STREAM, sent(4), done.append)
    wire.turn()
    assert wire.names() == [[b"EVALSHA"], [b"HMGET", b"HMGET"]]
    wire.answer([b"8"])
    wire.answer([b"10", b"5", b"300"], [b"0 1000 4 5 8 2 3 6"])

    appends.append(STREAM, sent(6), done.append)
    appends.append(STREAM, Append(b"z" * 50, 1, -1), done.append)
    wire.turn()

    state, producers = state_of(STREAM).encode(), producers_of(STREAM).encode()
    assert wire.next() == [
        [b"MULTI"],
        [b"XADD", STREAM.encode(), b"12-2", b"b", b"y" * 100, b"t", b"5", b"s", b"400"],
        [b"XADD", STREAM.encode(), b"13-1", b"b", b"z" * 50, b"t", b"1000", b"s", b"450"],
        [b"HSET", state, b"n", b"13", b"t", b"1000", b"s", b"450"],
        [b"HSET", producers, b"7", b"0 1000 6 7 10 4 5 8 2 3 6"],
        [b"EXEC"],
    ]
    wire.execute(b"12-2", b"13-1", 0, 0)
    assert done == [Appended(8), Appended(10), Appended(12)]


@pytest.mark.parametrize("unusual", [sent(4), sent(9), sent(0, epoch=1), Append(b"y" * 100, 1, 5, 8, 0, 0)])
def test_what_is_not_plainly_in_order_is_the_scripts(wire: Wire, appends: DirectAppends, unusual: Append) -> None:
    """A retry, a gap, a new epoch, a producer not known; and so is what comes behind it."""
    learn(wire, appends, first=sent(4))
    for each in (sent(6), unusual, batch()):
        appends.append(STREAM, each, lambda _: None)
    wire.turn()
    assert wire.names() == [[b"MULTI", b"XADD", b"HSET", b"HSET", b"EXEC"], [b"EVALSHA"], [b"HMGET", b"HMGET"]]
    assert wire.sent[1][0][0][2] == b"6"


def test_no_offset_beyond_two_to_the_53(wire: Wire, appends: DirectAppends) -> None:
    appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    wire.answer([b"8"])
    wire.answer([b"%d" % (2**53 - 4), b"5", b"300"])
    for _ in range(2):
        appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    assert wire.names() == [[b"MULTI", b"XADD", b"HSET", b"EXEC"], [b"EVALSHA"], [b"HMGET"]]


def test_a_log_has_one_call_under_way(wire: Wire, appends: DirectAppends) -> None:
    learn(wire, appends)
    learn(wire, appends, OTHER)
    done = list[Appended | Exception]()
    for size in (70_000, 70_000):
        appends.append(STREAM, batch(b"x", size), done.append)
        wire.turn()
    appends.append(OTHER, batch(b"x", 70_000), done.append)
    wire.turn()
    # The other log's need not wait, as large as it is.
    assert [[command[2:3] for command in commands][1:-2] for commands, _ in wire.sent] == [[[b"12-2"]], [[b"12-2"]]]
    wire.execute(b"12-2", 0)
    wire.turn()
    assert wire.sent[-1][0][1][2] == b"14-2"
    wire.execute(b"12-2", 0)
    wire.execute(b"14-2", 0)
    assert done == [Appended(10), Appended(10), Appended(12)]


def test_small_ones_are_collected_while_a_call_is_under_way(wire: Wire, appends: DirectAppends) -> None:
    learn(wire, appends)
    learn(wire, appends, OTHER)
    for stream in (STREAM, OTHER, OTHER, STREAM):
        appends.append(stream, batch(), lambda _: None)
        wire.turn()
    assert wire.names() == [[b"MULTI", b"XADD", b"HSET", b"EXEC"]]
    wire.execute(b"12-2", 0)
    wire.turn()
    assert wire.names() == [[b"MULTI", b"XADD", b"XADD", b"XADD", b"HSET", b"HSET", b"EXEC"]]


def test_a_flush_sends_everything_and_leaves_to_the_script_what_it_cannot_know(
    wire: Wire, appends: DirectAppends
) -> None:
    learn(wire, appends)
    learn(wire, appends, OTHER)
    for stream in (STREAM, STREAM, OTHER):
        appends.append(stream, batch(), lambda _: None)
        wire.turn()
    wire.sent.clear()
    appends.flush()
    assert wire.names() == [[b"MULTI", b"XADD", b"HSET", b"EXEC"], [b"EVALSHA"], [b"HMGET"]]


def test_a_flush_sends_no_call_larger_than_others(wire: Wire, appends: DirectAppends) -> None:
    learn(wire, appends)
    for stream in (STREAM, OTHER, STREAM, OTHER):
        appends.append(stream, batch(size=3 << 20), lambda _: None)
    appends.flush()
    # The second call finds the log busy with the first.
    assert wire.names() == [
        [b"MULTI", b"XADD", b"HSET", b"EXEC"], [b"EVALSHA"], [b"HMGET"], [b"EVALSHA"], [b"HMGET"], [b"HMGET"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [("OOM command not allowed", StorageFull), ("MISCONF cannot write", StorageUnavailable)],
)
def test_a_transaction_that_redis_did_not_take_wrote_nothing(
    wire: Wire, appends: DirectAppends, refusal: str, kind: type[Exception]
) -> None:
    learn(wire, appends)
    done = list[Appended | Exception]()
    for _ in range(2):
        appends.append(STREAM, batch(), done.append)
    wire.turn()
    error = hiredis.ReplyError(refusal)
    wire.answer(b"OK", error, error, error, hiredis.ReplyError("EXECABORT Transaction discarded"))
    assert [type(each) for each in done] == [kind] * 2
    appends.append(STREAM, batch(), done.append)
    wire.turn()
    assert wire.names() == [[b"EVALSHA"], [b"HMGET"]]


def test_a_lost_connection_leaves_nothing_known(wire: Wire, appends: DirectAppends) -> None:
    learn(wire, appends)
    learn(wire, appends, OTHER)
    done = list[Appended | Exception]()
    appends.append(STREAM, batch(), done.append)
    wire.turn()
    lost = StorageUnavailable("lost")
    wire.answer(*[lost] * 4)
    assert done == [lost]
    wire.made += 1
    appends.append(OTHER, batch(), done.append)
    wire.turn()
    assert wire.names() == [[b"EVALSHA"], [b"HMGET"]]


def test_what_was_asked_before_a_doubt_is_not_believed(wire: Wire, appends: DirectAppends) -> None:
    appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    appends.forget(STREAM)
    wire.answer([b"8"])
    wire.answer([b"10", b"5", b"300"])
    appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    assert wire.names() == [[b"EVALSHA"], [b"HMGET"]]


@pytest.mark.parametrize("end", [hiredis.ReplyError("WRONGTYPE"), [None, None, None], StorageUnavailable("lost")])
def test_a_log_that_cannot_be_learnt_stays_the_scripts(wire: Wire, appends: DirectAppends, end: Any) -> None:
    appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    wire.answer([b"-GONE the partition does not exist"])
    wire.answer(end)
    appends.append(STREAM, batch(), lambda _: None)
    wire.turn()
    assert wire.names() == [[b"EVALSHA"], [b"HMGET"]]


def test_a_log_that_was_written_to_is_not_put_back_behind_what_went_on_from_it(
    wire: Wire, appends: DirectAppends
) -> None:
    """The script's call left before the answer: what it appended must stay below the log's end."""
    learn(wire, appends)
    for each in (batch(), sent(0)):
        appends.append(STREAM, each, lambda _: None)
    wire.turn()
    wire.execute(
        hiredis.ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item"), 0
    )
    assert wire.names() == [[b"EVALSHA"], [b"HMGET", b"HMGET"]]


def test_a_callback_that_fails_harms_nobody_else(wire: Wire, appends: DirectAppends) -> None:
    def fail(_: Appended | Exception) -> None:
        raise RuntimeError("a bug")

    done = list[Appended | Exception]()

    def append_two() -> None:
        appends.append(STREAM, batch(), fail)
        appends.append(STREAM, batch(), done.append)
        wire.turn()

    append_two()
    wire.answer([b"8", b"10"])
    wire.answer([b"12", b"5", b"300"])
    append_two()
    wire.execute(b"14-2", b"16-2", 0)
    assert done == [Appended(10), Appended(14)]


# On a real Redis


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A client that sees what is stored."""
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        yield link


def record(sequence: int, producer: int = 7) -> Append:
    made = build([(None, b"x", 5, ())], producer_id=producer, producer_epoch=0, base_sequence=sequence)
    return Append(made, 1, 5, producer, 0, sequence)


async def append(storage: RedisStorage, *each: Append) -> list[Appended | Exception]:
    answers: list[Appended | Exception] = []
    done = asyncio.Event()

    def answered(result: Appended | Exception) -> None:
        answers.append(result)
        if len(answers) == len(each):
            done.set()

    for one in each:
        storage.append(STREAM, one, answered)
    await done.wait()
    return answers


async def test_who_writes_to_a_log_behind_the_servers_back_costs_no_acknowledged_batch(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    storage = await open_storage(alone=True)
    await storage.open_partition(STREAM)
    assert await append(storage, record(0)) == [Appended(0)]
    state, producers = raw.hgetall(state_of(STREAM)), raw.hgetall(producers_of(STREAM))
    raw.xadd(STREAM, {"b": "x"}, id="2-7")
    refused = await append(storage, record(1), record(2))
    # The first finds its place taken; what is stored behind it is there, and told so.
    assert [type(answer) for answer in refused] == [StorageUnavailable, Appended]
    assert raw.hget(state_of(STREAM), "n") == "3"
    # Sizes and times never fall: they go on from the last entry, which counts what was refused before it.
    ((_, last),) = await storage._connection.call("XREVRANGE", STREAM, "+", "-", "COUNT", 1)
    assert await storage._connection.call("HMGET", state_of(STREAM), "t", "s") == [last[3], last[5]]
    # Its producer must not hear that it has the first one already.
    assert raw.hgetall(producers_of(STREAM)) == {}
    raw.xdel(STREAM, "2-7")
    assert await append(storage, record(1)) == [Appended(3)]

    raw.xadd(STREAM, {"b": "x"}, id="100-1")
    assert [type(answer) for answer in await append(storage, record(2))] == [StorageUnavailable]
    assert raw.hget(state_of(STREAM), "n") == "4"
    assert isinstance((await append(storage, record(2)))[0], TopicError)
    assert set(state) == {"e", "n", "b", "t", "s", "f", "l"}
    assert set(producers) == {"7"}


async def test_an_append_behind_a_deletion_is_refused(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage(alone=True)
    await storage.open_partition(STREAM)
    await append(storage, record(0))
    await append(storage, record(1))
    deleting = asyncio.create_task(storage._drop([STREAM]))
    await asyncio.sleep(0)
    answers = await append(storage, record(2), record(3))
    await deleting
    assert [str(answer) for answer in answers] == ["the partition does not exist"] * 2
    assert raw.keys("*headrace:t*") == []


async def test_appends_that_go_on_during_a_deletion_bring_nothing_back(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    """A topic's partitions are closed once all of them are gone; until then they are appended to."""
    storage = await open_storage(alone=True)
    streams = [STREAM, *(f"headrace:t:{index}" for index in range(1, 300))]
    await asyncio.gather(*(storage.open_partition(stream) for stream in streams))
    deleting = asyncio.create_task(storage._drop([*streams[1:], STREAM]))
    answers: list[Appended | Exception] = []
    sequence = 0
    while not deleting.done():
        answers += await append(storage, record(sequence))
        sequence += 1
    assert isinstance(answers[0], Appended)
    assert [str(answer) for answer in await append(storage, record(sequence))] == ["the partition does not exist"]
    assert raw.keys("*headrace:t*") == []


def _count_in_lua(raw: "redis.Redis") -> None:
    raw.execute_command("EVAL", "local n = 0 for i = 1, 2e7 do n = n + i end return n", 0)  # type: ignore[no-untyped-call]


async def test_a_server_that_is_alone_ends_the_one_before(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    older = await open_storage(alone=True)
    await older.open_partition(STREAM)
    await append(older, record(0))
    assert await append(older, record(1)) == [Appended(1)]

    # What it has under way while Redis is busy is done before the other one opens the log, or never.
    busy = asyncio.create_task(asyncio.to_thread(_count_in_lua, raw))
    await asyncio.sleep(0.02)
    under_way = asyncio.create_task(append(older, record(2)))
    newer = await open_storage(epoch=2, alone=True)
    opened = await newer.open_partition(STREAM)
    await busy
    (answer,) = await under_way
    assert opened.next_offset == (3 if answer == Appended(2) else 2)

    async with asyncio.timeout(10):
        while not isinstance((answer := (await append(older, record(3)))[0]), Fenced):
            assert isinstance(answer, StorageUnavailable)
            await asyncio.sleep(0.001)
    assert (await newer.open_partition(STREAM)).next_offset == opened.next_offset
    assert raw.xlen(STREAM) == opened.next_offset
