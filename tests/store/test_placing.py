"""How batches leave for Redis and what its answers mean, with a scripted connection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest
from tests.store.conftest import Wire

from headrace.records.build import build
from headrace.records.compiled import stamp
from headrace.store.early import EarlyAcknowledgement
from headrace.store.journal import SMALLEST, Journal
from headrace.store.link import encode
from headrace.store.owned_log import OwnedLog
from headrace.store.placing import LARGE, Placer
from headrace.store.room import RESERVE_BYTES, DiskRoom
from headrace.topics.errors import StorageFull, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append

STREAM, TERM = "t", 9
NOW = 1_234
OOM = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
SMALLER = hiredis.ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
ABORTED = hiredis.ReplyError("EXECABORT Transaction discarded because of previous errors.")
MISCONF = hiredis.ReplyError("MISCONF Errors writing to the AOF file")


def batch(span: int = 1, *, time: int = 5, size: int = 10) -> Append:
    return Append(build([(None, b"x" * size, time, ())] * span), span, time)


def opened(wire: Wire, entries: int = 0, name: str = STREAM) -> OwnedLog:
    """A log as an opening leaves it."""
    log = OwnedLog(name)
    log.term, log.id, log.entries, log.doubt = TERM, b"id", entries, None
    log.connection = wire  # type: ignore[assignment]
    return log


class Sender:
    """Places batches one behind the other and keeps what is told."""

    def __init__(self, placer: Placer, log: OwnedLog) -> None:
        self.placer = placer
        self.log = log
        self.told: list[tuple[int, Exception | None]] = []
        """(base offset, answer) in the order of the answers."""
        self.lost: list[Exception] = []
        log.lost = self.lost.append
        self.next_offset = 0

    def send(self, *batches: Append) -> None:
        for each in batches:
            base = self.next_offset
            stamp(each.batch, base, TERM)
            self.next_offset += each.span

            def done(error: Exception | None, base: int = base) -> None:
                self.told.append((base, error))

            self.placer.place(self.log, each, base, done)

    def errors(self) -> list[Any]:
        return [type(error) for _, error in self.told]


@pytest.fixture
def placer(wire: Wire) -> Placer:
    return Placer(lambda: NOW)


@pytest.fixture
def sender(placer: Placer, wire: Wire) -> Sender:
    return Sender(placer, opened(wire))


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


def test_logs_do_not_wait_for_each_other(placer: Placer, wire: Wire) -> None:
    senders = [Sender(placer, opened(wire, name=name)) for name in ("t", "u")]
    for each in senders:
        each.send(batch())
    wire.turn()
    assert len(wire.sent) == 2
    _, waiting = wire.sent
    wire.sent[:] = [waiting]
    wire.answer(b"9-1", 1)
    assert [each.told for each in senders] == [[], [(0, None)]]


def test_small_batches_for_a_redis_nearby_wait_until_it_has_answered(placer: Placer, wire: Wire) -> None:
    wire.near = True
    first, second, third = (Sender(placer, opened(wire, name=name)) for name in ("t", "u", "v"))
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


def test_large_ones_do_not_wait_nor_does_what_they_take_along(placer: Placer, wire: Wire) -> None:
    wire.near = True
    first, second, third = (Sender(placer, opened(wire, name=name)) for name in ("t", "u", "v"))
    first.send(batch())
    wire.turn()
    second.send(batch())
    third.send(batch(size=LARGE))
    wire.turn()
    assert len(wire.sent) == 3


def test_what_waits_goes_on_where_the_answer_of_another_log_is_lost(placer: Placer, wire: Wire) -> None:
    wire.near = True
    first, second = (Sender(placer, opened(wire, name=name)) for name in ("t", "u"))
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
FULL = {"refused whole", "refused in part", "refused at the end"}


@pytest.mark.parametrize("name", SEVERAL)
def test_whatever_is_wrong_ends_everything_under_way(sender: Sender, wire: Wire, name: str) -> None:
    sender.send(batch(), batch())
    wire.turn()
    sender.send(batch())
    SEVERAL[name](wire)
    wire.turn()
    assert wire.sent == []
    wanted = StorageFull if name in FULL else StorageUnavailable
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
    "too long": (b"9-1", 2),
    "too short": (b"9-1", 0),
    "no length": (b"9-1", MISCONF),
    "misconfigured": (MISCONF, 0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_batch_likewise(sender: Sender, wire: Wire, name: str) -> None:
    sender.send(batch())
    wire.turn()
    wire.answer(*SINGLE[name])
    wanted = StorageFull if name == "refused" else StorageUnavailable
    assert sender.errors() == [wanted]
    assert [type(error) for error in sender.lost] == [wanted]
    assert ("another broker" in str(sender.lost[0])) is (name == "over")


def test_answers_to_what_was_given_up_are_not_taken_for_others(sender: Sender, wire: Wire, placer: Placer) -> None:
    sender.send(batch(), batch())
    wire.turn()
    placer.fail(sender.log, StorageUnavailable("given up"))
    assert sender.errors() == [StorageUnavailable] * 2
    # Opened again, with what had landed; the old answers come now.
    sender.log.doubt, sender.log.entries, sender.log.term = None, 2, TERM + 1
    sender.send(batch())
    wire.turn()
    wire.execute(b"9-1", b"9-2", 2)
    assert len(sender.told) == 2
    wire.answer(b"10-3", 3)
    assert sender.told[-1] == (2, None)


def test_a_request_whose_answer_cannot_be_handled_harms_no_other(sender: Sender, wire: Wire, placer: Placer) -> None:
    def broken(_: Exception | None) -> None:
        raise ValueError

    each = batch()
    stamp(each.batch, 0, TERM)
    placer.place(sender.log, each, 0, broken)
    sender.next_offset = 1
    sender.send(batch())
    wire.turn()
    wire.execute(b"9-1", b"9-2", 2)
    assert sender.told == [(1, None)]


# Scripts among the batches


async def test_a_script_has_its_turn(sender: Sender, wire: Wire, placer: Placer) -> None:
    sender.send(batch())
    first = placer.run(sender.log, encode(["TRIM"]))
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


async def test_what_a_script_has_changed_is_known_before_the_next_call(
    sender: Sender, wire: Wire, placer: Placer
) -> None:
    sender.send(batch())

    def trimmed(_: Any) -> None:
        sender.log.entries = 0

    running = placer.run(sender.log, encode(["TRIM"]), trimmed)
    sender.send(batch())
    for reply in ((b"9-1", 1), (b"done",), (b"9-2", 1)):
        wire.turn()
        wire.answer(*reply)
    assert await running == b"done"
    assert sender.told == [(0, None), (1, None)]


async def test_scripts_end_with_the_batches(sender: Sender, wire: Wire, placer: Placer) -> None:
    sender.send(batch())
    wire.turn()
    waiting = placer.run(sender.log, encode(["TRIM"]))
    wire.answer(OOM, 0)
    assert isinstance(await waiting, StorageFull)
    with pytest.raises(StorageFull):
        await placer.run(sender.log, encode(["TRIM"]))
    assert wire.sent == []


@pytest.mark.parametrize("told", ["MOVED 1 h:1", "ASK 1 h:1"])
async def test_a_log_whose_script_is_told_that_it_has_moved_is_opened_anew(
    sender: Sender, wire: Wire, placer: Placer, told: str
) -> None:
    """Both nodes stay primaries, so no connection is lost: nothing else would end it for a log that is idle."""
    running = placer.run(sender.log, encode(["TRIM"]))
    wire.turn()
    wire.answer(hiredis.ReplyError(told))
    assert str(await running) == told
    assert [isinstance(error, StorageUnavailable) for error in sender.lost] == [True]
    with pytest.raises(StorageUnavailable, match=told):
        await placer.run(sender.log, encode(["TRIM"]))


async def test_where_a_log_was_before_it_was_opened_anew_says_nothing_of_it(
    sender: Sender, wire: Wire, placer: Placer
) -> None:
    placer.run(sender.log, encode(["TRIM"]))
    wire.turn()
    placer.fail(sender.log, StorageUnavailable("lost"))
    sender.log.doubt = None
    wire.answer(hiredis.ReplyError("MOVED 1 h:1"))
    assert sender.log.doubt is None


async def test_a_script_that_nobody_waits_for_any_more_holds_up_nothing(
    sender: Sender, wire: Wire, placer: Placer
) -> None:
    placer.run(sender.log, encode(["TRIM"])).cancel()
    sender.send(batch())
    wire.turn()
    wire.answer(b"done")
    wire.turn()
    wire.answer(b"9-1", 1)
    assert sender.told == [(0, None)]


# The disk


class Disk:
    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, _: Path) -> int:
        return self.free


def on_disk(wire: Wire, free: int) -> tuple[Sender, Disk]:
    disk = Disk(free)
    return Sender(Placer(lambda: NOW, disk=DiskRoom(Path(), disk)), opened(wire)), disk


def test_below_the_reserve_batches_are_refused_before_they_are_sent(wire: Wire) -> None:
    sender, disk = on_disk(wire, RESERVE_BYTES)
    sender.send(batch())
    wire.turn()
    assert wire.sent == []
    assert sender.errors() == [StorageFull]
    assert [type(error) for error in sender.lost] == [StorageFull]
    disk.free = 1 << 40
    sender.log.doubt, sender.next_offset = None, 0
    sender.send(batch())
    wire.turn()
    wire.answer(b"9-1", 1)
    assert sender.told[-1] == (0, None)


def test_an_answer_is_not_believed_where_the_disk_is_nearly_full(wire: Wire) -> None:
    """Valkey answers before it knows whether its file took the batch; the next thing that it takes says so."""
    sender, _ = on_disk(wire, RESERVE_BYTES + (100 << 20))
    sender.send(batch())
    wire.turn()
    wire.answer(b"9-1", 1)
    assert sender.told == []
    assert wire.next() == [[b"PING"]]
    wire.answer(b"PONG")
    assert sender.told == [(0, None)]


def test_nor_is_it_acknowledged_where_the_proof_is_refused(wire: Wire) -> None:
    sender, _ = on_disk(wire, RESERVE_BYTES + (100 << 20))
    sender.send(batch())
    wire.turn()
    wire.answer(b"9-1", 1)
    wire.answer(MISCONF)
    assert sender.errors() == [StorageUnavailable]
    assert len(sender.lost) == 1


# With a journal


@pytest.fixture
async def early(tmp_path: Path, wire: Wire) -> EarlyAcknowledgement:
    journal = Journal.open(tmp_path / "journal", SMALLEST).renewed(SMALLEST)
    made = EarlyAcknowledgement(journal, wire, lambda: NOW)  # type: ignore[arg-type]
    made.enter(b"other", b"id", 0, batch())
    wire.answer(b"used_memory:1\r\nmaxmemory:0\r\n")
    return made


@pytest.fixture
async def quick(early: EarlyAcknowledgement, wire: Wire) -> Sender:
    """One whose small batches are acknowledged at once."""
    return Sender(Placer(lambda: NOW, early), opened(wire))


async def test_a_small_batch_is_acknowledged_at_once_and_sent_later(quick: Sender, wire: Wire) -> None:
    quick.send(batch(), batch())
    assert quick.told == [(0, None), (1, None)]
    wire.turn()
    assert wire.sent == []
    quick.placer.flush()
    assert wire.names() == [[b"MULTI", b"XADD", b"XADD", b"XLEN", b"EXEC"]]
    assert len(quick.log.acknowledged) == 2
    wire.execute(b"9-1", b"9-2", 2)
    assert len(quick.log.acknowledged) == 0


async def test_a_large_one_waits_for_redis_and_so_does_what_comes_behind_it(quick: Sender, wire: Wire) -> None:
    quick.send(batch(), batch(size=LARGE), batch())
    assert quick.told == [(0, None)]
    wire.turn()
    wire.execute(b"9-1", b"9-2", b"9-3", 3)
    assert quick.told == [(0, None), (1, None), (2, None)]
    quick.send(batch())
    assert quick.told[-1] == (3, None)


async def test_what_was_acknowledged_and_refused_is_kept_for_the_next_opening(quick: Sender, wire: Wire) -> None:
    quick.send(batch(), batch())
    quick.placer.flush()
    quick.send(batch())
    wire.answer(b"OK", OOM, OOM, b"QUEUED", ABORTED)
    assert [type(error) for error in quick.lost] == [StorageFull]
    assert quick.told == [(0, None), (1, None), (2, None)]
    assert [each.base_offset for each in quick.log.acknowledged] == [0, 1, 2]


async def test_a_deleted_log_leaves_nothing_to_store(quick: Sender, wire: Wire, early: EarlyAcknowledgement) -> None:
    quick.send(batch(), batch())
    quick.placer.settle_dropped(quick.log)
    assert early.stored_to == 2
    quick.send(batch())
    assert type(quick.told[-1][1]) is UnknownTopic
    quick.placer.flush()
    assert wire.sent == []
