"""Log of group events: members that join or leave, the reason, and the new generation."""

import logging
from itertools import islice
from typing import Any, Final

import structlog

from headrace.groups.events import DropTopic, Event, Join, Leave, TimerFired
from headrace.groups.group import Group
from headrace.groups.timers import TimerKind

_MOST_TOLD = 255
"""Maximum characters of client input in a log line."""
_MOST_AT_ONCE = 100
"""Maximum members logged per event. All members of a group may expire together."""
_log = structlog.get_logger("headrace.broker.coordinator")

_EXPIRED: Final = {
    TimerKind.SESSION: "no sign of life for its session's time",
    TimerKind.JOIN: "it did not join again within the rebalance time",
    TimerKind.SYNC: "it did not ask for its assignment within the rebalance time",
    TimerKind.INSTANCE: "no request for its time-out",
}


def logs_requests(log: Any) -> bool:
    """Whether request logging is on. Callers cache it, for speed."""
    enabled = getattr(log.bind(), "is_enabled_for", None)
    return enabled is not None and bool(enabled(logging.DEBUG))


class GroupEventLog:
    """Compares a group before and after each event."""

    def __init__(self, name: str, machine: Group) -> None:
        self._name = name
        machine.classic.take_moved()
        self._instances = machine.instances()
        self._seen = machine.size, machine.generations

    def look(self, machine: Group, event: Event) -> None:
        """Log the changes of an event. Clients' reasons (KIP-800) are logged as sent."""
        seen = machine.size, machine.generations
        if seen == self._seen:
            return
        self._seen = seen
        came, went = machine.classic.take_moved()
        if machine.balanced or self._instances:
            before, self._instances = self._instances, machine.instances()
            came |= {place: (name, "") for place, name in self._instances.items() if place not in before}
            went |= {place: (name, "") for place, name in before.items() if place not in self._instances}
        for member, (client, host) in islice(came.items(), _MOST_AT_ONCE):
            reason = event.reason if isinstance(event, Join) and event.reason else None
            self._tell("member joined", machine, member, client, host, reason)
        for member, (client, host) in islice(went.items(), _MOST_AT_ONCE):
            what, reason = _ending(event, member)
            self._tell(what, machine, member, client, host, reason)
        for what, moved in (("more members joined", came), ("more members left", went)):
            if len(moved) > _MOST_AT_ONCE:
                _log.info(what, group=self._name[:_MOST_TOLD], more=len(moved) - _MOST_AT_ONCE, members=machine.size)

    def _tell(self, what: str, machine: Group, member: str, client: str, host: str, reason: str | None) -> None:
        more = {} if reason is None else {"reason": reason[:_MOST_TOLD]}
        _log.info(
            what,
            group=self._name[:_MOST_TOLD],
            member=member[:_MOST_TOLD],
            client_id=client,
            host=host,
            generation=machine.generations,
            members=machine.size,
            **more,
        )


def _ending(event: Event, member: str) -> tuple[str, str | None]:
    match event:
        case Leave(members=leaving):
            return "member left", next((each.reason for each in leaving if each.member_id == member), None)
        case TimerFired(key) if key.kind in _EXPIRED:
            return "member expired", _EXPIRED[key.kind]
        case Join():
            return "member left", "another took its place"
        case DropTopic(topic):
            return "member left", f"topic {topic} was deleted"
        case _:
            return "member left", None
