"""Stored state of a share partition, and its text.

The text is `<state epoch> <SPSO> <run>,<run>...`. The first run begins at the start offset (SPSO). A run is `<length>d`
(done), `<length>a<count>` (available after `count` deliveries) or `<length>x<count>` (for the dead letter topic).
Acquired records are stored as available.
"""

import re
from enum import Enum

import msgspec

NOT_BEGUN = -1
"""SPSO of a share partition whose leader must resolve `share.auto.offset.reset`."""
_RUN = re.compile(r"([1-9][0-9]{0,18})([adx])([0-9]{0,9})")


class RecordState(Enum):
    """State of a run of offsets."""

    AVAILABLE = "a"
    """A member can acquire the records."""
    ACQUIRED = "acquired"
    """A member holds the records until its lock ends."""
    DEAD = "x"
    """Rejected or delivered too often: done when the dead letter topic has the records."""
    DONE = "d"
    """Accepted, rejected, archived or a gap."""


class StoredRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive offsets with one state."""

    length: int
    state: RecordState
    """AVAILABLE, DEAD or DONE."""
    count: int = 0
    """Deliveries. 0 if DONE."""


class ShareState(msgspec.Struct, frozen=True):
    """What is stored of a share partition."""

    epoch: int
    """State epoch: raised with each initialization, change or deletion of offsets."""
    spso: int
    """Share partition start offset, or `NOT_BEGUN`."""
    runs: tuple[StoredRun, ...] = ()
    """Runs from the SPSO on. Equal neighbors are one run."""

    def done_from(self, offset: int) -> int:
        """Return the number of done offsets from `offset` on, such as the log start offset."""
        found, end = 0, self.spso
        for run in self.runs:
            end += run.length
            if run.state is RecordState.DONE:
                found += max(0, min(run.length, end - offset))
        return found

    def encode(self) -> str:
        """Return the stored text."""
        head = f"{self.epoch} {self.spso}"
        return f"{head} {','.join(map(_encode_run, self.runs))}" if self.runs else head

    @classmethod
    def decode(cls, text: str) -> "ShareState":
        """Read a stored text. Raises ValueError."""
        fields = text.split(" ")
        if len(fields) not in {2, 3}:
            raise ValueError(f"share state of {len(fields)} fields")
        runs = tuple(map(_decode_run, fields[2].split(","))) if len(fields) == 3 else ()
        state = cls(int(fields[0]), int(fields[1]), runs)
        if state.encode() != text:
            raise ValueError(f"damaged share state {text[:60]!r}")
        return state


def _encode_run(run: StoredRun) -> str:
    return f"{run.length}d" if run.state is RecordState.DONE else f"{run.length}{run.state.value}{run.count}"


def _decode_run(text: str) -> StoredRun:
    match = _RUN.fullmatch(text)
    if match is None:
        raise ValueError(f"damaged run {text[:40]!r}")
    return StoredRun(int(match[1]), RecordState(match[2]), int(match[3] or 0))
