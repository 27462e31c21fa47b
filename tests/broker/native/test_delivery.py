"""What a group's member is given of a native partition, and what of it memory keeps. The storage is a list."""

from typing import cast

import msgspec
import pytest

from headrace.broker.log_ports import NativeStorage
from headrace.broker.native.delivery import Delivery, Mode
from headrace.broker.native.partition import NativePartition
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.records.build import build
from headrace.records.walk import records
from headrace.topics.errors import StorageNotReplicated, StorageNotWritten, StorageUnavailable
from headrace.topics.model import StoredBatch
from headrace.topics.native import Entered, Extent, GroupGone, GroupPassed, NativeRead, NativeStream

BITS = 10
LARGE = 300_000


class Stream:
    """One Redis Stream and one consumer group, as far as a delivery asks: entries are offsets with sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.entries = {(number + 1) << BITS: size for number, size in enumerate(sizes)}
        self.last = -1  # the group's last delivered offset
        self.pending: dict[int, str] = {}
        self.calls: list[str] = []
        self.fails: list[Exception] = []
        self.refusal: StorageUnavailable | None = None
        """Why Redis takes no writes."""

    def ends(self) -> Extent:
        offsets = list(self.entries)
        return Extent(0, offsets[-1] + 1 if offsets else 0, len(offsets), len(offsets))

    def _found(self, offsets: list[int], limit: int, first: int) -> NativeRead:
        taken: list[int] = []
        wants = self.entries[offsets[0]] if offsets else 0
        if wants > first:
            return NativeRead([], 0, True, (), 0, 0, self.ends(), wants=wants)
        for offset in offsets:
            if taken and sum(self.entries[each] for each in taken) + self.entries[offset] > limit:
                break
            taken.append(offset)
        return NativeRead(
            batches=[StoredBatch(offset, offset + 1, _batch(offset, self.entries[offset])) for offset in taken],
            entries=len(taken),
            more=len(taken) < len(offsets),
            unfit=(),
            first=taken[0] if taken else 0,
            following=taken[-1] + 1 if taken else 0,
            extent=self.ends(),
            last_id=str(taken[-1]) if taken else "",
        )

    def _asked(self, name: str) -> None:
        self.calls.append(name)
        if self.fails:
            raise self.fails.pop()

    def _written(self, name: str) -> None:
        self._asked(name)
        if self.refusal is not None:
            raise self.refusal

    async def read(
        self, stream: NativeStream, offset: int, limit: int, before: int | None = None, *, first: int
    ) -> NativeRead:
        self._asked("read")
        return self._found(
            [each for each in self.entries if offset <= each and (before is None or each < before)], limit, first
        )

    async def read_new(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        count: int,
        limit: int,
        *,
        last_id: str,
        at: int,
        first: int,
    ) -> NativeRead:
        self._written("new")
        if last_id != str(self.last) and any(at <= each <= self.last for each in self.pending):
            raise GroupPassed
        found = self._found([each for each in self.entries if each > self.last][:count], limit, first)
        for each in found.batches:
            self.pending[each.base_offset] = member
            self.last = each.base_offset
        return msgspec.structs.replace(found, batches=[each for each in found.batches if each.base_offset >= at])

    async def read_pending(
        self, stream: NativeStream, group: str, member: str, offset: int, limit: int, before: int, *, first: int
    ) -> NativeRead:
        self._written("pending")
        mine = [each for each, who in self.pending.items() if who == member and offset <= each < before]
        return self._found(sorted(mine), limit, first)

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        self._written("enter")
        self.pending = dict.fromkeys(self.pending, member)
        if self.last < 0:
            self.last = create_at - 1
        return Entered(str(self.last), self.last + 1, len(self.pending))

    async def given_until(self, stream: NativeStream, group: str) -> int | None:
        return None if self.last < 0 else self.last + 1

    async def position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        return min(self.pending, default=committed)

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        after = int(start) + 1 if isinstance(start, str) else start
        return not any(after <= each < end for each in self.entries)

    def watch(self, *_: object) -> None:
        pass


def _batch(offset: int, size: int) -> bytes:
    batch = build([(None, b"x" * size, 1, ())])
    batch[:8] = offset.to_bytes(8, "big")
    return bytes(batch)


class Reading:
    """A delivery over a stream, and the one member that reads it."""

    def __init__(self, sizes: list[int], budget: int = 8 << 20, most_pending: int = 1_000) -> None:
        self.stream = Stream(sizes)
        self.offsets = list(self.stream.entries)
        self.reads = ReadBudget(budget)
        self.committed: int | None = None
        native = cast("NativeStorage", self.stream)
        place = NativeStream("s", BITS)
        self.partition = NativePartition("t", 0, place, self.stream.ends(), native)
        self.delivery = Delivery("g", self.partition, lambda: self.committed, lambda: None, most_pending, self.reads)

    async def read(self, offset: int, limit: int = 1 << 20, member: str = "m", first: int | None = None) -> list[int]:
        chunks, size = await self.delivery.read(member, offset, limit, first)
        assert size == sum(map(len, chunks))
        return [record.offset for chunk in chunks for record in records(chunk, int.from_bytes(bytes(chunk[:8]), "big"))]

    def asked(self) -> list[str]:
        calls, self.stream.calls = self.stream.calls, []
        return calls


async def test_records_without_room_are_not_delivered() -> None:
    group = Reading([10, LARGE, 10, LARGE])
    small = len(_batch(0, 10))
    first, large, other, _ = group.offsets
    assert await group.read(0, 1_000, first=1_000) == [first], "the large one does not come behind it"
    for _ in range(2):
        with pytest.raises(NeedsRoom) as wanted:
            await group.read(first + 1, 1_000, first=1_000)
        assert (wanted.value.size, list(group.stream.pending)) == (LARGE, [first])
    assert await group.read(first + 1, 1_000, first=LARGE) == [large]
    assert await group.read(large + 1, small, first=small) == [other]
    group.delivery.reset()
    group.committed = large
    with pytest.raises(NeedsRoom):
        await group.read(large, 1_000, first=1_000)
    assert await group.read(large, 1_000, first=LARGE) == [large], "nor is it when it is pending"
    assert list(group.stream.pending) == [first, large, other]


async def test_delivered_entries_are_served_again_from_memory() -> None:
    group = Reading([10, 10, 10])
    assert await group.read(0) == group.offsets
    assert group.asked() == ["enter", "new"]
    assert await group.read(0) == group.offsets
    assert group.asked() == ["new"], "whether there is more for the room that is left"
    assert await group.read(group.offsets[-1] + 1) == []
    assert group.stream.pending == dict.fromkeys(group.offsets, "m")


async def test_an_answer_that_has_no_room_for_all_leaves_the_rest_for_the_next() -> None:
    group = Reading([400] * 6)
    found, at = [], 0
    while part := await group.read(at, limit=1_000):
        found += part
        at = part[-1] + 1
    assert found == group.offsets


async def test_what_is_kept_is_counted_until_the_member_asks_for_what_follows() -> None:
    group = Reading([LARGE, 10])
    assert await group.read(0) == group.offsets
    assert LARGE < group.reads.used < 2 * LARGE
    assert await group.read(group.offsets[-1] + 1) == []
    assert group.reads.used == 0


async def test_others_who_need_the_memory_get_it_and_redis_gives_the_entries_again() -> None:
    group = Reading([LARGE] * 2, budget=2_000_000)
    assert await group.read(0) == group.offsets
    assert group.reads.grant(2_000_000, 1_900_000) == 1_900_000, "what is kept makes room"
    group.reads.release(1_900_000)
    assert group.reads.used == 0
    group.asked()
    assert await group.read(0) == group.offsets
    assert group.asked()[:2] == ["enter", "pending"], "the same entries, not what follows them"
    assert await group.read(group.offsets[-1] + 1) == []


async def test_where_there_is_no_room_nothing_is_kept_and_nothing_is_lost() -> None:
    group = Reading([LARGE] * 4)
    group.reads.take(group.reads.limit)
    found, at = [], 0
    while part := await group.read(at, limit=2 * LARGE + 1_000):
        found += part
        at = part[-1] + 1
    assert found == group.offsets
    assert group.reads.used == group.reads.limit


async def test_another_owner_is_given_what_was_not_committed() -> None:
    group = Reading([10] * 4)
    assert await group.read(0) == group.offsets
    group.committed = group.offsets[2]
    group.stream.pending = dict.fromkeys(group.offsets[2:], "m")
    assert await group.read(group.offsets[2], member="other") == group.offsets[2:]
    assert {*group.stream.pending.values()} == {"other"}


async def test_a_seek_back_reads_without_the_group_until_its_next() -> None:
    group = Reading([10] * 4)
    assert await group.read(0) == group.offsets
    group.committed = group.offsets[-1] + 1
    group.stream.pending = {}
    assert await group.read(group.offsets[1]) == group.offsets[1:]
    assert group.delivery.mode is Mode.SEEK
    assert group.delivery.sought_back
    assert group.stream.pending == {}


async def test_no_more_is_recorded_as_pending_than_may_be() -> None:
    group = Reading([10] * 20, most_pending=5)
    found, at = [], 0
    while part := await group.read(at):
        found += part
        at = part[-1] + 1
    assert found == group.offsets
    assert len(group.stream.pending) <= 5


async def test_a_lost_answer_is_looked_up_in_redis() -> None:
    group = Reading([10] * 3)
    assert await group.read(0) == group.offsets
    group.stream.entries[9 << BITS] = 10
    group.stream.fails.append(StorageUnavailable("lost"))
    with pytest.raises(StorageUnavailable):
        await group.read(group.offsets[-1] + 1)
    group.asked()
    assert await group.read(group.offsets[-1] + 1) == [9 << BITS]
    assert group.asked()[0] == "enter"


async def test_a_destroyed_group_is_created_again() -> None:
    group = Reading([10] * 3)
    assert await group.read(0) == group.offsets
    group.stream.fails.append(GroupGone("destroyed"))
    group.stream.last, group.stream.pending = -1, {}
    group.asked()
    assert await group.read(group.offsets[-1] + 1) == []
    assert group.asked() == ["new", "enter", "new"]


UNWRITABLE = pytest.mark.parametrize("refusal", [StorageNotWritten("MISCONF"), StorageNotReplicated("NOREPLICAS")])
SOME = 400
LIMIT = 2 * len(_batch(0, SOME))
"""Room for two records of that size."""


@UNWRITABLE
async def test_while_redis_takes_no_writes_a_member_reads_on_and_is_given_that_afterwards(
    refusal: StorageUnavailable,
) -> None:
    group = Reading([SOME] * 8)
    assert await group.read(0, LIMIT) == group.offsets[:2]
    given = dict(group.stream.pending)
    group.stream.refusal = refusal
    for start in (2, 4):
        for _ in range(2):
            # An answer was lost.
            assert await group.read(group.offsets[start - 1] + 1, LIMIT) == group.offsets[start : start + 2]
    assert group.stream.pending == given
    group.stream.refusal = None
    assert await group.read(group.offsets[5] + 1) == group.offsets[6:]
    assert list(group.stream.pending) == group.offsets
    assert group.delivery.mode is Mode.NEW


@UNWRITABLE
async def test_uncommitted_records_of_a_member_go_to_the_next(
    refusal: StorageUnavailable,
) -> None:
    group = Reading([SOME] * 4)
    assert await group.read(0, LIMIT) == group.offsets[:2]
    group.committed = group.offsets[1]
    group.stream.pending = {group.offsets[1]: "m"}
    group.stream.refusal = refusal
    assert await group.read(group.offsets[2], LIMIT) == group.offsets[2:]
    group.stream.refusal = None
    assert await group.read(group.offsets[1], member="other") == group.offsets[1:]


@UNWRITABLE
async def test_pending_entries_are_served_while_redis_refuses_writes(refusal: StorageUnavailable) -> None:
    group = Reading([SOME] * 4)
    assert await group.read(0) == group.offsets
    group.asked()
    group.stream.refusal = refusal
    for at, start in ((0, 0), (group.offsets[1] + 1, 2)):
        assert await group.read(at, LIMIT) == group.offsets[start : start + 2]
    assert await group.read(group.offsets[-1] + 1) == []
    assert "enter" not in group.asked()


@UNWRITABLE
async def test_possibly_foreign_records_wait_until_redis_takes_writes(refusal: StorageUnavailable) -> None:
    """Entries of a program or an earlier member; a missing group would begin after the records that were read."""
    group = Reading([SOME] * 6)
    group.stream.refusal = refusal
    with pytest.raises(type(refusal)):
        await group.read(0)
    group.stream.refusal = None
    assert await group.read(0, LIMIT) == group.offsets[:2]
    group.stream.last = group.offsets[3]
    group.stream.refusal = refusal
    with pytest.raises(type(refusal)):
        await group.read(group.offsets[2])
    assert await group.read(group.offsets[4]) == group.offsets[4:], "a seek forward, as ever without the group"
    group.stream.refusal = None
    assert await group.read(group.offsets[5]) == group.offsets[5:]
    assert group.delivery.mode is Mode.NEW, "nothing lay between"


async def test_records_passed_by_a_seek_are_not_taken_for_read() -> None:
    group = Reading([SOME] * 6)
    assert await group.read(0, LIMIT) == group.offsets[:2]
    group.stream.refusal = StorageNotWritten("MISCONF")
    assert await group.read(group.offsets[4], LIMIT // 2) == [group.offsets[4]]
    group.stream.refusal = None
    assert await group.read(group.offsets[5]) == [group.offsets[5]]
    assert list(group.stream.pending) == group.offsets[:2]
    assert group.delivery.mode is Mode.SEEK


async def test_a_seek_back_to_delivered_records_is_a_seek() -> None:
    """The answer that came while Redis took no writes was lost, so the member asked for the same once more."""
    group = Reading([SOME] * 6)
    assert await group.read(0, LIMIT) == group.offsets[:2]
    at = group.offsets[1] + 1
    group.stream.refusal = StorageNotWritten("MISCONF")
    assert await group.read(at, LIMIT) == group.offsets[2:4]
    group.stream.refusal = None
    assert await group.read(at) == group.offsets[2:]
    group.committed = group.offsets[-1] + 1
    group.stream.pending = {}
    assert await group.read(group.offsets[3]) == group.offsets[3:]
    assert group.delivery.mode is Mode.SEEK
