"""Deliver one partition to the group member that owns it, with XREADGROUP.

Delivered entries stay in memory until the member fetches past them, so that a lost or partial response can be repeated.
Redis also has them as pending, for example after a restart, a rebalance or memory pressure.

A fetch offset has one of three meanings:
- The group's next offset, or the gap before it. New entries follow (`>`).
- The committed offset (OffsetFetch), or after a restart or rebalance an offset between it and the next one. The
member's pending entries follow, then `>`.
- Any other offset is a seek, read without the group (XRANGE); only a commit moves the group's offset. A seek back ends
at the group's next offset.

While Redis accepts no writes, for example with a full disk, a member that is up to date reads on with XRANGE. Its first
fetch afterwards records these entries as delivered. Another program in the group may receive them first.

While a partition and its group change brokers, both may read for it. The old one may still serve a waiting fetch whose
response the client discards. Its entries are pending but undelivered, so Redis checks for them before each read of new
ones.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum

from headrace.aio.tasks import to_the_end
from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.cache import Buffer, take
from headrace.broker.runtime.budget import NeedsRoom, ReadAheadBudget, ReadBudget
from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.errors import OffsetOutOfRange, StorageNotReplicated, StorageNotWritten, TopicError
from headrace.topics.model import StoredBatch
from headrace.topics.native import GroupGone, GroupPassed, NativeRead

_TRIES = 2


class _Missing(Exception):
    """Entries after the kept ones were removed before delivery."""


class Mode(Enum):
    """Source of the next entries."""

    NEW = "new"
    """Undelivered entries."""
    PENDING = "pending"
    """Entries delivered to the member but not committed, then NEW."""
    SEEK = "seek"
    """Another offset. Every fetch is classified again."""


class Delivery:
    """The delivery of one partition to one group."""

    def __init__(
        self,
        group: str,
        partition: NativePartition,
        committed: Callable[[], int | None],
        reported: Callable[[], int | None],
        most_pending: int,
        reads: ReadBudget,
    ) -> None:
        """`reported` returns once the last offset in an OffsetFetch response.

        From `most_pending` pending entries, reads are no longer recorded. `reads` is the budget of the kept entries,
        which are dropped first.
        """
        self.group = group
        self.partition = partition
        self.member: str | None = None
        self.mode = Mode.SEEK
        self._committed = committed
        self._reported = reported
        self._most_pending = most_pending
        self._lock = asyncio.Lock()
        self._reads = reads
        self._held: ReadAheadBudget | None = None
        self._kept: deque[StoredBatch] = deque()
        self._start = 0
        """The last fetch offset. `_kept` has everything delivered from here to `_next`."""
        self._answered = 0
        """End of the response to that fetch."""
        self._next = -1
        self._given_until = 0
        """Start of the undelivered entries. Later ones may be pending if the group was reset back."""
        self._last_id = ""
        """The group's last delivered id, as set from here."""
        self._pending = 0
        self._ungiven = (0, -1)
        """Range of offsets that were read while Redis could not record deliveries."""
        self._back = False
        self._stale = False

    @property
    def sought_back(self) -> bool:
        """Whether the member reads earlier entries again, so that commits move the group back."""
        return self._back and self.mode is Mode.SEEK

    def reset(self) -> None:
        """Drop the memory state, so that the next fetch is like the first."""
        self._stale = True
        if not self._lock.locked():
            self._forget()

    def _forget(self) -> None:
        self._release()
        self.member = None
        self.mode = Mode.SEEK
        self._kept.clear()
        self._start, self._answered, self._next = 0, 0, -1
        self._ungiven = (0, -1)
        self._stale = False

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.drop()

    def _let_go(self) -> None:
        if self._held is not None:
            self._release()
            self.reset()

    def _hold(self) -> None:
        """Charge the kept entries to the budget. Without room, Redis must deliver them again."""
        self._release()
        size = sum(len(each.batch) for each in self._kept)
        if size:
            self._held = self._reads.read_ahead(size, self._let_go)
            if self._held is None:
                self._forget()
            else:
                self._held.came(size)

    def acknowledged(self, count: int) -> None:
        """Subtract acknowledged entries from the pending ones."""
        self._pending = max(0, self._pending - count)

    def at_end(self, member: str, offset: int) -> bool:
        """Whether the member had everything available at its last fetch."""
        return (
            self.member == member
            and self.mode is Mode.NEW
            and not self._stale
            and offset == self._next
            and not self._lock.locked()
        )

    async def read(self, member: str, offset: int, limit: int, first: int | None = None) -> tuple[list[Buffer], int]:
        """Return about `limit` bytes of batches for `member` from `offset`.

        Raises:
            OffsetOutOfRange, UnknownTopic, StorageUnavailable, TopicError: nothing can be read.
            NeedsRoom: the first record exceeds `first` bytes and was not delivered.
        """
        # The client may disconnect, but delivered entries must be kept.
        return await to_the_end(self._read(member, offset, limit, LARGEST_ENTRY if first is None else first))

    async def _read(self, member: str, offset: int, limit: int, first: int) -> tuple[list[Buffer], int]:
        async with self._lock:
            for attempt in range(_TRIES):
                try:
                    return await self._serve(member, offset, limit, first)
                except GroupGone:
                    # The group was destroyed. Create it at the member's offset.
                    self._forget()
                    if attempt + 1 == _TRIES:
                        raise TopicError(f"group {self.group!r} of {self.partition.stream} is gone again") from None
                except (StorageNotWritten, StorageNotReplicated):
                    # Redis refused the whole call, so memory is still valid.
                    found = await self._unrecorded(member, offset, limit, first)
                    if found is None:
                        raise
                    return found
                except TopicError:
                    # Redis may have delivered entries that did not arrive. It knows which.
                    self._forget()
                    raise
                finally:
                    if self._stale:
                        self._forget()
                    self._hold()
            raise AssertionError("not reached")

    async def _serve(self, member: str, offset: int, limit: int, first: int) -> tuple[list[Buffer], int]:
        self.partition.check_readable(offset)
        if self.member != member or self.mode is Mode.SEEK or not self._continues(offset):
            before = await self._place(member, offset)
            if self.mode is Mode.SEEK:
                if before is None:
                    return take(await self.partition.read_to_end(offset, limit, first=first), limit)
                found = await self.partition.read_range(offset, limit, before, first=first)
                if found:
                    return take(found, limit)
                # Those in between are gone, so continue with undelivered ones.
                self.mode = Mode.NEW
        self._drop_kept(offset)
        size = sum(len(each.batch) for each in self._kept)
        if size < limit and not await self._fill_or_stop(member, limit - size, first) and not self._kept:
            return take(await self.partition.read_to_end(offset, limit, first=first), limit)
        if not self._kept and self.mode is Mode.NEW:
            await self._pass_to_end(offset)
        return self._from_kept(offset, limit)

    async def _unrecorded(self, member: str, offset: int, limit: int, first: int) -> tuple[list[Buffer], int] | None:
        """Return kept entries or those after all delivered ones while Redis accepts no writes.

        None if entries in between were delivered: only a write shows to which member.
        """
        if self._kept and self.member == member and self._continues(offset):
            self._drop_kept(offset)
            if self._kept:
                return self._from_kept(offset, limit)
        partition = self.partition
        until = await partition.storage.given_until(partition.place, self.group)
        if until is None or offset < until:
            # A recreated group starts at its member's offset, so earlier entries would be skipped.
            return None
        found = await partition.read_to_end(offset, limit, first=first)
        chunks, size = take(found, limit)
        if chunks and self.member == member:
            start, end = self._ungiven
            if not start <= offset <= end:
                # Everything the group receives next, unless this is a seek.
                start, end = offset, -1
                if not await partition.storage.is_gap(partition.place, until, offset):
                    return chunks, size
            self._ungiven = (start, max(end, found[len(chunks) - 1].next_offset))
        return chunks, size

    async def _pass_to_end(self, offset: int) -> None:
        found = await self.partition.empty_to_end(offset, self._next)
        if found:
            [empty] = found
            self._kept.append(empty)
            self._next = empty.next_offset

    def _drop_kept(self, offset: int) -> None:
        while self._kept and self._kept[0].next_offset <= offset:
            self._kept.popleft()
        self._start = offset

    def _from_kept(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        chunks, size = take(self._kept, limit)
        self._answered = self._kept[len(chunks) - 1].next_offset if chunks else offset
        return chunks, size

    async def _fill_or_stop(self, member: str, limit: int, first: int) -> bool:
        try:
            return await self._fill(member, limit, first)
        except _Missing:
            return True

    def _continues(self, offset: int) -> bool:
        committed = self._committed()
        if self.mode is Mode.PENDING and committed is not None and committed > self._next:
            # Entries in between were acknowledged before delivery and are no longer pending.
            return False
        return offset == self._start or self._answered <= offset <= self._next

    async def _place(self, member: str, offset: int) -> int | None:
        """Classify a fetch offset and set the mode. Return the end of a seek back."""
        partition = self.partition
        known = self.member == member
        committed, reported = self._committed(), self._reported()
        entered = await partition.storage.enter(
            partition.place, self.group, member, offset if committed is None else committed
        )
        read_on = known and self._ungiven[0] <= offset <= self._ungiven[1]
        self._ungiven = (0, -1)
        self._kept.clear()
        self._back = False
        self._start = self._answered = self._next = offset
        self.member, self._pending, self._last_id = member, entered.pending, entered.last_id
        if offset >= entered.next_offset:
            gap = read_on or await partition.storage.is_gap(partition.place, entered.last_id, offset)
            self.mode = Mode.NEW if gap else Mode.SEEK
            return None
        stands = read_on or offset == reported or (not known and committed is not None and offset >= committed)
        if not stands:
            stands = await self._stands(offset, known, committed)
        self.mode = Mode.PENDING if stands else Mode.SEEK
        self._back = not stands
        self._given_until = entered.next_offset
        return None if stands else entered.next_offset

    async def _stands(self, offset: int, known: bool, committed: int | None) -> bool:
        partition = self.partition
        position = await partition.storage.position(partition.place, self.group, committed)
        if position is None:
            return False
        if offset >= position:
            return offset == position or not known
        return await partition.storage.is_gap(partition.place, offset, position)

    async def _fill(self, member: str, limit: int, first: int) -> bool:
        """Read about `limit` bytes after the kept entries. Return False if too many are pending to record more."""
        storage, place = self.partition.storage, self.partition.place
        while limit > 0:
            most = limit if self._kept else first
            if self.mode is Mode.PENDING:
                read = await storage.read_pending(
                    place, self.group, member, self._next, limit, self._given_until, first=most
                )
                limit -= self._keep(read)
                if self._is_large(read):
                    break
                if not read.more:
                    self.mode = Mode.NEW
                continue
            room = self._most_pending - self._pending
            if room <= 0:
                self.mode = Mode.SEEK
                return bool(self._kept)
            try:
                read = await storage.read_new(
                    place, self.group, member, room, limit, last_id=self._last_id, at=self._next, first=most
                )
            except GroupPassed:
                await self._catch_up(member)
                continue
            # A fetch of these entries counts as a seek back from here on.
            self._ungiven = (0, -1)
            self._pending += read.entries
            self._last_id = read.last_id or self._last_id
            limit -= self._keep_new(read)
            if self._is_large(read) or not read.more:
                break
        return True

    def _is_large(self, read: NativeRead) -> bool:
        """Whether the next entry does not fit after the kept ones. Raise NeedsRoom if none are kept."""
        if read.wants and not self._kept:
            raise NeedsRoom(read.wants)
        return read.wants > 0

    async def _catch_up(self, member: str) -> None:
        partition = self.partition
        entered = await partition.storage.enter(partition.place, self.group, member, self._next)
        self._pending, self._last_id, self._given_until = entered.pending, entered.last_id, entered.next_offset
        self.mode = Mode.PENDING

    def _keep_new(self, read: NativeRead) -> int:
        """Keep new entries unless earlier ones are missing. Return their bytes."""
        start, before = self._next, len(self._kept)
        size = self._keep(read)
        try:
            self.partition.check_place(start, read.extent)
        except OffsetOutOfRange:
            if not before:
                raise
            # Serve those read so far first. Redis has the others as pending.
            while len(self._kept) > before:
                self._kept.pop()
            self._next = start
            raise _Missing from None
        return size

    def _keep(self, read: NativeRead) -> int:
        self.partition.report(read)
        size = 0
        for each in read.batches:
            self._kept.append(each)
            size += len(each.batch)
        if read.entries:
            self._next = max(self._next, read.following)
        return size
