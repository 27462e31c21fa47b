"""Keys of a group's timers. Setting a timer again moves it."""

from enum import Enum

import msgspec

LONGEST_MS = 86_400_000
"""Maximum delay of a timer for wall clock times: that clock may be set."""


class TimerKind(Enum):
    """Event that a timer waits for."""

    SESSION = "session"
    """A member's next request."""
    PENDING = "pending"
    """The second join of a member that received its id."""
    JOIN = "join"
    """The end of the join phase: an initial delay or the largest rebalance timeout."""
    SYNC = "sync"
    """The last sync of a new generation."""
    RETENTION = "retention"
    """The next offset, or empty group, to expire."""
    INSTANCE = "instance"
    """An instance's next request (balanced sections)."""
    REVOCATION = "revocation"
    """The acknowledgement of what a member of a consumer group must give up (its rebalance timeout)."""
    TARGET = "target"
    """The next target assignment of a group of a newer kind."""
    UNUSED = "unused"
    """The next check whether a balanced section is used."""


class TimerKey(msgspec.Struct, frozen=True):
    """Key of a timer within its group. `member_id` is empty for the group's own timers."""

    kind: TimerKind
    member_id: str = ""
    section: str = ""
    """Topic of a balanced section."""


def session(member_id: str) -> TimerKey:
    """Return the timer of a member's session.

    It is paused while a request of the member is held, except for a new member's join, which has a long limit.
    """
    return TimerKey(TimerKind.SESSION, member_id)


def pending(member_id: str) -> TimerKey:
    """Return the timer for the join of a member that received its id."""
    return TimerKey(TimerKind.PENDING, member_id)


def initial_delay() -> TimerKey:
    """Return the timer of an empty group's initial delay. The same timer as `rebalance`."""
    return TimerKey(TimerKind.JOIN)


def rebalance() -> TimerKey:
    """Return the timer of the join phase. The same timer as `initial_delay`."""
    return TimerKey(TimerKind.JOIN)


def sync() -> TimerKey:
    """Return the timer of the sync phase."""
    return TimerKey(TimerKind.SYNC)


def retention() -> TimerKey:
    """Return the timer of expiry of offsets and empty groups."""
    return TimerKey(TimerKind.RETENTION)


def revocation(member_id: str) -> TimerKey:
    """Return the timer of a member that must give up partitions."""
    return TimerKey(TimerKind.REVOCATION, member_id)


def target() -> TimerKey:
    """Return the timer of the next target assignment."""
    return TimerKey(TimerKind.TARGET)


def instance(topic: str, name: str) -> TimerKey:
    """Return the timer of an instance's timeout. Not every request moves it."""
    return TimerKey(TimerKind.INSTANCE, name, topic)


def unused(topic: str) -> TimerKey:
    """Return the timer of a section's retention."""
    return TimerKey(TimerKind.UNUSED, section=topic)
