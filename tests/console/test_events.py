"""Events by kind: no kind and no name removes the events of others."""

from headrace.console.events import Event, EventKind, Events, mixed


def event(time_ms: int, kind: EventKind, name: str = "a") -> Event:
    return Event(time_ms, "default", kind, name, f"event {time_ms}")


def test_a_busy_kind_leaves_the_events_of_others() -> None:
    events = Events(most=10)
    events.add(event(0, EventKind.TOPIC))
    for number in range(1, 1_000):
        events.add(event(number, EventKind.MEMBER))
    assert [each.time_ms for each in events.newest(EventKind.TOPIC)] == [0]
    assert [each.time_ms for each in events.newest(EventKind.MEMBER)] == list(range(999, 989, -1))


def test_a_busy_name_leaves_the_events_of_others_of_its_kind() -> None:
    events = Events(most=10)
    events.add(event(0, EventKind.GROUP, "quiet"))
    for number in range(1, 1_000):
        events.add(event(number, EventKind.GROUP, "busy"))
    kept = list(events.newest(EventKind.GROUP))
    assert len(kept) == 10
    assert kept[-1].name == "quiet"
    # Where each name has one event, the oldest goes.
    for number in range(1_000, 1_100):
        events.add(event(number, EventKind.GROUP, f"group {number}"))
    assert [each.time_ms for each in events.newest(EventKind.GROUP)] == list(range(1_099, 1_089, -1))


def test_a_mixed_list_has_some_of_each_kind() -> None:
    topics = [event(1, EventKind.TOPIC)]
    members = [event(number, EventKind.MEMBER) for number in range(100, 0, -1)]
    assert [each.time_ms for each in mixed([topics, members], 4, 2)] == [100, 99, 98, 1]
    assert [each.time_ms for each in mixed([topics, []], 4, 2)] == [1]
    assert mixed([[], []], 4, 2) == []
