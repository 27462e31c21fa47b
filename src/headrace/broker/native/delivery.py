"""What one group was given of one partition: reads for the member that owns it, with XREADGROUP.

Entries once given are kept here until the member asks for what follows them: an answer that was lost on the network,
or that had no room for all, is served again from memory. Redis knows them too, as pending, and what memory loses
(by a restart, a rebalance, a lost connection, or because somebody else needs the room) comes from there.

A fetch offset is one of three things:
- the group's next, or in the gap before it: entries nobody was given yet (`>`);
- where the group stands (OffsetFetch), or, after a restart or a rebalance, between there and its next: what is pending
  for the member, then `>`;
- anything else: a seek. It is read without the group (XRANGE), whose position stays until a commit moves it. A seek
  back ends where the group's next begins.

While Redis takes no writes (its disk is full, say) nothing can be given. A member that has had all that its group was
given reads on without the group (XRANGE), and is given what it has read with its first fetch once Redis writes again. A
program in the group may be faster then: it is given entries that the member has read.

While a partition and its group change hands two brokers may read for it, each for the member's fetch that it has: the
old one for a fetch that waits there still, whose answer the client throws away. What it took is pending and was given
to nobody, so before each read of new entries Redis says whether that has happened.
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
    """Entries behind what is kept were removed before the member had them."""


class Mode(Enum):
    """Where the next entries come from."""

    NEW = "new"
    """What nobody was given yet."""
    PENDING = "pending"
    """What the member was given and has not committed; then NEW."""
    SEEK = "seek"
    """Another offset: every fetch is looked at anew."""


class Delivery:
    """One group's reading of one partition."""

    def __init__(
        self,
        group: str,
        partition: NativePartition,
        committed: Callable[[], int | None],
        told: Callable[[], int | None],
        most_pending: int,
        reads: ReadBudget,
    ) -> None:
        """Nothing has been read.

        Args:
            group: the group's name.
            partition: what it reads.
            committed: tells the group's last commit there.
            told: tells, once, what OffsetFetch has answered last.
            most_pending: from so many entries on that are pending, further ones are read without recording that.
            reads: what is kept here is counted in it, as read ahead: it goes first when memory is short.
        """
        self.group = group
        self.partition = partition
        self.member: str | None = None
        self.mode = Mode.SEEK
        self._committed = committed
        self._told = told
        self._most_pending = most_pending
        self._lock = asyncio.Lock()
        self._reads = reads
        self._held: ReadAheadBudget | None = None
        self._kept: deque[StoredBatch] = deque()
        self._start = 0
        """The last fetch offset: from here to `_next` everything the member was given is in `_kept`."""
        self._answered = 0
        """How far that fetch was answered."""
        self._next = -1
        self._given_until = 0
        """Where begins what nobody was given yet: the group may have been set back, with entries behind pending."""
        self._last_id = ""
        """The group's last delivered id, as it was left from here."""
        self._pending = 0
        self._ungiven = (0, -1)
        """What was read from the first of these offsets up to the second while nothing could be given."""
        self._back = False
        self._stale = False

    @property
    def sought_back(self) -> bool:
        """Whether the member is reading once more what lies behind the group: its commits take the group back."""
        return self._back and self.mode is Mode.SEEK

    def reset(self) -> None:
        """Forget what memory has: the next fetch is looked at as if it was the first."""
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
        """Somebody needs the memory, or the member has not come back for long."""
        if self._held is not None:
            self._release()
            self.reset()

    def _hold(self) -> None:
        """Count what is kept; where there is no room for it, Redis has to give it again."""
        self._release()
        size = sum(len(each.batch) for each in self._kept)
        if size:
            self._held = self._reads.read_ahead(size, self._let_go)
            if self._held is None:
                self._forget()
            else:
                self._held.came(size)

    def acknowledged(self, count: int) -> None:
        """So many entries are not pending any more."""
        self._pending = max(0, self._pending - count)

    def at_end(self, member: str, offset: int) -> bool:
        """Whether the member has had everything it could be given when it was asked last."""
        return (
            self.member == member
            and self.mode is Mode.NEW
            and not self._stale
            and offset == self._next
            and not self._lock.locked()
        )

    async def read(self, member: str, offset: int, limit: int, first: int | None = None) -> tuple[list[Buffer], int]:
        """Batches for `member` from `offset` on, about `limit` bytes.

        Raises:
            OffsetOutOfRange, UnknownTopic, StorageUnavailable, TopicError.
            NeedsRoom: the first record has more bytes than `first`; it was not given to the member.
        """
        # Whoever waits may go away; what Redis has recorded as given must be kept all the same.
        return await to_the_end(self._read(member, offset, limit, LARGEST_ENTRY if first is None else first))

    async def _read(self, member: str, offset: int, limit: int, first: int) -> tuple[list[Buffer], int]:
        async with self._lock:
            for attempt in range(_TRIES):
                try:
                    return await self._serve(member, offset, limit, first)
                except GroupGone:
                    # Destroyed by somebody: it is made again where the member stands.
                    self._forget()
                    if attempt + 1 == _TRIES:
                        raise TopicError(f"group {self.group!r} of {self.partition.stream} is gone again") from None
                except (StorageNotWritten, StorageNotReplicated):
                    # Refused as a whole: what memory has is still so.
                    found = await self._unrecorded(member, offset, limit, first)
                    if found is None:
                        raise
                    return found
                except TopicError:
                    # Perhaps entries were given that never came here: Redis knows which.
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
                # Nothing is left of what lay between: on with what nobody was given yet.
                self.mode = Mode.NEW
        self._drop_kept(offset)
        size = sum(len(each.batch) for each in self._kept)
        if size < limit and not await self._fill_or_stop(member, limit - size, first) and not self._kept:
            return take(await self.partition.read_to_end(offset, limit, first=first), limit)
        if not self._kept and self.mode is Mode.NEW:
            await self._pass_to_end(offset)
        return self._from_kept(offset, limit)

    async def _unrecorded(self, member: str, offset: int, limit: int, first: int) -> tuple[list[Buffer], int] | None:
        """What a member can have while Redis takes no writes: what is kept, or what lies behind all that was given.

        None: between them lies what was given to somebody. Who it was, and whether this is a seek, is asked by a write.
        """
        if self._kept and self.member == member and self._continues(offset):
            self._drop_kept(offset)
            if self._kept:
                return self._from_kept(offset, limit)
        partition = self.partition
        until = await partition.storage.given_until(partition.place, self.group)
        if until is None or offset < until:
            # A group that is made later begins where its member stands: what it had before would be nobody's.
            return None
        found = await partition.read_to_end(offset, limit, first=first)
        chunks, size = take(found, limit)
        if chunks and self.member == member:
            start, end = self._ungiven
            if not start <= offset <= end:
                # All that the group is given next, unless this is a seek.
                start, end = offset, -1
                if not await partition.storage.is_gap(partition.place, until, offset):
                    return chunks, size
            self._ungiven = (start, max(end, found[len(chunks) - 1].next_offset))
        return chunks, size

    async def _pass_to_end(self, offset: int) -> None:
        """Keep an empty batch that leads the member over entries that are gone or not served, up to the log end."""
        found = await self.partition.empty_to_end(offset, self._next)
        if found:
            [empty] = found
            self._kept.append(empty)
            self._next = empty.next_offset

    def _drop_kept(self, offset: int) -> None:
        """What lies before a fetch offset has arrived."""
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
        """Whether this asks for what follows the last answer, or for the same once more."""
        committed = self._committed()
        if self.mode is Mode.PENDING and committed is not None and committed > self._next:
            # What lies between was acknowledged before the member had it: it is not pending any more.
            return False
        return offset == self._start or self._answered <= offset <= self._next

    async def _place(self, member: str, offset: int) -> int | None:
        """Find out what a fetch offset is, and set the mode; for a seek back, where it ends."""
        partition = self.partition
        known = self.member == member
        committed, told = self._committed(), self._told()
        entered = await partition.storage.enter(
            partition.place, self.group, member, offset if committed is None else committed
        )
        # Given or not, up to there it has read all.
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
        stands = read_on or offset == told or (not known and committed is not None and offset >= committed)
        if not stands:
            stands = await self._stands(offset, known, committed)
        self.mode = Mode.PENDING if stands else Mode.SEEK
        self._back = not stands
        self._given_until = entered.next_offset
        return None if stands else entered.next_offset

    async def _stands(self, offset: int, known: bool, committed: int | None) -> bool:
        """Whether an offset that was passed already is where the group stands, or, for a new owner, behind that."""
        partition = self.partition
        position = await partition.storage.position(partition.place, self.group, committed)
        if position is None:
            return False
        if offset >= position:
            return offset == position or not known
        return await partition.storage.is_gap(partition.place, offset, position)

    async def _fill(self, member: str, limit: int, first: int) -> bool:
        """Read about `limit` bytes behind what is kept; false where too much is pending for more to be recorded."""
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
            # Whoever asks for what was read meanwhile goes back from here on.
            self._ungiven = (0, -1)
            self._pending += read.entries
            self._last_id = read.last_id or self._last_id
            limit -= self._keep_new(read)
            if self._is_large(read) or not read.more:
                break
        return True

    def _is_large(self, read: NativeRead) -> bool:
        """Whether what comes next has no room behind what is kept; raises NeedsRoom where that is nothing."""
        if read.wants and not self._kept:
            raise NeedsRoom(read.wants)
        return read.wants > 0

    async def _catch_up(self, member: str) -> None:
        """Another broker took entries behind what is kept: they are pending, and come before what is new."""
        partition = self.partition
        entered = await partition.storage.enter(partition.place, self.group, member, self._next)
        self._pending, self._last_id, self._given_until = entered.pending, entered.last_id, entered.next_offset
        self.mode = Mode.PENDING

    def _keep_new(self, read: NativeRead) -> int:
        """Keep entries that nobody had yet, unless others before them are missing; how many bytes."""
        start, before = self._next, len(self._kept)
        size = self._keep(read)
        try:
            self.partition.check_place(start, read.extent)
        except OffsetOutOfRange:
            if not before:
                raise
            # What was read until here is answered first; Redis knows the rest as pending.
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
