"""How batches leave for Redis and what its answers mean, with a scripted connection."""

from collections.abc import Callable
from typing import Any

import hiredis
import pytest
from tests.storage.conftest import Wire
from tests.storage.sending import ABORTED, MISCONF, NOW, OOM, SMALLER, TERM, Sender, batch, opened

from headrace.records.accelerator import stamp
from headrace.storage.logs.append import LARGE, StreamAppender
from headrace.storage.redis.protocol import encode
from headrace.topics.errors import StorageFull, StorageNotWritten, StorageUnavailable
from headrace.topics.model import Append


@pytest.fixture
def appender(wire: Wire) -> StreamAppender:
    return StreamAppender(lambda: NOW)


@pytest.fixture
def sender(appender: StreamAppender, wire: Wire) -> Sender:
    return Sender(appender, opened(wire))


def xadd(base: int, each: Append, newest: int, total: int) -> list[bytes]:
    entry_id = b"%d-%d" % (TERM, base + each.span)
    return [b"XADD", b"t", b"NOMKSTREAM", entry_id, b"b", bytes(each.batch), b"t", b"%d" % newest, b"s", b"%d" % total]


XLEN = [b"XLEN", b"t"]


# What is sent


def test_one_batch_leaves_with_the_length_asked_behind_it(sender: Sender, wire: Wire) -> None:
    each = batch(3, time=7)
    sender.send(each)
    assert wire.sent == []
    wire.turn()
    assert wire.next() == [xadd(0, each, 7, len(each.batch)), XLEN]
    assert sender.told == []
    wire.answer(b"9-3", 1)
    assert sender.told == [(0, None)]


def test_batches_of_one_turn_leave_in_one_transaction(sender: Sender, wire: Wire) -> None:
    sent = [batch(2, time=7), batch(1, time=3), batch(1, time=-1), batch(1, time=NOW + 1, size=100_000)]
    sender.send(*sent)
    wire.turn()
    totals = [sum(len(each.batch) for each in sent[: place + 1]) for place in range(4)]
    bases, newest = (0, 2, 3, 4), (7, 7, NOW, NOW + 1)
    adds = [xadd(*each) for each in zip(bases, sent, newest, totals, strict=True)]
    assert wire.next() == [[b"MULTI"], *adds, XLEN, [b"EXEC"]]
    wire.execute(b"9-2", b"9-3", b"9-4", b"9-5", 4)
    assert sender.told == [(base, None) for base in bases]


def test_one_call_of_a_log_is_under_way_at_most(sender: Sender, wire: Wire) -> None:
    sender.send(batch())
    wire.turn()
    sender.send(batch())
    wire.turn()
    sender.send(batch())
    wire.turn()
    assert len(wire.sent) == 1
    wire.answer(b"9-1", 1)
    wire.turn()
    assert wire.names() == [[b"MULTI", b"XADD", b"XADD", b"XLEN", b"EXEC"]]
    wire.execute(b"9-2", b"9-3", 3)
    assert [base for base, _ in sender.told] == [0, 1, 2]


def test_logs_do_not_wait_for_each_other(appender: StreamAppender, wire: Wire) -> None:
    senders = [Sender(appender, opened(wire, name=name)) for name in ("t", "u")]
    for each in senders:
        each.send(batch())
    wire.turn()
    assert len(wire.sent) == 2
    _, waiting = wire.sent
    wire.sent[:] = [waiting]
    wire.answer(b"9-1", 1)
    assert [each.told for each in senders] == [[], [(0, None)]]


def test_small_batches_for_a_redis_nearby_wait_until_it_has_answered(appender: StreamAppender, wire: Wire) -> None:
    wire.near = True
    first, second, third = (Sender(appender, opened(wire, name=name)) for name in ("t", "u", "v"))
    first.send(batch())
    wire.turn()
    second.send(batch())
    third.send(batch(), batch())
    wire.turn()
    assert len(wire.sent) == 1
    wire.answer(b"9-1", 1)
    first.send(batch())
    wire.turn()
    assert len(wire.sent) == 3
    wire.answer(b"9-1", 1)
    wire.execute(b"9-1", b"9-2", 2)
    wire.answer(b"9-2", 2)
    assert [each.told for each in (first, second, third)] == [
        [(0, None), (1, None)],
        [(0, None)],
        [(0, None), (1, None)],
    ]


def test_waiters_are_notified_before_appends_waiting_for_redis_continue(appender: StreamAppender, wire: Wire) -> None:
    wire.near = True
    log, second = opened(wire), Sender(appender, opened(wire, name="u"))
    going_on: list[bool] = []
    appender.logs[log.name] = log
    appender.place(log.name, batch(), 0, lambda _: going_on.append(bool(wire.preparing)))
    wire.turn()
    second.send(batch())
    wire.answer(b"9-1", 1)
    assert (going_on, bool(wire.preparing)) == ([False], True)


