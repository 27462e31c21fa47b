"""Which batches of native topics are opened: as many as there is room for until Redis answers, in order."""

import asyncio
from typing import Any

import hiredis
import pytest
from tests.harness.plain import KEY, STREAM, batch
from tests.storage.conftest import Wire

from headrace.broker.native.partition import NativePartition
from headrace.storage.fence import Fence
from headrace.storage.logs.replicas import NoReplicas
from headrace.storage.native.appends import NativeAppends, Opened
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import CorruptBatch, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import Append, Appended
from headrace.topics.native import Extent, NativeStream

OTHER = NativeStream("other", 10)
ROOM = 1_000
"""Bytes of opened batches. Those of these tests are a few hundred."""
PINGED = [b"PING"]


class Appends(NativeAppends):
    """Appends over a wire, with little room; none waits for entries of others."""

    def __init__(self, wire: Wire, most: int = ROOM) -> None:
        self.copies = NoReplicas()
        self.opened = Opened(most)
        super().__init__(Scripts(wire), Fence(1), opened=self.opened)  # type: ignore[arg-type]

    def watch(self, *_: object) -> None:
        pass

    def unwatch(self, *_: object) -> None:
        pass


@pytest.fixture
def appends(wire: Wire) -> Appends:
    return Appends(wire)


@pytest.fixture
def told() -> list[Any]:
    return []


def spans(wire: Wire) -> list[bytes]:
    """How many records each batch has that was sent and has no answer."""
    return [command[15] for commands, _ in wire.sent for command in commands if command != PINGED]


def corrupt() -> Append:
    made = batch(2)
    return Append(bytearray(made.batch[:70]) + b"\xff" * (len(made.batch) - 70), 2, 1_000)


async def turns() -> None:
    """Let what is arranged for the next turns of the loop come to pass."""
    for _ in range(20):
        await asyncio.sleep(0)


def fill(appends: Appends, wire: Wire, told: list[Any]) -> int:
    """Append batches of one record until one of them waits; how many are sent."""
    sent = -1
    while len(wire.sent) > sent:
        sent = len(wire.sent)
        appends.append(STREAM, batch(1), told.append)
    return sent


async def test_unanswered_expanded_batches_are_bounded(wire: Wire, appends: Appends, told: list[Any]) -> None:
    for _ in range(1_000):
        appends.append(STREAM, batch(1), told.append)
    await turns()
    one = appends.opened.used // len(wire.sent)
    assert ROOM <= appends.opened.used < ROOM + one
    assert told == []


async def test_one_batch_is_opened_however_large_it_is(wire: Wire, appends: Appends, told: list[Any]) -> None:
    appends.append(STREAM, batch(500), told.append)
    appends.append(STREAM, batch(500), told.append)
    await turns()
    assert spans(wire) == [b"500"]
    wire.answer(b"7168")
    await turns()
    assert told == [Appended(7168)]
    assert spans(wire) == [b"500"]


async def test_each_answer_makes_room_for_the_next_in_order(wire: Wire, appends: Appends, told: list[Any]) -> None:
    sent = fill(appends, wire, told)
    for count in range(2, 30):
        appends.append(STREAM if count % 2 else OTHER, batch(count), told.append)
    seen = []
    while wire.sent:
        # A small one that comes now does not overtake those that wait.
        seen.append(spans(wire)[0])
        wire.answer(b"7168")
        await turns()
    assert seen == [b"1"] * (sent + 1) + [b"%d" % count for count in range(2, 30)]
    assert len(told) == len(seen)
    assert appends.opened.used == 0


async def test_later_batches_wait_for_earlier_ones(wire: Wire, appends: Appends, told: list[Any]) -> None:
    fill(appends, wire, told)
    appends.append(STREAM, batch(2), told.append)
    while wire.sent:
        wire.answer(b"7168")
    # There is room, and the next waiter gets it in a moment.
    appends.append(STREAM, batch(3), told.append)
    await turns()
    assert spans(wire)[-2:] == [b"2", b"3"]


@pytest.mark.parametrize(
    "answer", [hiredis.ReplyError("GONE"), StorageUnavailable("the connection was lost")], ids=["error", "lost"]
)
async def test_an_error_makes_room_too(wire: Wire, appends: Appends, told: list[Any], answer: Exception) -> None:
    sent = fill(appends, wire, told)
    for _ in range(sent):
        wire.answer(answer)
    await turns()
    assert len(told) == sent
    assert spans(wire) == [b"1"]
    wire.answer(b"7168")
    assert told[-1] == Appended(7168)
    assert appends.opened.used == 0


