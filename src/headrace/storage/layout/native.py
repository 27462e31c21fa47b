"""Native topics: a partition is a plain Redis Stream, and an entry's id is its offset.

`offset = milliseconds << bits | sequence`. Separate keys have the fencing epoch, the next id, the producers' sequences,
and the Kafka or OCI members among the consumers.
"""

import re

import msgspec

DEFAULT_BITS = 10
LAST_SEQUENCE = 2**64 - 1
"""Maximum sequence and milliseconds of an entry id."""
LAST_ID = f"{LAST_SEQUENCE}-{LAST_SEQUENCE}"
_MOST = 1 << 62
"""Limit of offsets. An entry with a later time has no offset, and the log ends here."""
_ID = re.compile(rb"([0-9]{1,20})-([0-9]{1,20})")


def parts_of(entry_id: bytes) -> tuple[int, int]:
    """Parse an entry id into milliseconds and sequence. Raises ValueError."""
    found = _ID.fullmatch(entry_id)
    if found is None:
        raise ValueError(f"{entry_id!r} is no entry id")
    return int(found[1]), int(found[2])


def id_of(offset: int, bits: int = DEFAULT_BITS) -> str:
    """Return the entry id of an offset."""
    return f"{offset >> bits}-{offset & (1 << bits) - 1}"


def id_before(offset: int, bits: int = DEFAULT_BITS) -> str:
    """Return the largest id below an offset's: last delivered id of a group that reads from there.

    The previous millisecond's maximum sequence has no offset, so such an entry is not delivered again.
    """
    if offset <= 0:
        return "0-0"
    ms, sequence = offset >> bits, offset & (1 << bits) - 1
    return f"{ms}-{sequence - 1}" if sequence else f"{ms - 1}-{LAST_SEQUENCE}"


def last_before_most(bits: int = DEFAULT_BITS) -> str:
    """Return the largest entry id whose time fits an offset."""
    return id_before(_MOST, bits)


def behind(offset: int, bits: int = DEFAULT_BITS) -> str:
    """Return the id after which entries from an offset follow, or the maximum id."""
    return LAST_ID if offset >= _MOST else id_before(offset, bits)


def offset_after(entry_id: bytes, bits: int = DEFAULT_BITS) -> int:
    """Return the first offset above any entry id. 0 for `0-0`."""
    ms, sequence = parts_of(entry_id)
    if (ms, sequence) == (0, 0):
        return 0
    return min(_MOST, (ms + 1) << bits if sequence + 1 >> bits else ms << bits | sequence + 1)


def offset_at(entry_id: bytes, bits: int = DEFAULT_BITS) -> int:
    """Return the offset of an entry, or the last one of its millisecond."""
    ms, sequence = parts_of(entry_id)
    return min(_MOST - 1, ms << bits | min(sequence, (1 << bits) - 1))


def groups_of(stream: str) -> str:
    """Hash: Redis consumer group -> JSON array of its consumers that are Kafka or OCI members."""
    return f"{{{stream}}}:groups"


class StreamInfo(msgspec.Struct, frozen=True):
    """Facts of XINFO STREAM; zero for a missing key."""

    length: int = 0
    last_id: bytes = b"0-0"
    first_id: bytes = b"0-0"
    added: int = 0
    """Number of entries ever added."""

    @property
    def removed(self) -> int:
        """Return the number of trimmed or deleted entries."""
        return max(0, self.added - self.length)


STATE_FIELDS = ("n", "b", "d", "x")
"""Fields of the state hash: next offset, log start offset, entries removed at that time, and maximum milliseconds from
an id to its record's timestamp.
"""


class State(msgspec.Struct, frozen=True):
    """The state hash of a native partition."""

    next_offset: int = 0
    """Minimum offset of new entries."""
    log_start: int = 0
    """Offset up to which this server has trimmed."""
    removed: int = 0
    """Entries that were removed when `log_start` was written. Other programs removed any further ones."""
    ahead_ms: int = 0

    @classmethod
    def read(cls, values: list[bytes | None]) -> "State":
        """Parse the values of STATE_FIELDS."""
        return cls(*(int(value or 0) for value in values))


def extent(info: StreamInfo, state: State, bits: int) -> tuple[int, int]:
    """Return the log start and end offsets of a native partition.

    The start is 0 before any trim, exact after a trim of this server, and the first entry after other removals.
    """
    end = max(offset_after(info.last_id, bits), state.next_offset if info.length == 0 else 0)
    if info.removed <= state.removed:
        return min(state.log_start, end), end
    first = offset_at(info.first_id, bits) if info.length else end
    return max(state.log_start, first), end