def test_large_ones_do_not_wait_nor_does_what_they_take_along(appender: StreamAppender, wire: Wire) -> None:
    wire.near = True
    first, second, third = (Sender(appender, opened(wire, name=name)) for name in ("t", "u", "v"))
    first.send(batch())
    wire.turn()
    second.send(batch())
    third.send(batch(size=LARGE))
    wire.turn()
    assert len(wire.sent) == 3


def test_what_waits_goes_on_where_the_answer_of_another_log_is_lost(appender: StreamAppender, wire: Wire) -> None:
    wire.near = True
    first, second = (Sender(appender, opened(wire, name=name)) for name in ("t", "u"))
    first.send(batch())
    wire.turn()
    second.send(batch())
    wire.answer(*[StorageUnavailable("lost")] * 2)
    wire.turn()
    assert first.errors() == [StorageUnavailable]
    wire.answer(b"9-1", 1)
    assert second.told == [(0, None)]


def test_a_call_is_bounded_in_bytes_and_in_batches(sender: Sender, wire: Wire) -> None:
    sender.send(*(batch(size=1 << 20) for _ in range(9)))
    wire.turn()
    calls = []
    entries = 0
    while wire.sent:
        count = sum(command[0] == b"XADD" for command in wire.next())
        calls.append(count)
        replies = [*(b"id",) * count, entries + count]
        entries += count
        if count > 1:
            wire.execute(*replies)
        else:
            wire.answer(*replies)
        wire.turn()
    assert calls == [4, 4, 1]
    sender.send(*(batch() for _ in range(1_000)))
    wire.turn()
    assert sum(command[0] == b"XADD" for command in wire.next()) == 512


# Answers that put everything in doubt


SEVERAL: dict[str, Callable[[Wire], None]] = {
    "refused whole": lambda wire: wire.answer(b"OK", OOM, OOM, b"QUEUED", ABORTED),
    "refused in part": lambda wire: wire.answer(b"OK", b"QUEUED", OOM, b"QUEUED", ABORTED),
    "refused at the end": lambda wire: wire.answer(b"OK", b"QUEUED", b"QUEUED", b"QUEUED", OOM),
    "the transaction refused": lambda wire: wire.answer(MISCONF, MISCONF, MISCONF, MISCONF, MISCONF),
    "no transaction": lambda wire: wire.answer(b"OK", b"QUEUED", b"QUEUED", b"QUEUED", None),
    "ids that are over": lambda wire: wire.execute(SMALLER, SMALLER, 0),
    "one id that is over": lambda wire: wire.execute(SMALLER, b"9-2", 1),
    "one id that is over, with another's in its place": lambda wire: wire.execute(SMALLER, b"9-2", 2),
    "the last id that is over": lambda wire: wire.execute(b"9-1", SMALLER, 1),
    "the stream is gone": lambda wire: wire.execute(None, None, 0),
    "too long": lambda wire: wire.execute(b"9-1", b"9-2", 3),
    "too short": lambda wire: wire.execute(b"9-1", b"9-2", 1),
    "no length": lambda wire: wire.execute(b"9-1", b"9-2", hiredis.ReplyError("WRONGTYPE")),
    "too few answers": lambda wire: wire.execute(b"9-1", 2),
    "too many answers": lambda wire: wire.execute(b"9-1", b"9-2", b"9-3", 3),
    "nothing": lambda wire: wire.execute(),
    "lost": lambda wire: wire.answer(*[StorageUnavailable("lost")] * 5),
}
ENDS = dict.fromkeys(("refused whole", "refused in part", "refused at the end"), StorageFull) | {
    "the transaction refused": StorageNotWritten
}


@pytest.mark.parametrize("name", SEVERAL)
def test_whatever_is_wrong_ends_everything_under_way(sender: Sender, wire: Wire, name: str) -> None:
    sender.send(batch(), batch())
    wire.turn()
    sender.send(batch())
    SEVERAL[name](wire)
    wire.turn()
    assert wire.sent == []
    wanted = ENDS.get(name, StorageUnavailable)
    assert [base for base, _ in sender.told] == [0, 1, 2]
    assert sender.errors() == [wanted] * 3
    assert [type(error) for error in sender.lost] == [wanted]
    # Until it is opened again nothing is placed.
    sender.send(batch())
    wire.turn()
    assert wire.sent == []
    assert sender.errors() == [wanted] * 4
    assert len(sender.lost) == 1


