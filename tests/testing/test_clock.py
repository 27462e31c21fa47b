"""The manual clock itself."""

from headrace.testing.clock import ManualClock


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
    timer = clock.call_at(clock.now_ms() + 10, lambda: ran.append(1))
    assert clock.pending == 1
    timer.cancel()
    clock.advance(100)

    assert not ran
    assert clock.pending == 0


def test_a_timer_may_arrange_another_that_is_due_at_once() -> None:
    clock = ManualClock(0)
    ran: list[int] = []

    def first() -> None:
        clock.call_at(clock.now_ms() + 5, lambda: ran.append(clock.now_ms()))

    clock.call_at(10, first)
    clock.advance(20)

    assert ran == [15]
