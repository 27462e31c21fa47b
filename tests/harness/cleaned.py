"""A compacted log whose segments a test makes by hand."""

from collections.abc import Callable, Iterable

from headrace.records.walk import records
from headrace.topics.model import StoredBatch
from headrace.topics.segments import CleanedBatch
from tests.harness.owning import STREAM, Owner, batch


async def fill(owner: Owner, count: int, *, first: int = 0, span: int = 2, size: int = 8) -> None:
    """Append batches whose records have their offsets as values, and as times."""
    for number in range(first, first + count):
        base = number * span
        assert await owner.acknowledged(batch(*range(base, base + span), size=size, time=base + 5)) == base
    await owner.partition.save_producers()


async def clean(owner: Owner, end: int, keep: Callable[[StoredBatch], bool], *, rows: int = 1_000) -> list[int]:
    """Clean up to an offset, with a segment for each `rows` batches that are read; base offsets of the kept ones."""
    logs = owner.storage.logs
    kept: list[int] = []
    while (start := max(logs.segments.cleaned(STREAM).end, owner.partition.local_start)) < end:
        found = await logs.read(STREAM, start, rows, end)
        found_kept = [each for each in found if keep(each)]
        left = [CleanedBatch(each.next_offset, each.batch, each.base_offset + 5) for each in found_kept]
        number = logs.segments.cleaned(STREAM).next_number
        await logs.segments.advance(STREAM, number, start, found[-1].next_offset, left)
        kept += [each.base_offset for each in found_kept]
    return kept


def offsets_in(batches: Iterable[StoredBatch]) -> list[int]:
    """Offsets of all records, which their values repeat."""
    found = [record for each in batches for record in records(bytes(each.batch), each.base_offset)]
    assert [int(bytes(record.value or b"").partition(b".")[0]) for record in found] == [each.offset for each in found]
    return [each.offset for each in found]
