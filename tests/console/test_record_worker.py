"""The thread in which pages decode and search: bounded by time and by matches."""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

from headrace.console.record_worker import CHUNK, Decode, Decoded, Parts, Work
from headrace.records.walk import Record

RECORDS = [Record(offset, 0, None, b"%d" % offset, ()) for offset in range(3 * CHUNK)]


class Upper:
    """Decodes values as numbers."""

    async def prepare(self, records: Sequence[Record], visible: Callable[[str], bool]) -> Decode:
        return lambda some: [(None, Decoded("n", f"n{int(each.value or b'')}")) for each in some]


def run(until: float, keep: Callable[[Record, Parts], bool], most: int = 1000) -> tuple[list[int], int]:
    async def whole() -> tuple[list[int], int]:
        work = Work(Upper())
        try:
            found, examined = await work.run(RECORDS, lambda topic: True, until, keep, most)
        finally:
            work.close()
        return [place for place, _ in found], examined

    return asyncio.run(whole())


def test_records_are_decoded_and_chosen() -> None:
    assert run(perf_counter() + 60, lambda record, parts: parts[1] == Decoded("n", "n401")) == ([401], len(RECORDS))
    assert run(perf_counter() + 60, lambda record, parts: record.offset % 2 == 1, 3) == ([1, 3, 5], 6)


def test_work_ends_after_a_chunk_when_the_time_is_over() -> None:
    assert run(perf_counter() - 1, lambda record, parts: False) == ([], CHUNK)
