"""The snapshot that a leader writes within a second; its result shows whether another broker has led the log."""

import asyncio
from typing import Any

import pytest
import structlog
from tests.broker.batches import batch, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.testing.clock import ManualClock
from headrace.topics.errors import Fenced, NotLeader, OffsetOutOfRange, StorageNotWritten, StorageUnavailable
from headrace.topics.model import StoredBatch
from headrace.topics.producer_state import ProducerStateEntry


async def test_many_producers_are_written_down_in_pieces_and_the_offset_with_the_last(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in one piece they would delay all other clients, and Redis too."""
    written: list[tuple[int | None, int]] = []
    save = storage.logs.save_producers

    async def noted(
        stream: str, offset: int | None, changes: dict[int, ProducerStateEntry | None], shown: int | None, *_: object
    ) -> None:
        written.append((offset, len(changes)))
        await save(stream, offset, changes, shown)

    monkeypatch.setattr(storage.logs, "save_producers", noted)
    for producer in range(2_500):
        partition.append(sent(0, producer=producer), lambda _: None)
    storage.logs.answer()
    await partition.save_producers()
    assert [offset for offset, _ in written] == [None, None, 2_500]
    assert max(size for _, size in written) <= 1_000
    assert storage.logs.logs[partition.stream].producers.keys() == set(range(2_500))


async def test_producers_are_saved_to_an_end_while_others_come_faster(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other partitions' snapshots, trimming and the hand-over at shutdown wait for it."""
    written: list[int | None] = []
    save = storage.logs.save_producers
    known: list[int] = []

    def come() -> None:
        for _ in range(1_500):
            known.append(len(known))
            partition.append(sent(0, producer=known[-1]), lambda _: None)

    async def noted(
        stream: str, offset: int | None, changes: dict[int, ProducerStateEntry | None], shown: int | None, *_: object
    ) -> None:
        written.append(offset)
        if len(written) > 10:
            raise StorageUnavailable("it does not end")
        await save(stream, offset, changes, shown)
        come()

    monkeypatch.setattr(storage.logs, "save_producers", noted)
    come()
    await partition.save_producers()
    assert written == [None, 1_500]
    assert storage.logs.logs[partition.stream].producers.keys() >= set(range(1_500))


async def test_an_offset_is_written_behind_all_producers_up_to_it(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two save at a time: trimming, and the snapshot of each second. What cannot be stored is saved once more."""
    saved: dict[int, ProducerStateEntry | None] = {}
    offsets: list[int] = []
    turns = 0

    async def noted(
        stream: str, offset: int | None, changes: dict[int, ProducerStateEntry | None], shown: int | None, *more: object
    ) -> None:
        nonlocal turns
        turns += 1
        refused = turns == 2
        for _ in range(turns % 3):
            await asyncio.sleep(0)
        if refused:
            raise StorageUnavailable("once")
        saved.update(changes)
        if offset is not None:
            assert saved.keys() >= set(range(offset))
            offsets.append(offset)

    monkeypatch.setattr(storage.logs, "save_producers", noted)
    for producer in range(3_500):
        partition.append(sent(0, producer=producer), lambda _: None)
    storage.logs.answer()
    first = asyncio.create_task(partition.save_producers())
    await asyncio.sleep(0)
    partition.append(sent(0, producer=3_500), lambda _: None)
    with pytest.raises(StorageUnavailable):
        await asyncio.gather(first, partition.save_producers())
    await partition.save_producers()
    assert offsets[-1] == 3_501


async def test_behind_a_view_that_was_missed_readers_wait_until_storage_has_taken_a_write(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    """Another broker may have shown them more of the log, and be gone."""
    partition.append(batch(), lambda _: None)
    storage.logs.answer()
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(6)
    partition.led_elsewhere()
    assert not partition.is_end_known, "who reads without a leader asks storage"
    partition.check_readable(6)
    assert partition.at_end(6)
    with pytest.raises(NotLeader, match="it is not known yet whether another broker has led it"):
        await partition.ask_end()
    with pytest.raises(NotLeader):
        partition.end_of_epoch(partition.leader_epoch)
    storage.unavailable = True
    with pytest.raises(StorageUnavailable):
        await partition.save_producers()
    partition.check_readable(6)
    storage.unavailable = False
    await partition.save_producers()
    assert partition.is_end_known
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(6)
    await partition.ask_end()


async def _refused(*_: Any, **__: Any) -> Any:
    raise StorageNotWritten("Redis answered: MISCONF Errors writing to the AOF file")


@pytest.mark.parametrize("in_doubt", [False, True])
async def test_behind_a_view_that_was_missed_a_storage_that_takes_no_writes_is_asked_who_has_led(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, *, in_doubt: bool
) -> None:
    """With a full disk no write reveals it for hours, and no other broker has led it."""
    partition.append(batch(), lambda _: None)
    storage.logs.answer()
    monkeypatch.setattr(storage.logs, "save_producers", _refused)
    monkeypatch.setattr(storage.logs, "open", _refused)
    partition.led_elsewhere()
    if in_doubt:
        partition.on_lost(StorageUnavailable("an append was lost"))
        for _ in range(10):
            await asyncio.sleep(0)
    else:
        with pytest.raises(StorageNotWritten):
            await partition.save_producers()
    await partition.ask_end()
    partition.end_of_epoch(partition.leader_epoch)
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(6)


@pytest.mark.parametrize("error", [StorageNotWritten, StorageUnavailable])
async def test_after_a_missed_membership_readers_wait_if_reads_are_not_conclusive(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Another broker has led it without an announcement, or has promoted a primary without replicas."""
    if error is StorageNotWritten:
        await storage.logs.open(partition.stream, lambda _: None)

    async def refuse(*_: Any) -> None:
        raise error("Redis answered")

    monkeypatch.setattr(storage.logs, "save_producers", refuse)
    partition.led_elsewhere()
    with pytest.raises(error):
        await partition.save_producers()
    partition.check_readable(6)
    with pytest.raises(NotLeader):
        await partition.ask_end()


@pytest.mark.parametrize("how", ["another one tells", "a write is refused"])
async def test_an_old_primary_ends_no_doubt_of_who_knows_that_another_broker_has_led_the_log(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its disk is full, so it refuses to open the log, and it has not heard of the other one's opening."""
    partition.lead(1)
    await partition.open()
    monkeypatch.setattr(storage.logs, "open", _refused)
    if how == "another one tells":
        partition.lead(3, partition.leader_epoch + 1)
    else:

        async def fenced(*_: object) -> None:
            raise Fenced("term 1 is over, now 2")

        monkeypatch.setattr(storage.logs, "save_producers", fenced)
        partition.led_elsewhere()
        with pytest.raises(Fenced):
            await partition.save_producers()
    partition.led_elsewhere()
    for _ in range(10):
        await asyncio.sleep(0)
    partition.check_readable(6)
    with pytest.raises(NotLeader):
        await partition.ask_end()
    monkeypatch.undo()
    while not partition.is_end_known:
        await asyncio.sleep(0)
        clock.advance(100)
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(6)


async def test_an_opening_that_has_the_number_of_one_that_a_failover_lost_is_another_one(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = storage.logs.logs[partition.stream]
    last = log.rows[-1]
    log.rows[-1] = last._replace(first=last.first + 3)
    monkeypatch.setattr(storage.logs, "save_producers", _refused)
    partition.led_elsewhere()
    with pytest.raises(StorageNotWritten):
        await partition.save_producers()
    assert not partition.is_end_known


async def test_a_read_from_before_a_missed_membership_is_not_conclusive(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = storage.logs.look

    async def missed_meanwhile(stream: str) -> Any:
        found = await look(stream)
        partition.led_elsewhere()
        return found

    monkeypatch.setattr(storage.logs, "save_producers", _refused)
    monkeypatch.setattr(storage.logs, "look", missed_meanwhile)
    partition.led_elsewhere()
    with pytest.raises(StorageNotWritten):
        await partition.save_producers()
    assert not partition.is_end_known


@pytest.mark.parametrize("how", ["a write is refused", "another one tells"])
async def test_readers_wait_until_a_log_led_by_another_broker_is_recovered(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    partition.lead(1)
    await partition.open()
    partition.append(batch(), lambda _: None)
    storage.logs.answer()
    more = batch(5)
    storage.logs.logs[partition.stream].batches.append(StoredBatch(1, 6, bytes(more.batch)))
    if how == "another one tells":
        partition.lead(3, partition.leader_epoch + 1)
    else:

        async def refuse(*_: object) -> None:
            raise Fenced("term 1 is over, now 2")

        monkeypatch.setattr(storage.logs, "save_producers", refuse)
        partition.led_elsewhere()
        with pytest.raises(Fenced):
            await partition.save_producers()
    partition.check_readable(6)
    while partition.log_end == 1:
        await asyncio.sleep(0)
    partition.check_readable(6)
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(7)


async def test_a_write_in_flight_during_a_missed_membership_is_not_conclusive(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been taken before another broker opened the log."""
    writes = 0
    may_end = asyncio.Event()
    save = storage.logs.save_producers

    async def slow(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        await save(*arguments)
        await may_end.wait()

    monkeypatch.setattr(storage.logs, "save_producers", slow)
    partition.append(batch(), lambda _: None)
    storage.logs.answer()
    saving = asyncio.create_task(partition.save_producers())
    while not writes:
        await asyncio.sleep(0)
    partition.led_elsewhere()
    may_end.set()
    await saving
    partition.check_readable(6)
    await partition.save_producers()
    assert writes == 2
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(6)


async def test_a_snapshot_that_fails_in_an_unknown_way_is_tried_again() -> None:
    class Failing:
        tried = 0

        async def save_producers(self) -> None:
            self.tried += 1
            raise ValueError("nobody thought of this")

    snapshots, failing = SnapshotSchedule(), Failing()
    snapshots.add(failing)
    await snapshots.save()
    await snapshots.save()
    assert failing.tried == 2


async def test_a_server_that_ends_does_not_wait_for_ever_for_producers_to_be_written_down(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that is silent; what is not written down is in the newest batches."""

    async def silent(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(storage.logs, "save_producers", silent)
    snapshots = SnapshotSchedule()
    partition.append(sent(0, producer=1), lambda _: None)
    storage.logs.answer()
    snapshots.add(partition)
    with structlog.testing.capture_logs() as lines:
        await snapshots.save_last(within_s=0.01)
    [line] = lines
    assert "producer snapshot not stored" in line["event"]
