"""What a state machine is given and asks for: an event and the time go in, ordered effects come out.

Nothing after a `Persist` may happen before its changes are durable. `headrace.broker.coordinator.runtime` carries
effects out; a simulation may do so as well.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

C = TypeVar("C")
"""Changes that storage takes."""
K = TypeVar("K", bound=Hashable)
"""Names of timers."""
R = TypeVar("R")
"""Results of requests."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """One moment by both clocks."""

    wall_ms: int
    """Milliseconds since the epoch: for what is stored and shown. May go back from one event to the next."""
    ticks_ms: int
    """Milliseconds since some time in the past, never going back: for timeouts."""


class Persist(msgspec.Struct, Generic[C], frozen=True):
    """Make these changes durable before the next effect: all or none, except for very many (decision 0068)."""

    changes: tuple[C, ...]


class SetTimer(msgspec.Struct, Generic[K], frozen=True):
    """Send the event of a timer at `deadline_ms`, in ticks. Replaces a timer of the same key."""

    key: K
    deadline_ms: int


class CancelTimer(msgspec.Struct, Generic[K], frozen=True):
    """Forget a timer. Harmless when there is none."""

    key: K


class Reply(msgspec.Struct, Generic[R], frozen=True):
    """Answer the request that `token` names."""

    token: Hashable
    result: R


Effect = Persist[C] | SetTimer[K] | CancelTimer[K] | Reply[R]
