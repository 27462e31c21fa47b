"""The clock that stops while the server is paused."""

from headrace.broker.runtime.clock import RunningClock, SystemClock
from headrace.testing.clock import ManualClock

HOUR_MS = 3_600_000


def test_its_ticks_stand_still_while_the_server_does() -> None:
    machine = ManualClock()
    clock = RunningClock(machine)
    fired: list[str] = []
    began_ms = clock.ticks_ms()
    clock.call_at(began_ms + 10_000, lambda: fired.append("late"))
    clock.call_at(began_ms + 10_000, lambda: fired.append("cancelled")).cancel()
    moved = clock.call_at(began_ms + 20_000, lambda: fired.append("cancelled later"))
    machine.advance(4_000)
    machine.stand_still(HOUR_MS)
    machine.advance(5_999)
    moved.cancel()
    assert fired == []
    assert clock.ticks_ms() == began_ms + 9_999
    assert clock.uptime_ms() == machine.uptime_ms() == began_ms + HOUR_MS + 9_999
    assert clock.now_ms() == machine.now_ms()
    machine.advance(1)
    assert fired == ["late"]
    machine.advance(20_000)
    assert fired == ["late"]


def test_what_a_busy_server_takes_counts() -> None:
    machine = ManualClock()
    clock = RunningClock(machine)
    began_ms = clock.ticks_ms()
    for _ in range(10):
        machine.stand_still(1_000)
        machine.advance(0)
    assert clock.ticks_ms() == began_ms + 10_000


def test_the_uptime_of_a_machine_goes_on() -> None:
    clock = SystemClock()
    ticks, first = clock.ticks_ms(), clock.uptime_ms()
    assert clock.uptime_ms() >= first >= ticks - 1
