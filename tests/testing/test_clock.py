"""The clocks of tests themselves."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from headrace.broker.runtime.clock import SystemClock
from headrace.testing.clock import ManualClock, MovableClock


def test_timers_run_in_order_of_their_deadlines_each_at_its_own_time() -> None:
    clock = ManualClock(1_000)
    ran: list[tuple[str, int]] = []
    clock.call_at(1_300, lambda: ran.append(("late", clock.now_ms())))
    clock.call_at(1_100, lambda: ran.append(("early", clock.now_ms())))
    clock.advance(250)

    assert ran == [("early", 1_100)]
    assert clock.now_ms() == 1_250

    clock.advance(50)

    assert ran == [("early", 1_100), ("late", 1_300)]


def test_a_cancelled_timer_never_runs() -> None:
    clock = ManualClock()
    ran: list[int] = []
    timer = clock.call_at(clock.ticks_ms() + 10, lambda: ran.append(1))
    assert clock.pending == 1
    timer.cancel()
    clock.advance(100)

    assert not ran
    assert clock.pending == 0


def test_a_timer_may_arrange_another_that_is_due_at_once() -> None:
    clock = ManualClock(0)
    ran: list[int] = []

    def first() -> None:
        clock.call_at(clock.ticks_ms() + 5, lambda: ran.append(clock.now_ms()))

    clock.call_at(10, first)
    clock.advance(20)

    assert ran == [15]


async def test_a_movable_clock_fires_what_is_due_in_order_each_at_its_own_time() -> None:
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    start = clock.ticks_ms()
    ran: list[tuple[str, bool]] = []
    clock.call_at(start + 60_000, lambda: ran.append(("late", 60_000 <= clock.ticks_ms() - start < 61_000)))
    clock.call_at(start + 31_000, lambda: ran.append(("early", 31_000 <= clock.ticks_ms() - start < 32_000)))
    clock.call_at(start + 90_000, lambda: ran.append(("never", False)))

    await asyncio.to_thread(clock.advance, minutes=1, seconds=1)

    assert ran == [("early", True), ("late", True)]
    assert 61_000 <= clock.ticks_ms() - start < 62_000


async def test_a_movable_clock_goes_on_by_itself() -> None:
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    fired = asyncio.Event()
    called_off = clock.call_at(clock.ticks_ms() + 1, lambda: pytest.fail("it was called off"))
    clock.call_at(clock.ticks_ms() + 5, fired.set)
    called_off.cancel()

    await asyncio.wait_for(fired.wait(), 60)


async def test_a_movable_clock_survives_a_timer_that_fails() -> None:
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    ran: list[int] = []

    def fail() -> None:
        raise LookupError("on purpose")

    clock.call_at(clock.ticks_ms() + 1_000, fail)
    clock.call_at(clock.ticks_ms() + 2_000, lambda: ran.append(1))
    with pytest.raises(LookupError, match="on purpose"):
        await asyncio.to_thread(clock.advance, 10)
    await asyncio.to_thread(clock.advance, 10)

    assert ran == [1]


def test_a_movable_clock_is_moved_without_a_loop_too() -> None:
    clock = MovableClock()
    start = clock.now_ms()
    clock.advance(hours=25)

    assert 25 * 3_600_000 <= clock.now_ms() - start < 25 * 3_600_000 + 5_000
    with pytest.raises(ValueError, match="forward only, not by -1000 ms; step sets the wall clock back"):
        clock.advance(-1)
    assert clock.ahead_ms == 25 * 3_600_000
    clock.reset()
    assert abs(clock.now_ms() - time.time() * 1000) < 5_000


@pytest.mark.parametrize("hours", [-24 * 365, 24 * 365])
async def test_a_step_of_the_wall_clock_lets_no_time_pass(hours: int) -> None:
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    wall, ticks = clock.now_ms(), clock.ticks_ms()
    ran: list[int] = []
    clock.call_at(ticks + 60_000, lambda: ran.append(1))
    clock.step(hours=hours)

    assert abs(clock.now_ms() - wall - hours * 3_600_000) < 5_000
    assert 0 <= clock.ticks_ms() - ticks < 5_000
    await asyncio.to_thread(clock.advance, 50)
    assert ran == []
    await asyncio.to_thread(clock.advance, 10)
    assert ran == [1]


def test_the_machines_clock_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    ticks = clock.ticks_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 1_234_567_890_123_000_000)

    assert clock.now_ms() == 1_234_567_890_123
    assert 0 <= clock.ticks_ms() - ticks < 60_000


async def test_a_clock_that_a_server_goes_by_is_not_set_back() -> None:
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="stop the server first"):
        clock.reset()


def test_many_threads_may_move_a_clock_at_once() -> None:
    clock = MovableClock()
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    try:
        clock.bind(loop)
        start = time.time() * 1000
        threads = [threading.Thread(target=clock.advance, args=(10,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 80_000 <= clock.now_ms() - start < 90_000
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()


async def test_what_timers_set_going_is_waited_for_in_all_its_steps() -> None:
    """As of a group whose members go and which goes itself: one write after the other, and a timer between them."""
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    start = clock.ticks_ms()
    steps: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def write(name: str, then: Callable[[], None]) -> None:
        await asyncio.sleep(0.02)
        steps.append(name)
        then()

    def begin(name: str, then: Callable[[], None]) -> None:
        tasks.append(asyncio.create_task(write(name, then)))

    def arrange() -> None:
        clock.call_at(start + 1_500, lambda: begin("third", lambda: None))

    clock.call_at(start + 1_000, lambda: begin("first", lambda: begin("second", arrange)))

    def advance() -> list[str]:
        clock.advance(2)
        return steps.copy()

    assert await asyncio.to_thread(advance) == ["first", "second", "third"]
