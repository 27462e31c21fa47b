"""Reads on while a consumer is busy with its last answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.budget import ReadAhead, ReadBudget, bytes_of
from headrace.topics.model import StoredBatch

ANSWER_TURNS = 4
"""Turns of the loop until an answer has left: a read that is a copy from the page cache would hold it up."""

Read = Callable[[int, int], Coroutine[Any, Any, list[StoredBatch]]]
"""Batches from an offset on, about so many bytes of them."""


class Ahead:
    """What comes behind the last read of one log."""

    __slots__ = ("_ahead", "_read", "_reads")

    def __init__(self, reads: ReadBudget, read: Read) -> None:
        """Nothing has been read yet; `reads` bounds what all logs read ahead."""
        self._reads = reads
        self._read = read
        self._ahead: tuple[StoredBatch, asyncio.Future[list[StoredBatch]], ReadAhead] | None = None
        """The last batch that was read, those after it, and their place in the budget."""

    async def take(self, offset: int) -> list[StoredBatch] | None:
        """Batches from `offset` on that the last read left over, or was followed by; None: it did not end there.

        It may have ended in the middle of its last batch, where somebody takes records and not batches.
        """
        if self._ahead is None:
            return None
        last, following, _ = self._ahead
        if offset == last.next_offset:
            self.forget()
            return await following
        if last.base_offset <= offset < last.next_offset:
            self.forget()
            return [last, *await following]
        return None

    def keep(self, last: StoredBatch, left: list[StoredBatch], limit: int) -> None:
        """A read has ended with a batch; `left`: what it found behind that one. Read on, if the budget allows it."""
        self.forget()
        place = self._reads.read_ahead(limit, self.forget)
        if place is None:
            return
        reading = asyncio.ensure_future(self._read_on(left, last.next_offset, place.size))
        # Nobody may ever come for it: an error is then nobody's.
        reading.add_done_callback(lambda done: place.came(bytes_of(done)))
        self._ahead = (last, reading, place)

    def forget(self) -> None:
        """What was read ahead is asked for, or not wanted any more."""
        if self._ahead is not None:
            _, _, place = self._ahead
            self._ahead = None
            place.drop()

    async def _read_on(self, left: list[StoredBatch], following: int, limit: int) -> list[StoredBatch]:
        if sum(len(found.batch) for found in left) >= limit:
            return left
        for _ in range(ANSWER_TURNS):
            await asyncio.sleep(0)
        return left + await self._read(left[-1].next_offset if left else following, limit)
