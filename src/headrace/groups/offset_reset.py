"""Where a position goes when a group is reset: the one rule for the command and the page."""

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Where positions are to go: exactly one of these."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None


class Move(msgspec.Struct, frozen=True):
    """What becomes of a position."""

    topic: str
    partition: int
    position: int | None
    """Where it is; None: nothing was committed."""
    to: int
    lag: int | None
    """Records to come afterwards; None where a native topic, whose offsets have gaps, does not tell."""


def destination(target: Target, log_start: int, log_end: int, at: int | None) -> int:
    """The new position in a log.

    Args:
        target: where it is to go.
        log_start: where the log starts.
        log_end: and ends.
        at: the first offset of the time in `target`; None or negative: no record is so late.
    """
    if target.earliest:
        return log_start
    if target.offset is not None:
        return min(max(target.offset, log_start), log_end)
    if target.time_ms is not None and at is not None and at >= 0:
        return at
    return log_end  # the latest, or a time after the last record
