"""Entries of a log stream: one record batch each.

The id is `<next offset>-<offset span>`, so the batch that holds offset f is the first entry at or after `(f+1)-0`,
and the log end is the stream's last id. Fields: `b` the batch as the producer sent it; `t` a time in ms that no record
up to here is later than (the largest timestamp so far, the time of arrival for batches without one); `s` the bytes of
all batches up to here, this one included. `t` and `s` never fall, so a time or a size is found by halving.
"""

from collections.abc import Iterable, Sequence

from headrace.topics.model import StoredBatch

BATCH, MAX_TIMESTAMP, BYTES = b"b", b"t", b"s"
"""The fields, in this order in every entry."""
STATE_MAX_TIMESTAMP = "t"
"""Field of the state hash: the `t` of the last entry ever appended."""

RawEntry = Sequence[object]
"""An entry as Redis answers it: id, then fields and values in turn."""


def id_of(base_offset: int, next_offset: int) -> str:
    """The entry id of the batch with offsets from `base_offset` up to, not including, `next_offset`."""
    return f"{next_offset}-{next_offset - base_offset}"


def range_start(offset: int) -> str:
    """Where an XRANGE begins that has the batch holding `offset` first."""
    return f"{offset + 1}-0"


def range_end(offset: int) -> str:
    """Where an XRANGE ends that has the last batch ending at or before `offset`."""
    return f"{offset}-18446744073709551615"


def offsets_of(entry_id: bytes) -> tuple[int, int]:
    """Base offset and next offset of an entry; raises ValueError for an id that is no entry of a log stream."""
    next_offset, _, span = entry_id.partition(b"-")
    return int(next_offset) - int(span), int(next_offset)


def position_id(offset: int) -> str:
    """Last delivered id of a Redis consumer group that has read everything below `offset`."""
    return f"{offset}-18446744073709551615"


def decode(entries: Iterable[RawEntry]) -> list[StoredBatch]:
    """Entries of an XRANGE answer as batches, in order."""
    found = []
    for entry_id, fields in entries:
        next_text, _, span = entry_id.partition(b"-")  # type: ignore[attr-defined]
        next_offset = int(next_text)
        # The batch is the first field of every entry that the append script writes.
        found.append(StoredBatch(next_offset - int(span), next_offset, fields[1]))  # type: ignore[index]
    return found
