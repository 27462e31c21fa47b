"""Copies of dead letters of a native topic (KIP-1191): entries of the consumer `topics.native.DEAD`.

The server acknowledges an entry only after the dead letter topic has its copy. Until then the entry is pending in
Redis, so that the next server continues.
"""

from collections import deque
from collections.abc import Callable

from headrace.broker.native.partition import NativePartition
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.broker.sharing.dead_letters import (
    MOST_BYTES,
    MOST_RECORDS,
    Copying,
    DeadLetterTopics,
    Letter,
    empty,
)
from headrace.groups.configs import GroupConfig
from headrace.records.walk import records
from headrace.topics.errors import TopicError
from headrace.topics.native import Delivered, NativeRead


class NativeDeadLetters:
    """Copies the dead letters of one native partition in one share group, one batch at a time."""

    def __init__(
        self,
        group: str,
        partition: NativePartition,
        topics: DeadLetterTopics,
        config: Callable[[], GroupConfig],
        clock: Clock,
        large_reads: ReadBudget,
        copied: Callable[[], None],
    ) -> None:
        """`copied` is called after each batch, when nothing is left, and when copies fail."""
        self._group = group
        self._partition = partition
        self._topics = topics
        self._large_reads = large_reads
        self._copied = copied
        self._letters: deque[Delivered] = deque()
        """Known dead letters that wait."""
        self._copying = Copying(group, partition, topics, config, clock, self._step, copied)
        topics.add(self)

    @property
    def waiting(self) -> int:
        """Number of records that wait for their copies, as far as known."""
        return sum(last - first + 1 for first, last, _ in self._letters)

    @property
    def busy(self) -> bool:
        """Whether copies are in progress and do not fail."""
        return self._copying.active and not self._copying.failing

    def look(self) -> None:
        """Look for dead letters, and copy them."""
        self._copying.begin()

    def close(self) -> None:
        """Stop. The next server, or the next session of the group here, continues."""
        self._letters.clear()
        self._copying.close()

    async def _step(self, config: GroupConfig) -> bool:
        shares, place = self._partition.storage.shares, self._partition.place
        if self._partition.deleted:
            return False
        if not self._letters:
            self._letters.extend(await shares.dead_letters(place, self._group))
        if not self._letters:
            return False
        if config.dead_letter_topic:
            chunk: list[Delivered] = []

            async def read() -> list[Letter]:
                found, read_of = await self._read(copy=config.dead_letter_copy)
                chunk.extend(read_of)
                return found

            await self._topics.copy_read(self._group, self._partition, config, read)
        else:
            chunk = [_first(letters, MOST_RECORDS) for letters in list(self._letters)[:MOST_RECORDS]]
        await shares.bury(place, self._group, chunk)
        self._remove(chunk)
        self._copied()
        return True

    async def _read(self, *, copy: bool) -> tuple[list[Letter], list[Delivered]]:
        """Return records for one batch, and the ranges that they cover."""
        found: list[Letter] = []
        ranges: list[Delivered] = []
        size = 0
        for letters in list(self._letters):
            room = MOST_RECORDS - len(found)
            part = _first(letters, room)
            if copy:
                entries = await self._entries(part, MOST_BYTES - size, alone=not ranges)
                if entries.wants and not ranges:
                    raise TopicError(f"offset {part.first} of {self._partition.topic} cannot be read now")
                if entries.wants:
                    break
                for each in entries.batches:
                    found += [
                        (record, part.deliveries)
                        for record in records(each.batch, each.base_offset)
                        if part.first <= record.offset <= part.last
                    ]
                    size += len(each.batch)
                if entries.more and entries.following:
                    part = part._replace(last=min(part.last, entries.following - 1))
            else:
                found += [(empty(offset), part.deliveries) for offset in range(part.first, part.last + 1)]
            ranges.append(part)
            if part.last < letters.last or len(found) >= MOST_RECORDS or size >= MOST_BYTES:
                break
        return found, ranges

    async def _entries(self, part: Delivered, limit: int, *, alone: bool) -> NativeRead:
        """Read entries. A large one is read alone, when there is memory for it."""
        storage, place = self._partition.storage, self._partition.place
        read = await storage.read(place, part.first, limit, part.last + 1, first=limit)
        if read.wants and alone:
            async with self._large_reads.held(read.wants):
                read = await storage.read(place, part.first, 1, part.last + 1, first=read.wants)
        return read

    def _remove(self, chunk: list[Delivered]) -> None:
        for part in chunk:
            # The partition was closed: the list is empty.
            letters = self._letters.popleft() if self._letters else part
            if part.last < letters.last:
                self._letters.appendleft(letters._replace(first=part.last + 1))


def _first(letters: Delivered, count: int) -> Delivered:
    return letters._replace(last=min(letters.last, letters.first + count - 1))
