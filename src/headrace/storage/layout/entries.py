"""Entries of a log's stream: one record batch each.

The id is `<term>-<next offset>`. Each new leader raises the term, and Redis rejects ids that do not grow, so a former
leader cannot write. The state maps offsets to terms.

Fields: `b` is the batch. `t` is the largest timestamp so far in ms, or the arrival of batches without one. `s` is the
bytes of all batches so far. Both never fall, which allows a binary search.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from headrace.records.batch import HEADER_SIZE
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import StoredBatch

BATCH, NEWEST, BYTES = b"b", b"t", b"s"
"""The fields in their order."""
_BASE_OFFSET = Struct(">q")

RawEntry = Sequence[object]
"""An entry of Redis: id, then fields and values."""


EntryId = tuple[int, int]
"""Term and next offset."""
LAST_ID: EntryId = (2**63 - 1, 2**63 - 1)
"""Follows all entries."""


def first_id(epochs: LeaderEpochs, offset: int) -> EntryId:
    """Return an id after the previous entry and up to that of `offset`."""
    return epochs.term_of(offset), offset + 1


def last_id(epochs: LeaderEpochs, offset: int) -> EntryId:
    """Return an id from the last entry that ends at or before `offset` to the next one."""
    return (epochs.term_of(offset - 1), offset) if offset > 0 else (0, 0)


def range_start(epochs: LeaderEpochs, offset: int) -> str:
    """Return the start of an XRANGE from the batch of `offset`."""
    return entry_id(*first_id(epochs, offset))


def range_end(epochs: LeaderEpochs, offset: int) -> str:
    """Return the end of an XRANGE up to `offset`."""
    return entry_id(*last_id(epochs, offset))


position_id = range_end
"""Last delivered id of a Redis consumer group that continues at an offset."""


def entry_id(term: int, next_offset: int) -> str:
    """Return the id of the entry that ends before an offset."""
    return f"{term}-{next_offset}"


def next_offset_of(entry_id: bytes) -> int:
    """Return the next offset of an entry. Raises ValueError."""
    return int(entry_id.partition(b"-")[2])


def decode(entries: Iterable[RawEntry]) -> list[StoredBatch]:
    """Convert entries of XRANGE to batches, without those of other programs."""
    base_offset_of = _BASE_OFFSET.unpack_from
    # Leaders write the batch as first field.
    return [
        StoredBatch(base_offset_of(fields[1])[0], next_offset_of(entry_id), fields[1])  # type: ignore[arg-type, index]
        for entry_id, fields in entries
        if fields[0] == BATCH and len(fields[1]) >= HEADER_SIZE  # type: ignore[index]
    ]
