"""Native topics: a partition is a plain Redis Stream, and an entry's id is its offset.

`offset = milliseconds << bits | sequence`, both ways without any table. The keys beside the stream hold what Redis has
no place for: the epoch that fences older servers, the next id, producers' sequences, and which consumers of its groups
are members of Kafka or OCI groups rather than programs of somebody else.
"""

import re

import msgspec

DEFAULT_BITS = 10
LAST_SEQUENCE = 2**64 - 1
"""The largest sequence of an entry id, and the largest milliseconds."""
LAST_ID = f"{LAST_SEQUENCE}-{LAST_SEQUENCE}"
_MOST = 1 << 62
"""No offset is as large. An entry whose time lies beyond has none; where there is such an entry, the log ends here."""
_ID = re.compile(rb"([0-9]{1,20})-([0-9]{1,20})")


def parts_of(entry_id: bytes) -> tuple[int, int]:
    """Milliseconds and sequence of an entry id; raises ValueError for anything else."""
    found = _ID.fullmatch(entry_id)
    if found is None:
        raise ValueError(f"{entry_id!r} is no entry id")
    return int(found[1]), int(found[2])


def id_of(offset: int, bits: int = DEFAULT_BITS) -> str:
    """The entry id that an offset stands for."""
    return f"{offset >> bits}-{offset & (1 << bits) - 1}"


def id_before(offset: int, bits: int = DEFAULT_BITS) -> str:
    """The largest id below that of an offset: where a group stands that reads from `offset` on. `0-0` for 0.

    The sequence of the millisecond before is one that no offset has: an entry there that fits no offset is not
    served again.
    """
    if offset <= 0:
        return "0-0"
    ms, sequence = offset >> bits, offset & (1 << bits) - 1
    return f"{ms}-{sequence - 1}" if sequence else f"{ms - 1}-{LAST_SEQUENCE}"


def last_before_most(bits: int = DEFAULT_BITS) -> str:
    """The largest entry id whose time still fits an offset."""
    return id_before(_MOST, bits)


def behind(offset: int, bits: int = DEFAULT_BITS) -> str:
    """The id behind which entries from an offset on lie; where there is no such offset any more, the largest of all."""
    return LAST_ID if offset >= _MOST else id_before(offset, bits)


def offset_after(entry_id: bytes, bits: int = DEFAULT_BITS) -> int:
    """The first offset above an entry id, also for ids that are no offsets. 0 for `0-0`, before which nothing lies."""
    ms, sequence = parts_of(entry_id)
    if (ms, sequence) == (0, 0):
        return 0
    return min(_MOST, (ms + 1) << bits if sequence + 1 >> bits else ms << bits | sequence + 1)


def offset_at(entry_id: bytes, bits: int = DEFAULT_BITS) -> int:
    """The offset of an entry; for an id that fits none the last offset of its millisecond."""
    ms, sequence = parts_of(entry_id)
    return min(_MOST - 1, ms << bits | min(sequence, (1 << bits) - 1))


def groups_of(stream: str) -> str:
    """Hash: Redis consumer group -> JSON array of its consumers that are members of Kafka or OCI groups."""
    return f"{{{stream}}}:groups"


class StreamInfo(msgspec.Struct, frozen=True):
    """What XINFO STREAM says of a stream, as far as it is needed; all zero for a key that is not there."""

    length: int = 0
    last_id: bytes = b"0-0"
    first_id: bytes = b"0-0"
    added: int = 0
    """Entries ever added, as Redis counts them."""

    @property
    def removed(self) -> int:
        """Entries that were trimmed or deleted."""
        return max(0, self.added - self.length)


STATE_FIELDS = ("n", "b", "d", "x")
"""Fields of the state hash: next offset, log start, entries removed when that was written, and how many milliseconds
a record's timestamp has been ahead of its id at most."""


class State(msgspec.Struct, frozen=True):
    """What the state hash of a native partition says."""

    next_offset: int = 0
    """No id that this server gives is below it."""
    log_start: int = 0
    """As far as this server has trimmed."""
    removed: int = 0
    """How many entries were gone when `log_start` was written; more than that are somebody else's doing."""
    ahead_ms: int = 0

    @classmethod
    def read(cls, values: list[bytes | None]) -> "State":
        """From the values of STATE_FIELDS."""
        return cls(*(int(value or 0) for value in values))


def extent(info: StreamInfo, state: State, bits: int) -> tuple[int, int]:
    """Log start and log end of a native partition.

    The start of a topic that was never trimmed is 0. What this server trims it knows to the offset; where somebody
    else has removed entries, the log starts with the first that is left.
    """
    end = max(offset_after(info.last_id, bits), state.next_offset if info.length == 0 else 0)
    if info.removed <= state.removed:
        return min(state.log_start, end), end
    first = offset_at(info.first_id, bits) if info.length else end
    return max(state.log_start, first), end
