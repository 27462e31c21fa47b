"""What the log says of groups: who joined, who left and why, and the generation that this makes; and whether at all."""

import logging
from itertools import islice
from typing import Any, Final

import structlog

from headrace.groups.events import DropTopic, Event, Join, Leave, TimerFired
from headrace.groups.group import Group
from headrace.groups.timers import TimerKind

_MOST_TOLD = 255
"""Characters of what clients sent that stand in a line."""
_MOST_AT_ONCE = 100
"""Members that have a line each where one event takes in, or out, very many: all of a group may expire together."""
_log = structlog.get_logger("headrace.broker.coordinator")

_EXPIRED: Final = {
    TimerKind.SESSION: "no sign of life for its session's time",
    TimerKind.JOIN: "it did not join again within the rebalance time",
    TimerKind.SYNC: "it did not ask for its assignment within the rebalance time",
    TimerKind.INSTANCE: "no request for its time-out",
}


def logs_requests(log: Any) -> bool:
    """Whether requests and connections are logged, asked once: a call for each that logs nothing would be felt."""
    enabled = getattr(log.bind(), "is_enabled_for", None)
    return enabled is not None and bool(enabled(logging.DEBUG))


class GroupEventLog:
    """Looks at a group after each event: two numbers where nothing has changed, else who came and who went."""

    def __init__(self, name: str, machine: Group) -> None:
        """From what is there now on."""
        self._name = name
        machine.classic.take_moved()
        self._instances = machine.instances()
        self._seen = machine.size, machine.generations

    def look(self, machine: Group, event: Event) -> None:
        """Tell what an event has changed. Kafka's own reasons (KIP-800) are the members' words."""
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
    """What became of a member that is in no longer, and why."""
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
