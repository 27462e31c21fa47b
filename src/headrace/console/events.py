"""Recent events of all virtual clusters, kept by kind. Pure.

Each kind keeps its own events. In a full kind, the name with the most events loses its oldest one. So neither a busy
kind nor a group that rebalances all the time removes the events of others.
"""

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from itertools import islice

import msgspec

MOST = 200
"""Maximum events of one kind."""


class EventKind(Enum):
    """Kinds of events."""

    TOPIC = "topic"
    GROUP = "group"
    MEMBER = "member"
    """Members of groups. An event has the name of its group."""
    SERVER = "server"


class Event(msgspec.Struct, frozen=True):
    """An event."""

    time_ms: int
    cluster: str
    """Virtual cluster; empty for events of the server."""
    kind: EventKind
    name: str
    """The topic or group; empty for the server."""
    text: str
    """What happened, and the reason if it is known, safe for display."""


class Events:
    """Events by kind."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[EventKind, list[Event]] = {kind: [] for kind in EventKind}
        """The oldest first."""
        self._counts: dict[EventKind, Counter[tuple[str, str]]] = {kind: Counter() for kind in EventKind}
        """Events of each name."""

    def add(self, event: Event) -> None:
        """Add an event."""
        kept, counts = self._kept[event.kind], self._counts[event.kind]
        kept.append(event)
        counts[event.cluster, event.name] += 1
        if len(kept) > self._most:
            loudest, _ = counts.most_common(1)[0]
            place = next(place for place, each in enumerate(kept) if (each.cluster, each.name) == loudest)
            del kept[place]
            counts[loudest] -= 1
            counts += Counter()  # drops names without events

    def newest(self, kind: EventKind) -> Iterator[Event]:
        """Yield the events of a kind, the newest first."""
        return reversed(self._kept[kind])


def mixed(kinds: list[list[Event]], most: int, each_at_least: int) -> list[Event]:
    """Return at most `most` events of several kinds, the newest first, with some of each kind.

    Each list has the newest event first.
    """
    first = [event for events in kinds for event in islice(events, each_at_least)]
    rest = [event for events in kinds for event in events[each_at_least:]]
    rest.sort(key=lambda event: event.time_ms, reverse=True)
    chosen = [*first, *rest[: max(0, most - len(first))]]
    return sorted(chosen, key=lambda event: event.time_ms, reverse=True)[:most]
