"""Timers of groups with thousands of members: set and handled in pieces, and none is lost or comes twice."""

import structlog

from headrace.broker.coordinator.event_log import GroupEventLog
from headrace.groups import timers
from headrace.groups.events import Join, TimerFired
from headrace.groups.group import Group
from headrace.groups.model import GroupSettings
from headrace.machines.effects import Now

MANY = 1_000


def test_a_crowd_that_goes_at_once_has_a_line_for_the_first_of_them() -> None:
    machine = Group("g", GroupSettings())
    for number in range(MANY):
        asked = Join(
            token=number,
            member_id="",
            instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(("range", b""),),
            new_member_id=f"m-{number}",
            member_id_required=False,
            skip_assignment_supported=False,
        )
        machine.handle(asked, Now(0, 0))
    teller = GroupEventLog("g", machine)
    for key in (timers.initial_delay(), timers.sync()):
        while key in machine.deadlines:
            at = machine.deadlines[key]
            machine.handle(event := TimerFired(key), Now(at, at))
    with structlog.testing.capture_logs() as lines:
        teller.look(machine, event)
    assert len(lines) == 101
    assert lines[0]["event"] == "member expired"
    assert lines[-1] == {
        "event": "more members left",
        "group": "g",
        "more": MANY - 100,
        "members": 0,
        "log_level": "info",
    }
