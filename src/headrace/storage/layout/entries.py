"""Entries of a log's stream: one record batch each.

The id is `<term>-<next offset>`. The term is the number of the opening that wrote the entry: a later owner raises it,
and Redis refuses ids that do not grow, so an owner whose time is over cannot write. Rows of the partition's state lead
from an offset to its term; the batch that holds offset f is the first entry at or after `<term of f>-<f+1>`. The
batch's own header has its base offset and its leader epoch.
Fields: `b` the batch; `t` a time in ms that no record up to here is later than (the largest timestamp so far, the time
of arrival for batches without one); `s` the bytes of all batches up to here, this one included. `t` and `s` never fall,
so a time or a size is found by halving.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from headrace.records.batch import HEADER_SIZE
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import StoredBatch

BATCH, NEWEST, BYTES = b"b", b"t", b"s"
"""The fields, in this order in every entry."""
_BASE_OFFSET = Struct(">q")

RawEntry = Sequence[object]
"""An entry as Redis answers it: id, then fields and values in turn."""


EntryId = tuple[int, int]
"""Term and next offset."""
LAST_ID: EntryId = (2**63 - 1, 2**63 - 1)
"""Behind every entry."""


def first_id(epochs: LeaderEpochs, offset: int) -> EntryId:
    """At or before the entry of the batch that holds `offset`, and behind the one before."""
    return epochs.term_of(offset), offset + 1


def last_id(epochs: LeaderEpochs, offset: int) -> EntryId:
    """At or behind the entry of the last batch that ends at or before `offset`, and before the next one."""
    return (epochs.term_of(offset - 1), offset) if offset > 0 else (0, 0)


def range_start(epochs: LeaderEpochs, offset: int) -> str:
    """Where an XRANGE begins that has the batch holding `offset` first."""
    return entry_id(*first_id(epochs, offset))


def range_end(epochs: LeaderEpochs, offset: int) -> str:
    """Where an XRANGE ends that has the last batch ending at or before `offset`."""
    return entry_id(*last_id(epochs, offset))


position_id = range_end
"""Last delivered id of a Redis consumer group that has read everything below an offset."""


def entry_id(term: int, next_offset: int) -> str:
    """The id of the entry that ends before an offset. Leader epochs are terms: a batch's header tells it."""
    return f"{term}-{next_offset}"


def next_offset_of(entry_id: bytes) -> int:
    """The next offset of an entry; raises ValueError for something else."""
    return int(entry_id.partition(b"-")[2])


def decode(entries: Iterable[RawEntry]) -> list[StoredBatch]:
    """Entries of an XRANGE answer as batches, in order; without those that somebody else wrote."""
    base_offset_of = _BASE_OFFSET.unpack_from
    # The batch is the first field of every entry that an owner writes.
    return [
        StoredBatch(base_offset_of(fields[1])[0], next_offset_of(entry_id), fields[1])  # type: ignore[arg-type, index]
        for entry_id, fields in entries
        if fields[0] == BATCH and len(fields[1]) >= HEADER_SIZE  # type: ignore[index]
    ]
