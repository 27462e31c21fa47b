"""Input and output of a state machine: an event and the time go in, ordered effects come out.

No effect after a `Persist` may happen before its changes are durable. `headrace.broker.coordinator.runtime` applies
effects.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

C = TypeVar("C")
"""Changes for storage."""
K = TypeVar("K", bound=Hashable)
"""Names of timers."""
R = TypeVar("R")
"""Results of requests."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """One moment by two clocks."""

    wall_ms: int
    """Milliseconds since the epoch, for stored and displayed times. Can go back."""
    ticks_ms: int
    """Monotonic milliseconds, for timeouts."""


class Persist(msgspec.Struct, Generic[C], frozen=True):
    """Make these changes durable before the next effect, all or none except for very many (decision 0068)."""

    changes: tuple[C, ...]


class SetTimer(msgspec.Struct, Generic[K], frozen=True):
    """Send the timer's event at `deadline_ms` (ticks). Replaces a timer of the same key."""

    key: K
    deadline_ms: int


class CancelTimer(msgspec.Struct, Generic[K], frozen=True):
    """Cancel a timer, if it exists."""

    key: K


class Reply(msgspec.Struct, Generic[R], frozen=True):
    """Respond to the request of `token`."""

    token: Hashable
    result: R


class Command(msgspec.Struct, frozen=True):
    """Base of effects that only one kind of machine has. Its runner performs them."""


Effect = Persist[C] | SetTimer[K] | CancelTimer[K] | Reply[R] | Command
