"""Decode and search records for pages: in a thread, by turns, and with bounds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Final, Protocol

import msgspec

from headrace.aio.tasks import in_thread
from headrace.records.walk import Record

MOST_DECODED: Final = 256 << 10
"""Maximum bytes of a key or value that is decoded."""
_MOST_SEARCHES: Final = 10
"""Maximum searches that wait or run."""
_MOST_OF_ONE: Final = 2
"""Maximum of one viewer."""
CHUNK: Final = 200
"""Records between two looks at the time."""


class Decoded(msgspec.Struct, frozen=True):
    """A key or value that names a schema."""

    schema: str = ""
    """Type and ID of the schema."""
    text: str | None = None
    """As JSON; None: it cannot be decoded."""
    fault: str = ""
    """Why not."""


Parts = tuple[Decoded | None, Decoded | None]
"""A record's key and value; None: it names no schema."""
Decode = Callable[[Sequence[Record]], list[Parts]]
NOT_DECODED: Final[Parts] = (None, None)
LATE: Final = Decoded(fault="not decoded: the values of this page take too long")


class RecordDecoder(Protocol):
    """Decodes records by their schemas."""

    async def prepare(self, records: Sequence[Record], visible: Callable[[str], bool]) -> Decode:
        """Load the schemas of records, and return the function that decodes them in a thread.

        `visible` returns whether the viewer may see the schemas of a topic. Raises TopicError.
        """


class Work:
    """The thread that decodes and searches for all pages."""

    def __init__(self, decoder: RecordDecoder | None) -> None:
        """Start no thread. Without a decoder nothing is decoded."""
        self._decoder = decoder
        self._threads = ThreadPoolExecutor(1, "console-records")

    def close(self) -> None:
        """End the thread. Work that waits is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(
        self,
        records: Sequence[Record],
        visible: Callable[[str], bool],
        until: float,
        keep: Callable[[Record, Parts], bool] = lambda record, parts: True,
        most: int = 1 << 30,
    ) -> tuple[list[tuple[int, Parts]], int]:
        """Return places and decoded parts of at most `most` records that `keep` accepts, and how many were examined.

        `until` is a time of `perf_counter`. Examines at least one chunk.
        """
        decode = None if self._decoder is None else await self._decoder.prepare(records, visible)
        return await in_thread(self._threads, partial(_chosen, records, decode, until, keep, most))


def _chosen(
    records: Sequence[Record], decode: Decode | None, until: float, keep: Callable[[Record, Parts], bool], most: int
) -> tuple[list[tuple[int, Parts]], int]:
    found: list[tuple[int, Parts]] = []
    start = 0
    while start < len(records) and (not start or perf_counter() < until):
        end, size = start, 0
        while end < len(records) and end - start < CHUNK and size < MOST_DECODED:
            size += _size(records[end])
            end += 1
        chunk = records[start:end]
        parts = [NOT_DECODED] * len(chunk) if decode is None else decode(chunk)
        for place, (record, each) in enumerate(zip(chunk, parts, strict=True), start):
            if keep(record, each):
                found.append((place, each))
                if len(found) == most:
                    return found, place + 1
        start = end
    return found, start


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


class TooManySearches(Exception):
    """Too many searches wait."""

    def __init__(self) -> None:
        super().__init__("Too many searches are in progress. Try again in a few seconds.")


class Searches:
    """Searches of all pages, which take turns."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._visitors = Counter[str]()

    @asynccontextmanager
    async def turn(self, visitor: str) -> AsyncIterator[None]:
        """Wait for a turn. Raises TooManySearches."""
        if self._visitors.total() >= _MOST_SEARCHES or self._visitors[visitor] >= _MOST_OF_ONE:
            raise TooManySearches
        self._visitors[visitor] += 1
        try:
            async with self._turn:
                yield
        finally:
            self._visitors[visitor] -= 1
            if not self._visitors[visitor]:
                del self._visitors[visitor]
