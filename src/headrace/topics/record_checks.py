"""Checks of single records, which a topic's configuration asks for. Pure.

They read the records, unlike `topics.validator`. A batch with one rejected record is rejected as a whole, and the error
lists its rejected records (KIP-467).
"""

from collections.abc import Mapping

import msgspec

from headrace.records import accelerator
from headrace.records.batch import peek
from headrace.records.compression import LIMIT
from headrace.records.fallback.header import Buffer
from headrace.records.walk import payload
from headrace.topics.errors import InvalidRecords

MOST_LISTED = 100
"""Maximum rejected records of a batch that an error lists."""
_MOST_SHOWN = 3
"""As in Kafka: records in the text of the error."""


class RecordChecks(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic asks of each record. A topic that asks for nothing has no such object."""

    key: bool
    """Each record has a key, as compaction needs one."""


def checks_of(*, compacted: bool) -> RecordChecks | None:
    """Return the checks of a configuration; None: there are none."""
    return RecordChecks(key=True) if compacted else None


def check(checks: RecordChecks, place: str, batch: Buffer, *, limit: int = LIMIT) -> int:
    """Check each record of a batch for the partition `place`. Other threads can run.

    Returns:
        The decompressed size.

    Raises:
        InvalidRecords: some are rejected. BatchError: the records cannot be read, or take more than `limit` bytes.
    """
    header = peek(batch)
    section = payload(header, batch, limit)
    if checks.key:
        indexes, total = accelerator.keyless(section, header.count, header.last_offset_delta, MOST_LISTED)
        if total:
            reason = f"Compacted topic cannot accept message without key in topic partition {place}."
            raise rejected(dict.fromkeys(indexes, reason), total)
    return len(section)


def rejected(reasons: Mapping[int, str], total: int) -> InvalidRecords:
    """Return the error for `total` rejected records, of which `reasons` has the first ones by their index."""
    shown = "; ".join(f"record {index}: {reasons[index]}" for index in sorted(reasons)[:_MOST_SHOWN])
    return InvalidRecords(
        f"One or more records have been rejected due to {total} record errors in total, and only showing the first "
        f"three errors at most: {shown}",
        reasons,
    )