async def test_a_batch_that_cannot_be_read_is_refused_when_it_is_opened(
    wire: Wire, appends: Appends, told: list[Any]
) -> None:
    sent = fill(appends, wire, told)
    appends.append(STREAM, corrupt(), told.append)
    appends.append(STREAM, batch(3), told.append)
    assert told == []
    for _ in range(sent):
        wire.answer(b"7168")
    await turns()
    assert [type(each) for each in told] == [Appended] * sent + [CorruptBatch]
    assert spans(wire) == [b"1", b"3"]


async def test_a_failing_callback_does_not_cost_others_their_turn(
    wire: Wire, appends: Appends, told: list[Any]
) -> None:
    def fails(_: object) -> None:
        raise ValueError("of this test")

    sent = fill(appends, wire, told)
    appends.append(STREAM, corrupt(), fails)
    appends.append(STREAM, batch(3), told.append)
    for _ in range(sent):
        wire.answer(b"7168")
    await turns()
    assert spans(wire) == [b"1", b"3"]


async def test_settling_waits_for_those_that_wait(wire: Wire, appends: Appends, told: list[Any]) -> None:
    sent = fill(appends, wire, told)
    settling = asyncio.ensure_future(appends.settle(STREAM))
    await turns()
    assert len(wire.sent) == sent
    for _ in range(sent):
        wire.answer(b"7168")
    await turns()
    assert wire.names() == [[b"EVALSHA"], [b"PING"]]
    wire.answer(b"7168")
    assert len(told) == sent + 1
    wire.answer(b"PONG")
    await settling


async def test_a_waiter_may_leave_when_it_settles(wire: Wire, appends: Appends, told: list[Any]) -> None:
    sent = fill(appends, wire, told)
    settling = asyncio.ensure_future(appends.settle(STREAM))
    await turns()
    settling.cancel()
    appends.append(STREAM, batch(3), told.append)
    for _ in range(sent):
        wire.answer(b"7168")
    await turns()
    assert spans(wire) == [b"1", b"3"]


# Partitions


async def test_those_of_a_deleted_topic_are_refused_and_others_keep_their_place(
    wire: Wire, appends: Appends, told: list[Any]
) -> None:
    partition = NativePartition("t", 0, STREAM, Extent(), appends, None)  # type: ignore[arg-type]
    sent = fill(appends, wire, told)
    refused: list[Any] = []
    for count in range(2, 20):
        partition.append(batch(count, producer=7, epoch=0, sequence=count), refused.append)
        appends.append(OTHER, batch(count), told.append)
    settling = asyncio.ensure_future(appends.settle(STREAM))
    await turns()
    partition.close()
    assert [type(each) for each in refused] == [UnknownTopic] * 18
    assert [type(each) for each in told] == [UnknownTopic]
    with pytest.raises(UnknownTopic):
        partition.append(batch(1), refused.append)
    seen = []
    while wire.sent:
        if wire.next() == [PINGED]:
            wire.answer(b"PONG")
        else:
            seen.append(spans(wire)[0])
            wire.answer(b"7168")
        await turns()
    await settling
    assert seen == [b"1"] * sent + [b"%d" % count for count in range(2, 20)]
    assert appends.opened.used == 0


async def test_a_producers_batches_that_wait_follow_each_other(wire: Wire, appends: Appends, told: list[Any]) -> None:
    """Else a producer that Redis does not know would begin with the second where the first is refused."""
    partition = NativePartition("t", 0, STREAM, Extent(), appends, None)  # type: ignore[arg-type]
    sent = fill(appends, wire, told)
    for sequence in range(3):
        partition.append(batch(1, producer=7, epoch=0, sequence=sequence), told.append)
    found = []
    for _ in range(sent + 4):
        found += [command[11:15] for command in wire.next() if command[11] == b"7"]
        wire.answer(b"7168")
        await turns()
    assert found == [[b"7", b"0", b"0", b""], [b"7", b"0", b"1", b"follows"], [b"7", b"0", b"2", b"follows"]]
    partition.close()


# The line


def error() -> TopicError:
    return UnknownTopic("gone")


async def test_one_that_is_refused_frees_the_line() -> None:
    opened, seen = Opened(10), list[object]()
    opened.take(10)
    opened.wait(KEY, seen.append)
    assert opened.any_waiting
    opened.refuse(KEY, error())
    opened.refuse("none", error())
    assert not opened.any_waiting
    opened.give_back(10)
    assert opened.has_room
    await turns()
    assert [type(each) for each in seen] == [UnknownTopic]


async def test_a_waiter_refused_in_anothers_callback_gets_its_error() -> None:
    """A client that receives the last of its errors may drop records that are in flight elsewhere."""
    opened, seen = Opened(10), list[object]()
    opened.take(10)
    opened.wait("a", lambda _: opened.refuse("b", error()))
    opened.wait("b", seen.append)
    opened.wait("c", seen.append)
    opened.refuse("a", error())
    assert [type(each) for each in seen] == [UnknownTopic]
    opened.give_back(10)
    await turns()
    assert seen[1:] == [None]
