"""What time it is when an event happens."""

import msgspec


class Now(msgspec.Struct, frozen=True, gc=False):
    """One moment by both clocks."""

    wall_ms: int
    """Milliseconds since the epoch: for what is stored and shown. May go back from one event to the next."""
    ticks_ms: int
    """Milliseconds since some time in the past, never going back: for time-outs."""
