"""The names of a group's timers. A timer is known by its key: setting it again moves it."""

from enum import Enum

import msgspec

LONGEST_MS = 86_400_000
"""Maximum delay of a timer for wall clock times, because that clock may be set."""


class TimerKind(Enum):
    """What a timer waits for."""

    SESSION = "session"
    """A member's next sign of life."""
    PENDING = "pending"
    """The second join of a member that received its id."""
    JOIN = "join"
    """The end of the join phase: an initial delay or the largest rebalance timeout."""
    SYNC = "sync"
    """The end of the time in which the members of a new generation must have synced."""
    RETENTION = "retention"
    """The next position, or empty group, to expire."""
    INSTANCE = "instance"
    """An instance's next request (balanced sections)."""
    UNUSED = "unused"
    """The next time to see whether a balanced section is still used."""


class TimerKey(msgspec.Struct, frozen=True):
    """Names one timer within its group. `member_id` is empty for the group's own timers."""

    kind: TimerKind
    member_id: str = ""
    section: str = ""
    """The topic, for the timers of a balanced section."""


def session(member_id: str) -> TimerKey:
    """Expires when the member has been silent for its session timeout.

    Paused while a request of the member is held, except for a new member's join, which has a long limit.
    """
    return TimerKey(TimerKind.SESSION, member_id)


def pending(member_id: str) -> TimerKey:
    """Expires when a member that received its id does not join with it."""
    return TimerKey(TimerKind.PENDING, member_id)


def initial_delay() -> TimerKey:
    """Runs out when an empty group has waited long enough for more members. The same timer as `rebalance`."""
    return TimerKey(TimerKind.JOIN)


def rebalance() -> TimerKey:
    """Runs out when the members have had their time to rejoin. The same timer as `initial_delay`."""
    return TimerKey(TimerKind.JOIN)


def sync() -> TimerKey:
    """Runs out when the members of a new generation have had their time to sync."""
    return TimerKey(TimerKind.SYNC)


def retention() -> TimerKey:
    """Runs out when a position, or a group with nothing in it, may have expired."""
    return TimerKey(TimerKind.RETENTION)


def instance(topic: str, name: str) -> TimerKey:
    """Runs out when an instance may have been silent for longer than its timeout; it is not moved by every request."""
    return TimerKey(TimerKind.INSTANCE, name, topic)


def unused(topic: str) -> TimerKey:
    """Runs out when a section may have been unused for its topic's retention time."""
    return TimerKey(TimerKind.UNUSED, section=topic)
