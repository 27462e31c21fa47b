"""Checks of each record of a batch in Python; see `topics.record_checks`."""

from headrace.records.errors import CorruptBatch
from headrace.records.fallback.columns import read
from headrace.records.fallback.header import Buffer


def keyless(payload: Buffer, count: int, last_offset_delta: int, most: int, /) -> tuple[list[int], int]:
    """Return the indexes of the first `most` records without key, and the number of all of these.

    The payload is a decompressed records section. Raises CorruptBatch.
    """
    indexes: list[int] = []
    total = read_records = 0
    for index, record in enumerate(read(payload, count, last_offset_delta, 0, 0, None)):
        read_records += 1
        if record.key is None:
            total += 1
            if len(indexes) < most:
                indexes.append(index)
    if read_records != count:
        raise CorruptBatch(f"{read_records} records instead of {count}")
    return indexes, total
