"""Which appends are acknowledged from the journal, in which order the others follow, and what becomes of those that
Redis refuses afterwards. Ends of the server and of its Valkey are in `tests/properties/test_journaled.py`, too."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest

from headrace.records.build import build
from headrace.store.appends import LARGE
from headrace.store.connection import Connection
from headrace.store.direct import DirectAppends
from headrace.store.journal import SMALLEST, Journal
from headrace.store.journaled import JournaledAppends
from headrace.topics.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageUnavailable,
)
from headrace.topics.model import Append, Appended

from .conftest import Wire

STREAM, OTHER = "headrace:t:0", "headrace:t:1"
Answers = list[Appended | Exception]
ROOM = b"# Memory\r\nused_memory:1000\r\nmaxmemory:0\r\n"


def sent(sequence: int, span: int = 1, *, producer: int = 7, epoch: int = 0, size: int = 0) -> Append:
    """A batch of a producer; its sequences are the log's offsets where it is the only one."""
    value = b"%d." % sequence
    made = build(
        [(None, value.ljust(size, b"."), 5, ())] * span,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return Append(made, span, 5, producer, epoch, sequence)


def batch(size: int = 10) -> Append:
    return Append(build([(None, b"x" * size, 5, ())]), 1, 5)


def argument(command: Sequence[bytes]) -> bytes:
    """Where the only batch of a call of the script must go."""
    return command[-1]


class Bench:
    """Appends on a wire whose other end the test plays, and a journal."""

    def __init__(self, wire: Wire, path: Path) -> None:
        self.wire = wire
        self.path = path
        self.journal = Journal.open(path, SMALLEST).renewed(SMALLEST)
        connection = cast("Connection", wire)
        self.direct = DirectAppends(connection, 1, lambda: 1_000)
        self.appends = JournaledAppends(self.direct, self.journal, connection, 1, lambda: 1_000)
        self.answers: Answers = []

    def append(self, *each: Append, stream: str = STREAM) -> None:
        for one in each:
            self.appends.append(stream, one, self.answers.append)

    def told(self) -> Answers:
        """The answers since the last time."""
        told = list(self.answers)
        self.answers.clear()
        return told

    def company(self) -> None:
        """What waits for company has waited long enough."""
        self.direct._waited()
        self.wire.turn()

    def learn(self, stream: str = STREAM, memory: Any = ROOM) -> None:
        """The first batches of producer 7, at 0 and 1: the log is known then, and how much memory is left."""
        self.append(sent(0), stream=stream)
        self.wire.turn()
        self.wire.answer([b"0"])
        self.wire.answer([b"1", b"5", b"100"], [b"0 1000 0 0 0"])
        looked = self.appends._allowed
        self.append(sent(1), stream=stream)
        if not looked:
            assert self.wire.names() == [[b"INFO"]]
            self.wire.answer(memory)
            self.wire.turn()
        else:
            self.company()
        assert self.wire.names() == [[b"MULTI", b"XADD", b"HSET", b"HSET", b"EXEC"]]
        self.wire.execute(b"2-1", 0, 0)
        self.wire.turn()
        assert self.told() == [Appended(0), Appended(1)]

    def waiting(self) -> list[tuple[str, int]]:
        """What a server that starts would store: log and offset of each."""
        found = Journal.open(self.path, SMALLEST)
        entries = [(entry.stream, entry.base_offset) for entry in found.waiting()]
        found.close()
        return entries


@pytest.fixture
def bench(wire: Wire, tmp_path: Path) -> Bench:
    return Bench(wire, tmp_path / "journal")


async def test_what_is_certain_is_acknowledged_at_once(bench: Bench) -> None:
    bench.learn()
    bench.append(sent(2, 3), batch(), sent(5))
    assert bench.told() == [Appended(2), Appended(5), Appended(6)]
    # A moment later all of them leave together.
    assert bench.wire.sent == []
    assert bench.waiting() == [(STREAM, 2), (STREAM, 5), (STREAM, 6)]
    assert bench.appends.lags(STREAM)
    bench.company()
    (names,) = bench.wire.names()
    assert names == [b"MULTI", b"XADD", b"XADD", b"XADD", b"HSET", b"HSET", b"EXEC"]
    assert [command[2] for command in bench.wire.next()[1:4]] == [b"5-3", b"6-1", b"7-1"]
    bench.wire.execute(b"5-3", b"6-1", b"7-1", 0, 0)
    assert bench.waiting() == []
    assert not bench.appends.lags(STREAM)
    assert bench.told() == []


async def test_a_log_and_a_producer_that_are_not_known_wait_for_redis(bench: Bench) -> None:
    bench.learn()
    bench.append(sent(0), stream=OTHER)
    bench.append(sent(0, producer=8))
    assert bench.told() == []
    assert bench.waiting() == []
    bench.wire.turn()
    bench.wire.answer([b"0", b"2"])
    assert bench.told() == [Appended(0), Appended(2)]
    bench.append(sent(1, producer=8), sent(2))
    assert bench.told() == [Appended(3), Appended(4)]


@pytest.mark.parametrize(
    ("unusual", "answer", "result"),
    [
        (sent(1), b"D1", Appended(1, duplicate=True)),
        (sent(9), b"-SEQUENCE expected 2, found 9", OutOfOrderSequence),
        (sent(0, epoch=1), b"2", Appended(2)),
        (sent(2, epoch=-1), b"-EPOCH producer epoch -1 is over, now 0", InvalidProducerEpoch),
        (sent(5, producer=8), b"2", Appended(2)),
    ],
    ids=["retry", "gap", "new epoch", "old epoch", "new producer"],
)
async def test_what_is_not_plainly_in_order_is_redis_to_say(
    bench: Bench, unusual: Append, answer: bytes, result: Appended | type[Exception]
) -> None:
    """Those behind it are held until then, keep their order, and are acknowledged at once where nothing is open."""
    bench.learn()
    bench.append(unusual, batch(), batch())
    bench.append(batch(), batch(), stream=OTHER)
    bench.wire.turn()
    assert bench.told() == []
    assert bench.waiting() == []
    assert bench.wire.names()[0] == [b"EVALSHA"]
    bench.wire.answer([answer, b"0"])
    end = 3 if result == Appended(2) else 2
    (first, *others) = bench.told()
    assert first == result or type(first) is result
    assert others == [Appended(end), Appended(end + 1), Appended(0), Appended(1)]


async def test_an_append_whose_fate_nobody_knows_leaves_nothing_certain(bench: Bench) -> None:
    bench.learn()
    bench.append(sent(9), sent(2), sent(3), sent(4))
    bench.wire.turn()
    lost = StorageUnavailable("lost")
    bench.wire.answer(lost)
    bench.wire.answer(lost, lost)
    assert bench.told() == [lost]
    bench.wire.turn()
    # The next ones are Redis' to say once more.
    assert bench.wire.names() == [[b"EVALSHA"], [b"HMGET", b"HMGET"]]
    bench.wire.answer([b"2", b"3", b"4"])
    assert bench.told() == [Appended(2), Appended(3), Appended(4)]
    assert bench.waiting() == []
    bench.append(sent(5))
    assert bench.told() == [Appended(5)]


async def test_large_ones_are_not_copied_into_the_journal_and_never_wait(bench: Bench) -> None:
    bench.learn()
    large = LARGE
    bench.append(sent(2, size=large), sent(3), sent(4, size=large), sent(5))
    assert bench.told() == []
    bench.wire.turn()
    # The small one waits for the first to be certain, and what is behind it waits too.
    assert bench.wire.names() == [[b"MULTI", b"XADD", b"HSET", b"HSET", b"EXEC"]]
    bench.wire.execute(b"3-1", 0, 0)
    assert bench.told() == [Appended(2), Appended(3)]
    bench.wire.turn()
    assert bench.wire.names() == [[b"MULTI", b"XADD", b"XADD", b"XADD", b"HSET", b"HSET", b"EXEC"]]
    assert bench.waiting() == [(STREAM, 3)]
    bench.wire.execute(b"4-1", b"5-1", b"6-1", 0, 0)
    assert bench.told() == [Appended(4), Appended(5)]

    bench.append(sent(6, size=large), sent(7, size=large))
    bench.wire.turn()
    assert bench.wire.names() == [[b"MULTI", b"XADD", b"XADD", b"HSET", b"HSET", b"EXEC"]]


async def test_a_full_journal_waits_for_redis(bench: Bench) -> None:
    bench.learn()
    count = 2 * (SMALLEST // 2 // 60_200)
    bench.append(*(sent(2 + number, size=60_000) for number in range(count)))
    assert bench.told() == [Appended(2 + number) for number in range(count)]
    bench.append(sent(2 + count, size=60_000), sent(3 + count))
    assert bench.told() == []
    assert len(bench.waiting()) == count
    bench.company()
    # In order, as ever: that one goes with those before it, and what is behind it is held.
    assert [command[2] for command in bench.wire.next()[1:-3]] == [b"%d-1" % (3 + place) for place in range(count + 1)]
    bench.wire.execute(*[b"0-0"] * (count + 1), 0, 0)
    assert bench.told() == [Appended(2 + count), Appended(3 + count)]
    assert bench.waiting() == [(STREAM, 3 + count)]


@pytest.mark.parametrize(
    ("memory", "early"),
    [
        (b"used_memory:1000\r\nmaxmemory:0\r\n", True),
        (b"used_memory:%d\r\nmaxmemory:%d\r\n" % (870 << 20, 1 << 30), True),
        (b"used_memory:%d\r\nmaxmemory:%d\r\n" % (960 << 20, 1 << 30), False),
        # A small one has an eighth to spare, and room for all that the journal may hold.
        (b"used_memory:%d\r\nmaxmemory:%d\r\n" % (6 << 20, 8 << 20), False),
        (b"used_memory:%d\r\nmaxmemory:%d\r\n" % (5 << 20, 8 << 20), True),
        (hiredis.ReplyError("NOPERM"), False),
        (StorageUnavailable("lost"), False),
    ],
)
async def test_what_redis_may_have_no_room_for_waits_for_it(bench: Bench, memory: Any, early: bool) -> None:
    bench.learn(memory=memory)
    bench.append(sent(2))
    assert bench.told() == ([Appended(2)] if early else [])


async def test_memory_is_looked_at_every_few_megabytes(bench: Bench) -> None:
    bench.learn()
    looks = 0
    for number in range(1_000):
        bench.append(sent(2 + number, size=50_000))
        bench.company()
        while bench.wire.sent:
            if bench.wire.names()[0] == [b"INFO"]:
                looks += 1
                bench.wire.answer(ROOM)
            else:
                bench.wire.execute(*[b"0-0"] * (len(bench.wire.next()) - 4), 0, 0)
    assert bench.told() == [Appended(2 + number) for number in range(1_000)]
    # 50 MB, and half of what may be acknowledged is left at each look.
    assert 8 <= looks <= 14


async def test_the_journal_keeps_what_an_earlier_one_is_not_stored_of(bench: Bench) -> None:
    """Answers may come log by log: what is stored is told up to the first that is not."""
    bench.learn()
    bench.learn(OTHER)
    bench.append(sent(2))
    bench.append(sent(2), stream=OTHER)
    first, second = bench.appends._placed
    bench.appends.stored(second)
    assert bench.waiting() == [(STREAM, 2), (OTHER, 2)]
    bench.appends.stored(first)
    assert bench.waiting() == []


async def test_a_flush_sends_everything_in_order(bench: Bench) -> None:
    bench.learn()
    bench.append(sent(2), sent(9), sent(3), sent(4))
    assert bench.told() == [Appended(2)]
    bench.appends.flush()
    assert bench.wire.names() == [[b"MULTI", b"XADD", b"HSET", b"HSET", b"EXEC"], [b"EVALSHA"], [b"HMGET", b"HMGET"]]
    bench.wire.execute(b"3-1", 0, 0)
    bench.wire.answer([b"-SEQUENCE no", b"3", b"4"])
    refused, *others = bench.told()
    assert isinstance(refused, OutOfOrderSequence)
    assert others == [Appended(3), Appended(4)]
    bench.append(sent(5))
    assert bench.told() == [Appended(5)]


async def test_what_is_not_certain_never_takes_the_place_of_what_is(bench: Bench) -> None:
    """Redis may have no room for an acknowledged batch and have it again for the one behind: that one has to wait."""
    bench.learn()
    bench.append(sent(2, 2), sent(9))
    assert bench.told() == [Appended(2)]
    bench.appends.flush()
    script = bench.wire.sent[1][0][0]
    # From offset 4 on.
    assert (script[2], script[-1]) == (b"3", b"+4")
    bench.wire.execute(b"4-2", 0, 0)
    bench.wire.answer([b"-SEQUENCE no"])
    bench.wire.answer([b"4", b"5", b"100"], [b"0 1000 2 3 2"])
    assert [type(answer) for answer in bench.told()] == [OutOfOrderSequence]
    # Nothing before it is open: it may go where it likes.
    bench.append(sent(9))
    bench.wire.turn()
    assert argument(bench.wire.next()[0]) == b""


async def test_what_was_learnt_after_a_refusal_takes_no_place_either(bench: Bench) -> None:
    """The script refused an acknowledged batch, and what it left is read: the log ends before that batch."""
    bench.learn()
    bench.direct.forget(STREAM)
    bench.append(sent(2))
    bench.company()
    assert argument(bench.wire.next()[0]) == b"2"
    bench.appends.forget(STREAM)
    bench.append(batch(LARGE))
    bench.wire.turn()
    bench.wire.answer([b"-OOM command not allowed"])
    bench.wire.answer([b"2", b"5", b"100"], [b"0 1000 1 1 1"])
    bench.wire.turn()
    assert bench.wire.names()[0] == [b"EVALSHA"]
    assert argument(bench.wire.next()[0]) == b"+3"
    bench.wire.answer([b"-BEHIND the log ends at 2, before 3"])
    assert isinstance(bench.told()[-1], StorageUnavailable)


async def play(bench: Bench, *, refuse: int = 0) -> list[list[bytes]]:
    """Be the Redis that takes what is replayed; the calls of the script. The first ones may be refused."""
    calls: list[list[bytes]] = []
    async with asyncio.timeout(10):
        while bench.appends._trouble is not None:
            await asyncio.sleep(0)
            while bench.wire.sent:
                (command, *_) = bench.wire.next()
                if command[0] == b"EVALSHA" and refuse:
                    refuse -= 1
                    bench.wire.answer(hiredis.ReplyError("BUSY running a script"))
                else:
                    assert command[0] == b"EVALSHA"
                    calls.append(command)
                    bench.wire.answer([argument(command)])
    return calls


@pytest.mark.parametrize("refusal", ["OOM command not allowed", "MISCONF cannot write", "lost"])
async def test_nothing_is_taken_until_redis_has_what_was_acknowledged(bench: Bench, refusal: str) -> None:
    bench.learn()
    bench.learn(OTHER)
    bench.append(sent(2), sent(3))
    bench.append(sent(2), stream=OTHER)
    bench.append(sent(9), sent(4))
    assert bench.told() == [Appended(2), Appended(3), Appended(2)]
    bench.company()
    if refusal == "lost":
        bench.wire.answer(*[StorageUnavailable("lost")] * len(bench.wire.next()))
    else:
        error = hiredis.ReplyError(refusal)
        aborted = hiredis.ReplyError("EXECABORT Transaction discarded")
        bench.wire.answer(b"OK", *[error] * (len(bench.wire.next()) - 2), aborted)
    assert bench.waiting() == [(STREAM, 2), (STREAM, 3), (OTHER, 2)]
    bench.append(sent(3), stream=OTHER)
    (refused,) = bench.told()
    assert isinstance(refused, StorageUnavailable)
    bench.wire.turn()
    # The one that was not certain was sent behind them; it must not come before them now.
    if bench.wire.sent:
        assert argument(bench.wire.next()[0]) == b"+4"
        bench.wire.answer([b"-BEHIND the log ends at 2, before 4"])
        bench.wire.answer([b"2", b"5", b"100"], [b"0 1000 1 1 1"])
    assert [type(answer) for answer in bench.told()] == [StorageUnavailable] * 2

    restored = asyncio.create_task(bench.appends.restored())
    calls = await play(bench, refuse=1)
    await restored
    assert [(call[3], argument(call)) for call in calls[-3:]] == [
        (STREAM.encode(), b"2"), (STREAM.encode(), b"3"), (OTHER.encode(), b"2"),
    ]  # fmt: skip
    assert bench.waiting() == []
    # What the logs end with has to be learnt again.
    bench.append(sent(4))
    bench.wire.turn()
    assert bench.wire.names() == [[b"EVALSHA"], [b"HMGET", b"HMGET"]]


async def test_a_log_that_was_deleted_is_no_reason_to_refuse_others(bench: Bench) -> None:
    bench.learn()
    bench.learn(OTHER)
    bench.append(sent(2))
    bench.append(sent(2), stream=OTHER)
    bench.appends.forget(STREAM)
    bench.company()
    assert bench.wire.names()[0] == [b"MULTI", b"XADD", b"HSET", b"HSET", b"EXEC"]
    bench.wire.execute(b"3-1", 0, 0)
    bench.wire.answer([b"-GONE the partition does not exist"])
    assert bench.waiting() == []
    bench.append(sent(3), stream=OTHER)
    assert bench.told()[2:] == [Appended(3)]


async def test_a_close_does_not_wait_for_a_redis_that_takes_nothing(bench: Bench) -> None:
    bench.learn()
    bench.append(sent(2))
    bench.company()
    bench.wire.answer(*[StorageUnavailable("lost")] * len(bench.wire.next()))
    waiting = asyncio.create_task(bench.appends.restored())
    # Whatever the repair has asked just now is answered, as by a connection that is closed, and more so.
    for _ in range(5):
        await asyncio.sleep(0)
    while bench.wire.sent:
        if bench.wire.next()[0][:2] == [b"CONFIG", b"GET"]:
            bench.wire.answer([b"maxmemory", b"77"])
        else:
            bench.wire.answer(b"OK")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if bench.wire.names() == [[b"EVALSHA"]]:
            break
    closed: Any = _Closed(bench.wire)
    bench.appends._connection = closed
    closing = asyncio.create_task(bench.appends.close())
    for _ in range(10):
        await asyncio.sleep(0)
        if bench.wire.sent:
            bench.wire.answer(StorageUnavailable("closed"))
    async with asyncio.timeout(5):
        await closing
        with pytest.raises(StorageUnavailable, match="closed"):
            await waiting
    assert bench.waiting() == [(STREAM, 2)]
    bench.told()
    bench.append(sent(3))
    assert [type(answer) for answer in bench.told()] == [StorageUnavailable]
    with pytest.raises(StorageUnavailable):
        await bench.appends.restored()


class _Closed:
    """A connection that is no more."""

    def __init__(self, wire: Wire) -> None:
        self.made = wire.made

    async def call(self, *_: object) -> None:
        raise StorageUnavailable("no connection to Redis")


async def test_a_callback_that_fails_harms_nobody_else(bench: Bench) -> None:
    def fail(_: Appended | Exception) -> None:
        raise RuntimeError("a bug")

    bench.learn()
    bench.append(sent(9))
    bench.appends.append(STREAM, sent(2), fail)
    bench.append(sent(3))
    bench.wire.turn()
    bench.wire.answer([b"-SEQUENCE no"])
    assert bench.told()[1:] == [Appended(3)]
    assert bench.waiting() == [(STREAM, 2), (STREAM, 3)]


async def test_many_bytes_behind_a_busy_log_do_not_wait_for_ever(bench: Bench) -> None:
    """The log is being learnt, and nothing else is under way: the answer to that sends what waits."""
    bench.learn()
    bench.direct.forget(STREAM)
    bench.append(sent(2))
    bench.company()
    bench.append(*(sent(3 + number, size=50_000) for number in range(8)))
    bench.wire.answer([b"2"])
    bench.wire.turn()
    assert bench.wire.preparing == []
    bench.wire.answer([b"3", b"5", b"100"], [b"0 1000 2 2 2"])
    bench.wire.turn()
    assert [command[0] for command in bench.wire.next()].count(b"XADD") == 8
    assert bench.told() == [Appended(2 + number) for number in range(9)]
