"""Reads on while a consumer is busy with its last answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from headrace.broker.runtime.budget import ReadAhead, ReadBudget, bytes_of
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.topics.model import StoredBatch

ANSWER_TURNS = 4
"""Turns of the loop until an answer has left: a read that is a copy from the page cache would hold it up."""


class Read(Protocol):
    """See `LogReader.from_redis`."""

    def __call__(self, offset: int, limit: int, *, join: bool) -> Coroutine[Any, Any, list[StoredBatch]]:
        """About `limit` bytes of batches from an offset on."""


class _Reading(NamedTuple):
    last: StoredBatch
    """Of the read before; without its bytes where batches may come as one."""
    following: asyncio.Future[list[StoredBatch]]
    place: ReadAhead


class Ahead:
    """What comes behind the last read of one log."""

    __slots__ = ("_ahead", "_reads")

    def __init__(self, reads: ReadBudget) -> None:
        """Nothing has been read yet; `reads` bounds what all logs read ahead."""
        self._reads = reads
        self._ahead: _Reading | None = None

    def ready(self, offset: int) -> list[StoredBatch] | None:
        """What was read ahead and is here by now, the batch that begins at an offset first; None: nothing."""
        ahead = self._ahead
        if ahead is None or offset != ahead.last.next_offset or not ahead.following.done():
            return None
        if ahead.following.cancelled() or ahead.following.exception() is not None:
            return None
        found = ahead.following.result()
        # Where retention came between, the archive may have what is missing.
        return found if found and found[0].base_offset <= offset else None

    async def take(self, offset: int, limit: int, *, join: bool) -> list[StoredBatch] | None:
        """Batches from `offset` on that the last read left over, or was followed by; None: it did not end there.

        It may have ended in the middle of its last batch, where somebody takes records and not batches.

        Args:
            offset: the first that is wanted.
            limit: bytes that are wanted.
            join: whether several batches may come as one; see `fit_to`.
        """
        ahead = self._ahead
        if ahead is None:
            return None
        last = ahead.last
        if offset != last.next_offset and not (last.batch and last.base_offset <= offset < last.next_offset):
            return None
        self.forget()
        found = await ahead.following
        return fit_to(found if offset == last.next_offset else [last, *found], limit, join=join)

    def keep(self, read: Read, last: StoredBatch, left: list[StoredBatch], limit: int, *, join: bool) -> None:
        """A read has ended with a batch; `left`: what it found behind that one. `read` on, if the budget allows it."""
        self.forget()
        place = self._reads.read_ahead(limit, self.forget)
        if place is None:
            return
        if join:
            # Its view would hold all that came with it, which nobody counts once the answer has left.
            last = StoredBatch(last.base_offset, last.next_offset, b"")
        reading = asyncio.ensure_future(_read_on(read, left, last.next_offset, place.size, join))
        # Nobody may ever come for it: an error is then nobody's.
        reading.add_done_callback(lambda done: place.came(bytes_of(done)))
        self._ahead = _Reading(last, reading, place)

    def forget(self) -> None:
        """What was read ahead is asked for, or not wanted any more."""
        if self._ahead is not None:
            place = self._ahead.place
            self._ahead = None
            place.drop()


async def _read_on(read: Read, left: list[StoredBatch], following: int, limit: int, join: bool) -> list[StoredBatch]:
    wanted = limit - sum(len(found.batch) for found in left)
    if wanted <= 0:
        return left
    for _ in range(ANSWER_TURNS):
        await asyncio.sleep(0)
    return left + await read(left[-1].next_offset if left else following, wanted, join=join)


def fit_to(found: list[StoredBatch], limit: int, *, join: bool) -> list[StoredBatch]:
    """The same batches, each by itself unless they may `join` and fit into `limit` bytes together.

    So whoever takes as many as fit ends with one that is by itself. What lies behind these is left as it is: there may
    be thousands, of which a client that wants one after the other would have all taken apart each time.
    """
    left, fits = limit, 0
    for each in found:
        left -= len(each.batch)
        if left < 0:
            break
        fits += 1
    if join and left >= 0:
        return found
    apart = [batch for each in found[:fits] for batch in _apart(each, limit)]
    if fits < len(found):
        apart += _apart(found[fits], left + len(found[fits].batch))
    return apart + found[fits + 1 :]


def _apart(joined: StoredBatch, limit: int) -> list[StoredBatch]:
    """Each batch by itself, as many as begin within `limit` bytes; the others as one behind them."""
    if joined.count == 1:
        return [joined]
    batches: list[StoredBatch] = []
    view, at = memoryview(joined.batch), 0
    while at < len(view):
        if at > limit:
            rest = joined.count - len(batches)
            return [*batches, StoredBatch(batches[-1].next_offset, joined.next_offset, view[at:], rest)]
        header = read_header(view[at : at + HEADER_SIZE])
        batch = view[at : at + header.size]
        batches.append(StoredBatch(header.base_offset, header.base_offset + header.span, batch))
        at += header.size
    return batches
