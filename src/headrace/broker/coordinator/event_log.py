"""Log of group events: members that join or leave, the reason, and the new generation.

The console shows the same events: `MemberEvents` keeps them until it takes them.
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec
import structlog

from headrace.groups.description import Client
from headrace.groups.events import DropTopic, Event, Join, Leave, TimerFired
from headrace.groups.group import Group
from headrace.groups.timers import TimerKind

_MOST_TOLD = 255
"""Maximum characters of client input in a log line."""
_MOST_AT_ONCE = 100
"""Maximum members logged per event. All members of a group may expire together."""
_MOST_KEPT = 1_000
"""Maximum events of all groups that are kept for the console."""
_log = structlog.get_logger("headrace.broker.coordinator")

_EXPIRED: Final[dict[TimerKind, Callable[[Client], str]]] = {
    TimerKind.SESSION: lambda client: (
        f"no heartbeat for {_seconds(client.session_timeout_ms)}"
        if client.session_timeout_ms
        else "no heartbeat within its session timeout"
    ),
    TimerKind.JOIN: lambda client: f"it did not rejoin within {_seconds(client.rebalance_timeout_ms)}",
    TimerKind.SYNC: lambda client: f"it did not sync within {_seconds(client.rebalance_timeout_ms)}",
    TimerKind.REVOCATION: lambda client: (
        f"it did not give up partitions within {_seconds(client.rebalance_timeout_ms)}"
    ),
    TimerKind.INSTANCE: lambda _: "no request within its timeout",
}


class MemberEvent(msgspec.Struct, frozen=True):
    """A member that joined or left."""

    time_ms: int
    group: str
    what: str
    """For example `member expired`."""
    client_id: str
    """Client id, or name of an OCI instance; empty for several members."""
    reason: str = ""


class MemberEvents:
    """The latest events of all groups, until they are taken."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._events: deque[MemberEvent] = deque(maxlen=_MOST_KEPT)

    def add(self, group: str, what: str, client_id: str, reason: str = "") -> None:
        """Add an event that happens now."""
        self._events.append(MemberEvent(self._now_ms(), group, what, client_id, reason))

    def take(self) -> list[MemberEvent]:
        """Remove and return the events, the oldest first."""
        taken = list(self._events)
        self._events.clear()
        return taken


def logs_requests(log: Any) -> bool:
    """Whether request logging is on. Callers cache it, for speed."""
    enabled = getattr(log.bind(), "is_enabled_for", None)
    return enabled is not None and bool(enabled(logging.DEBUG))


class GroupEventLog:
    """Compares a group before and after each event."""

    def __init__(self, name: str, machine: Group, events: MemberEvents | None = None) -> None:
        self._name = name
        self._events = events
        machine.take_moved()
        self._instances = machine.instances()
        self._seen = machine.size, machine.generations

    def look(self, machine: Group, event: Event) -> None:
        """Log the changes of an event. Clients' reasons (KIP-800) are logged as sent."""
        seen = machine.size, machine.generations
        if seen == self._seen:
            return
        self._seen = seen
        came, went = machine.take_moved()
        if machine.balanced or self._instances:
            before, self._instances = self._instances, machine.instances()
            came |= {place: Client(name, "") for place, name in self._instances.items() if place not in before}
            went |= {place: Client(name, "") for place, name in before.items() if place not in self._instances}
        for member, client in islice(came.items(), _MOST_AT_ONCE):
            reason = event.reason if isinstance(event, Join) and event.reason else None
            self._tell("member joined", machine, member, client, reason)
        for member, client in islice(went.items(), _MOST_AT_ONCE):
            what, reason = _ending(event, member, client)
            self._tell(what, machine, member, client, reason)
        for what, moved in (("more members joined", came), ("more members left", went)):
            more = len(moved) - _MOST_AT_ONCE
            if more > 0:
                _log.info(what, group=self._name[:_MOST_TOLD], more=more, members=machine.size)
                if self._events is not None:
                    self._events.add(self._name, f"{more} {what}", "")

    def _tell(self, what: str, machine: Group, member: str, client: Client, reason: str | None) -> None:
        more = {} if reason is None else {"reason": reason[:_MOST_TOLD]}
        if self._events is not None:
            self._events.add(self._name, what, (client.client_id or member)[:_MOST_TOLD], more.get("reason", ""))
        _log.info(
            what,
            group=self._name[:_MOST_TOLD],
            member=member[:_MOST_TOLD],
            client_id=client.client_id,
            host=client.host,
            generation=machine.generations,
            members=machine.size,
            **more,
        )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


def _ending(event: Event, member: str, client: Client) -> tuple[str, str | None]:
    match event:
        case Leave(members=leaving):
            return "member left", next((each.reason for each in leaving if each.member_id == member), None)
        case TimerFired(key) if key.kind in _EXPIRED:
            return "member expired", _EXPIRED[key.kind](client)
        case Join():
            return "member left", "another took its place"
        case DropTopic(topic):
            return "member left", f"topic {topic} was deleted"
        case _:
            return "member left", None
