"""Lists of recent events on pages."""

from collections.abc import Sequence
from datetime import UTC, datetime

from headrace.console import text
from headrace.console.events import Event, EventKind, mixed
from headrace.console.registry import ViewRequest, cluster_rule
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType

FEW = 8
"""Events of all kinds in a list."""
_EACH = 2
"""Events of each kind that a list of all kinds has at least, if they exist."""
MANY = 50
"""Events of one kind in a list."""
_SHOWN = {EventKind.MEMBER: "group"}
"""Kind of the name of an event, where it is another than the kind of the event."""
_CLUSTER = cluster_rule(Operation.DESCRIBE)


def chosen_kind(ask: ViewRequest) -> EventKind | None:
    """Return the kind of events that the query asks for; None: all."""
    return next((kind for kind in EventKind if kind.value == ask.query.get("events")), None)


def recent(ask: ViewRequest) -> list[Event]:
    """Return recent events that the viewer may see, of the chosen kind or of all, the newest first."""
    chosen = chosen_kind(ask)
    if chosen is not None:
        return _visible(ask, chosen, MANY)
    return mixed([_visible(ask, kind, FEW) for kind in EventKind], FEW, _EACH)


def of_group(ask: ViewRequest, group: str, most: int) -> list[Event]:
    """Return the events of a group and its members, the newest first."""
    events = ask.figures.sampler.events
    found = [
        event
        for kind in (EventKind.GROUP, EventKind.MEMBER)
        for event in events.newest(kind)
        if (event.cluster, event.name) == (ask.broker.cluster, group)
    ]
    return sorted(found, key=lambda event: event.time_ms, reverse=True)[:most]


def _visible(ask: ViewRequest, kind: EventKind, most: int) -> list[Event]:
    found = []
    for event in ask.figures.sampler.events.newest(kind):
        if _sees(ask, event):
            found.append(event)
            if len(found) == most:
                break
    return found


def _sees(ask: ViewRequest, event: Event) -> bool:
    if event.kind is EventKind.SERVER:
        return ask.may(_CLUSTER, Resource(ResourceType.CLUSTER, CLUSTER_NAME, ask.broker.cluster))
    kind = ResourceType.TOPIC if event.kind is EventKind.TOPIC else ResourceType.GROUP
    return event.cluster == ask.broker.cluster and ask.sees(kind, event.name)


def event_cells(events: Sequence[Event], slots: int) -> dict[str, str]:
    """Return the cells of a list of events."""
    cells = {}
    for slot in range(slots):
        event = events[slot] if slot < len(events) else None
        cells[f"event.{slot}.at"] = "" if event is None else _moment(event.time_ms).isoformat()
        cells[f"event.{slot}.utc"] = "" if event is None else f"{_moment(event.time_ms):%Y-%m-%d %H:%M:%S}"
        cells[f"event.{slot}.kind"] = "" if event is None else _SHOWN.get(event.kind, event.kind.value)
        cells[f"event.{slot}.name"] = "" if event is None else text.name(event.name) or "broker"
        cells[f"event.{slot}.href"] = "" if event is None else _path(event)
        cells[f"event.{slot}.text"] = "" if event is None else event.text
    return cells


def _path(event: Event) -> str:
    if event.kind is EventKind.SERVER:
        return "/brokers"
    return (text.topic if event.kind is EventKind.TOPIC else text.group)(event.name, event.cluster)


def _moment(time_ms: int) -> datetime:
    """Return a time in UTC, in whole seconds. The page's script shows it in the browser's time zone."""
    return datetime.fromtimestamp(time_ms // 1000, UTC)
