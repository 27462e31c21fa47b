"""Times of acknowledgements: after a proof on a nearly full disk, before Redis with a journal."""

from pathlib import Path

import pytest
from tests.storage.conftest import Wire
from tests.storage.sending import ABORTED, MISCONF, NOW, OOM, Sender, batch, opened

from headrace.storage.free_space import RESERVE_BYTES, FreeSpace
from headrace.storage.journal.acks import JournaledAcks
from headrace.storage.journal.journal import SMALLEST, Journal
from headrace.storage.logs.append import LARGE, StreamAppender
from headrace.topics.errors import StorageFull, StorageNotWritten, UnknownTopic

# The disk


class Disk:
    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, _: Path) -> int:
        return self.free


def on_disk(wire: Wire, free: int) -> tuple[Sender, Disk]:
    disk = Disk(free)
    return Sender(StreamAppender(lambda: NOW, disk=FreeSpace(Path(), disk)), opened(wire)), disk


def test_below_the_reserve_batches_are_refused_before_they_are_sent(wire: Wire) -> None:
    sender, disk = on_disk(wire, RESERVE_BYTES)
    sender.send(batch())
    wire.turn()
    assert wire.sent == []
    assert sender.errors() == [StorageFull]
    assert [type(error) for error in sender.lost] == [StorageFull]
    disk.free = 1 << 40
    sender.log.fenced_reason, sender.next_offset = None, 0
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
    assert sender.errors() == [StorageNotWritten]
    assert len(sender.lost) == 1


# With a journal


@pytest.fixture
async def early(tmp_path: Path, wire: Wire) -> JournaledAcks:
    journal = Journal.open(tmp_path / "journal", SMALLEST).renewed(SMALLEST)
    made = JournaledAcks(journal, wire, lambda: NOW)  # type: ignore[arg-type]
    made.enter(b"other", b"id", 0, batch())
    wire.answer(b"used_memory:1\r\nmaxmemory:0\r\n")
    return made


@pytest.fixture
async def quick(early: JournaledAcks, wire: Wire) -> Sender:
    """One whose small batches are acknowledged at once."""
    return Sender(StreamAppender(lambda: NOW, early), opened(wire))


async def test_appends_in_flight_are_recounted_when_a_callback_ends_the_ownership(quick: Sender, wire: Wire) -> None:
    """Else a batch was acknowledged before those ahead of it, and readers were shown what is not there."""
    appender, log = quick.appender, quick.log
    appender.place(log.name, batch(size=LARGE), 0, lambda _: appender.fail(log, StorageFull("full")))
    quick.next_offset = 1
    quick.send(batch())
    wire.turn()
    wire.execute(b"9-1", b"9-2", 2)
    assert quick.told == [(1, None)]
    log.fenced_reason = None
    quick.send(batch(size=LARGE), batch())
    assert quick.told == [(1, None)]


async def test_a_small_batch_is_acknowledged_at_once_and_sent_later(quick: Sender, wire: Wire) -> None:
    quick.send(batch(), batch())
    assert quick.told == [(0, None), (1, None)]
    wire.turn()
    assert wire.sent == []
    quick.appender.flush()
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


async def test_batches_acknowledged_and_refused_are_kept_for_the_next_recovery(quick: Sender, wire: Wire) -> None:
    quick.send(batch(), batch())
    quick.appender.flush()
    quick.send(batch())
    wire.answer(b"OK", OOM, OOM, b"QUEUED", ABORTED)
    assert [type(error) for error in quick.lost] == [StorageFull]
    assert quick.told == [(0, None), (1, None), (2, None)]
    assert [each.base_offset for each in quick.log.acknowledged] == [0, 1, 2]


async def test_a_deleted_log_leaves_nothing_to_store(quick: Sender, wire: Wire, early: JournaledAcks) -> None:
    quick.send(batch(), batch())
    quick.appender.settle_dropped(quick.log)
    assert early.stored_to == 2
    quick.send(batch())
    assert type(quick.told[-1][1]) is UnknownTopic
    quick.appender.flush()
    assert wire.sent == []
