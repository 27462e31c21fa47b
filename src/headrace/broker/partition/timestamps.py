"""Find records by time: the first at or after a timestamp, or the latest (ListOffsets)."""

import contextlib
from collections.abc import Callable
from enum import IntEnum
from functools import partial

import msgspec

from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.decompression import HERE, MOST, USUAL, Decompression
from headrace.records.batch import peek
from headrace.records.compression import NONE
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.records.walk import search
from headrace.topics.errors import CorruptBatch, MessageTooLarge
from headrace.topics.model import StoredBatch


class Special(IntEnum):
    """Special timestamps of ListOffsets in the Kafka protocol."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class FoundOffset(msgspec.Struct, frozen=True):
    """An offset and its record's timestamp (ms); -1 and -1 if none was found."""

    offset: int
    timestamp: int = -1


NOT_FOUND = FoundOffset(-1)


MOST_DECOMPRESSED = 512 << 20
"""Maximum decompressed bytes per request. Further batches are refused."""


class Searcher:
    """Searches batches for one request with a decompression limit, large ones off the event loop."""

    def __init__(self, decompression: Decompression, large_reads: ReadBudget | None = None) -> None:
        """`large_reads` is for batches of native topics. None: a separate budget."""
        self._decompression = decompression
        self.large_reads = large_reads or ReadBudget()
        self._left = MOST_DECOMPRESSED

    async def first_at(self, stored: StoredBatch, timestamp: int | None, first_offset: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record from `timestamp` on; None if none exists.

        Searches from `first_offset`. Without a timestamp, returns the first record with the largest time.

        Raises:
            MessageTooLarge: the request or this batch exceeds a decompression limit.
            CorruptBatch: the records cannot be read.
        """
        look = partial(search, stored.batch, stored.base_offset, first_offset, timestamp)
        size = len(stored.batch)
        try:
            if peek(stored.batch).codec == NONE:
                found, _ = look() if size <= HERE else await self._decompression.usual(look)
                return found
            if size <= HERE:
                with contextlib.suppress(BatchTooLarge):
                    return look(limit=HERE)[0]
            return await self._search(look)
        except BatchError as error:
            raise CorruptBatch(f"the records of a batch cannot be read: {error}") from None

    async def _search(self, look: Callable[..., tuple[tuple[int, int] | None, int]]) -> tuple[int, int] | None:
        for limit, run in ((USUAL, self._decompression.usual), (MOST, self._decompression.large)):
            most = min(limit, self._left)
            try:
                found, decompressed = await run(partial(look, limit=most))
            except BatchTooLarge:
                self._left -= most
                continue
            self._left -= decompressed
            return found
        raise MessageTooLarge(
            f"batches take more than {MOST_DECOMPRESSED} bytes decompressed, or one of them more than {MOST}"
        )