SINGLE: dict[str, tuple[Any, Any]] = {
    "refused": (OOM, 0),
    "over": (SMALLER, 0),
    "gone": (None, 0),
    "refused, with another's in its place": (OOM, 1),
    "gone, with another's in its place": (None, 1),
    "too long": (b"9-1", 2),
    "too short": (b"9-1", 0),
    "no length": (b"9-1", MISCONF),
    "misconfigured": (MISCONF, 0),
}
SINGLE_ENDS = {
    "refused": StorageFull,
    "refused, with another's in its place": StorageFull,
    "no length": StorageNotWritten,
    "misconfigured": StorageNotWritten,
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_batch_likewise(sender: Sender, wire: Wire, name: str) -> None:
    sender.send(batch())
    wire.turn()
    wire.answer(*SINGLE[name])
    wanted = SINGLE_ENDS.get(name, StorageUnavailable)
    assert sender.errors() == [wanted]
    assert [type(error) for error in sender.lost] == [wanted]
    assert ("another broker" in str(sender.lost[0])) is (name == "over")


def test_answers_to_what_was_given_up_are_not_taken_for_others(
    sender: Sender, wire: Wire, appender: StreamAppender
) -> None:
    sender.send(batch(), batch())
    wire.turn()
    appender.fail(sender.log, StorageUnavailable("given up"))
    assert sender.errors() == [StorageUnavailable] * 2
    # Opened again, with what had landed; the old answers come now.
    sender.log.fenced_reason, sender.log.entries, sender.log.term = None, 2, TERM + 1
    sender.send(batch())
    wire.turn()
    wire.execute(b"9-1", b"9-2", 2)
    assert len(sender.told) == 2
    wire.answer(b"10-3", 3)
    assert sender.told[-1] == (2, None)


def test_a_request_whose_answer_cannot_be_handled_harms_no_other(
    sender: Sender, wire: Wire, appender: StreamAppender
) -> None:
    def broken(_: Exception | None) -> None:
        raise ValueError

    each = batch()
    stamp(each.batch, 0, TERM)
    appender.place(sender.log.name, each, 0, broken)
    sender.next_offset = 1
    sender.send(batch())
    wire.turn()
    wire.execute(b"9-1", b"9-2", 2)
    assert sender.told == [(1, None)]


# Scripts among the batches


async def test_a_script_has_its_turn(sender: Sender, wire: Wire, appender: StreamAppender) -> None:
    sender.send(batch())
    first = appender.run(sender.log, encode(["TRIM"]))
    sender.send(batch())
    wire.turn()
    wire.answer(b"9-1", 1)
    wire.turn()
    assert wire.next() == [[b"TRIM"]]
    assert len(sender.told) == 1
    wire.answer(b"done")
    wire.turn()
    assert await first == b"done"
    wire.answer(b"9-2", 2)
    assert len(sender.told) == 2


async def test_changes_of_a_script_are_known_before_the_next_call(
    sender: Sender, wire: Wire, appender: StreamAppender
) -> None:
    sender.send(batch())

    def trimmed(_: Any) -> None:
        sender.log.entries = 0

    running = appender.run(sender.log, encode(["TRIM"]), trimmed)
    sender.send(batch())
    for reply in ((b"9-1", 1), (b"done",), (b"9-2", 1)):
        wire.turn()
        wire.answer(*reply)
    assert await running == b"done"
    assert sender.told == [(0, None), (1, None)]


async def test_scripts_end_with_the_batches(sender: Sender, wire: Wire, appender: StreamAppender) -> None:
    sender.send(batch())
    wire.turn()
    waiting = appender.run(sender.log, encode(["TRIM"]))
    wire.answer(OOM, 0)
    assert isinstance(await waiting, StorageFull)
    with pytest.raises(StorageFull):
        await appender.run(sender.log, encode(["TRIM"]))
    assert wire.sent == []


@pytest.mark.parametrize("told", ["MOVED 1 h:1", "ASK 1 h:1"])
async def test_a_log_whose_script_reports_a_move_is_recovered(
    sender: Sender, wire: Wire, appender: StreamAppender, told: str
) -> None:
    """Both nodes stay primaries, so no connection is lost: nothing else would end it for a log that is idle."""
    running = appender.run(sender.log, encode(["TRIM"]))
    wire.turn()
    wire.answer(hiredis.ReplyError(told))
    assert str(await running) == told
    assert [isinstance(error, StorageUnavailable) for error in sender.lost] == [True]
    with pytest.raises(StorageUnavailable, match=told):
        await appender.run(sender.log, encode(["TRIM"]))


async def test_the_former_place_of_a_recovered_log_says_nothing_of_it(
    sender: Sender, wire: Wire, appender: StreamAppender
) -> None:
    appender.run(sender.log, encode(["TRIM"]))
    wire.turn()
    appender.fail(sender.log, StorageUnavailable("lost"))
    sender.log.fenced_reason = None
    wire.answer(hiredis.ReplyError("MOVED 1 h:1"))
    assert sender.log.fenced_reason is None


async def test_an_abandoned_script_blocks_nothing(sender: Sender, wire: Wire, appender: StreamAppender) -> None:
    appender.run(sender.log, encode(["TRIM"])).cancel()
    sender.send(batch())
    wire.turn()
    wire.answer(b"done")
    wire.turn()
    wire.answer(b"9-1", 1)
    assert sender.told == [(0, None)]
