"""Two brokers that read for one group's member at once, over a real Redis: while a partition changes hands."""

from typing import Any

import pytest
from tests.broker.native.brokers import over
from tests.conftest import OpenStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.native.delivery import Delivery
from headrace.broker.native.partition import NativePartition
from headrace.broker.native.stream_manager import natives_of
from headrace.broker.runtime.budget import ReadBudget
from headrace.membership.view import Member, View
from headrace.records.build import build
from headrace.records.walk import records
from headrace.storage.layout.native import offset_at
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import BehindRefused, StorageUnavailable
from headrace.topics.model import Append, Appended
from headrace.topics.native import NativeRead, NativeStream

KEY, GROUP = "plain", "group"
STREAM = NativeStream(KEY, 10)
ALL = 1 << 20


class Reading:
    """One broker's reading for the group's members."""

    def __init__(self, partition: NativePartition) -> None:
        self.committed: int | None = None
        self._partition = partition
        self._delivery = Delivery(GROUP, partition, lambda: self.committed, lambda: None, 100_000, ReadBudget(1 << 24))

    @classmethod
    async def over(cls, storage: RedisStorage) -> "Reading":
        extent = await storage.native.open(STREAM)
        return cls(NativePartition("t", 0, STREAM, extent, storage.native))

    async def read(self, offset: int, limit: int = ALL, member: str = "m") -> list[int]:
        chunks, _ = await self._delivery.read(member, offset, limit)
        return [record.offset for chunk in chunks for record in records(chunk, int.from_bytes(bytes(chunk[:8]), "big"))]

    def close(self) -> None:
        self._partition.close()


@pytest.fixture
async def brokers(open_storage: OpenStorage) -> Any:
    """Two of them."""
    storage = await open_storage()
    found = [await Reading.over(storage) for _ in range(2)]
    yield found
    for each in found:
        each.close()


def add(raw: Any, count: int) -> list[int]:
    """More entries; their offsets."""
    return [offset_at(raw.xadd(KEY, {"value": "x"}).encode()) for _ in range(count)]


@pytest.mark.parametrize("old_member", ["m", "left"])
async def test_undelivered_records_of_one_broker_are_delivered_by_the_other(
    raw: Any, brokers: list[Reading], old_member: str
) -> None:
    """The old broker has a fetch that waits there still; its answer is thrown away, since the client has moved on."""
    old, new = brokers
    first = add(raw, 3)
    assert await old.read(0, member=old_member) == first
    at = first[-1] + 1
    assert await old.read(at, member=old_member) == []
    old.committed = new.committed = at
    assert raw.xack(KEY, GROUP, *(raw.xrange(KEY)[n][0] for n in range(3))) == 3
    assert await new.read(at) == [], "here everything up to now was given"
    taken = add(raw, 1_298)
    lost: list[int] = []
    while part := await old.read(lost[-1] + 1 if lost else at, member=old_member):
        lost += part
    assert lost == taken
    later = add(raw, 10)
    seen: list[int] = []
    while part := await new.read(seen[-1] + 1 if seen else at):
        seen += part
    assert seen == taken + later


async def test_entries_delivered_to_a_program_of_the_group_belong_to_it(raw: Any, brokers: list[Reading]) -> None:
    reader = brokers[0]
    first = add(raw, 3)
    assert await reader.read(0) == first
    add(raw, 5)
    assert len(raw.xreadgroup(GROUP, "program", {KEY: ">"})[0][1]) == 5
    later = add(raw, 2)
    assert await reader.read(first[-1] + 1) == later


async def test_a_concurrent_reset_of_the_group_duplicates_nothing_in_one_answer(
    raw: Any, open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old commit comes late, say, while a member's fetch takes entries in several goes."""
    storage = await open_storage()
    reading = await Reading.over(storage)
    first = add(raw, 900)
    read_new, back = storage.native.read_new, raw.xrange(KEY)[450][0]

    async def set_back_after_it(*args: Any, **options: Any) -> NativeRead:
        found = await read_new(*args, **options)
        if found.last_id and found.more:
            raw.xgroup_setid(KEY, GROUP, back)
        return found

    monkeypatch.setattr(storage.native, "read_new", set_back_after_it)
    seen = await reading.read(0)
    assert seen == first
    reading.close()


@pytest.mark.parametrize("before", [7, 8])
async def test_a_new_producer_begins_with_what_was_refused_also_behind_a_view_that_was_missed(
    open_storage: OpenStorage, before: int
) -> None:
    """Its second batch is on its way. Had its first one come again at another broker, Redis would know it."""
    me = Member(node_id=1, incarnation="a", process="", host="here", port=1)
    ownership = Ownership(1)
    ownership.adopt(View(7, (me,)), inside=True)
    storage = await open_storage(7, alone=False)
    broker = over(storage, ownership)
    live = await broker.topics.create("t", 1, {"headrace.storage": "native"})
    told: list[Appended | Exception] = []

    def send(sequence: int) -> None:
        made = build([(None, b"v", 5, ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        live.partitions[0].append(Append(made, 1, 5, 7, 0, sequence), told.append)

    live.partitions[0].paused = True
    with pytest.raises(StorageUnavailable):
        send(0)
    live.partitions[0].paused = False
    ownership.adopt(View(9, (me,), before), inside=True)
    storage.fence.number = 9
    broker.view_changed()
    send(1)
    send(0)
    send(1)
    (partition,) = natives_of(live.partitions)
    await storage.native.settle(partition.place)
    assert [type(each) for each in told] == [BehindRefused, Appended, Appended]
    await broker.stop()
