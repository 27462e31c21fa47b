"""Offsets by time: the first record at or after a timestamp, and the one with the largest (ListOffsets)."""

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
    """Timestamps that are no times (Kafka protocol, ListOffsets)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4


class FoundOffset(msgspec.Struct, frozen=True):
    """An offset and the timestamp (ms) of the record there; -1 and -1 when there is none."""

    offset: int
    timestamp: int = -1


NOT_FOUND = FoundOffset(-1)


MOST_DECOMPRESSED = 512 << 20
"""Bytes that batches may decompress to for one request; what is asked for beyond is refused."""


class Searcher:
    """Looks into record batches for one request: off the event loop where they may be large, and only so far."""

    def __init__(self, decompression: Decompression, beside: ReadBudget | None = None) -> None:
        """Nothing has been decompressed.

        Args:
            decompression: where large batches are.
            beside: what those of native topics are counted in while they are looked into; None: one of its own.
        """
        self._decompression = decompression
        self.beside = beside or ReadBudget()
        self._left = MOST_DECOMPRESSED

    async def first_at(self, stored: StoredBatch, timestamp: int | None, first_offset: int) -> tuple[int, int] | None:
        """Offset and time (ms) of a record from `first_offset` on; None: there is none.

        The first one that is not before `timestamp`; where that is None, the first of those with the largest time.

        Raises:
            MessageTooLarge: too much has been decompressed for this request, or this batch alone is too large.
            CorruptBatch: its records cannot be read.
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
