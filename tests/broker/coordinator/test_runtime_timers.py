"""Timers of groups with thousands of members: set and handled in pieces, and none is lost or comes twice."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.broker.coordinator.runtime import Firing, Timers
from headrace.groups import timers
from headrace.groups.timers import TimerKey
from headrace.testing.clock import ManualClock

MANY = 1_000


class Server:
    """All that timers want to know of it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.doubted_ms: int | None = None
        self.firing = Firing()

    def in_doubt(self) -> bool:
        return False


async def until(reached: Callable[[], bool]) -> int:
    """How many turns of the loop it takes."""
    for turns in range(MANY):
        if reached():
            return turns
        await asyncio.sleep(0)
    raise AssertionError("not within a thousand turns")


@pytest.fixture
def fired() -> list[TimerKey]:
    return []


@pytest.fixture
def made(clock: ManualClock, fired: list[TimerKey]) -> Timers[TimerKey]:
    return Timers(Server(clock), fired.append)


KEYS = [timers.session(f"m-{number}") for number in range(MANY)]


async def test_members_that_fall_silent_together_are_handled_in_several_turns(
    made: Timers[TimerKey], clock: ManualClock, fired: list[TimerKey]
) -> None:
    for key in KEYS:
        made.set(key, clock.ticks_ms() + 10)
    clock.advance(10)
    assert 0 < len(fired) < MANY / 2
    assert await until(lambda: len(fired) == MANY) > 2
    assert fired == KEYS
    await asyncio.sleep(0)
    made.set(KEYS[0], clock.ticks_ms() + 10)
    clock.advance(10)
    assert len(fired) == MANY + 1


async def test_many_timers_are_set_in_several_turns(
    made: Timers[TimerKey], clock: ManualClock, fired: list[TimerKey]
) -> None:
    for key in KEYS:
        made.set_late(key, clock.ticks_ms() + 10)
    made.cancel(KEYS[1])
    made.set(KEYS[2], clock.ticks_ms() + 20)
    made.set_late(KEYS[3], clock.ticks_ms() + 20)
    clock.advance(10)
    assert not fired
    for _ in range(100):
        await asyncio.sleep(0)
    clock.advance(0)
    await until(lambda: len(fired) == MANY - 3)
    clock.advance(10)
    assert sorted(fired[-2:], key=KEYS.index) == KEYS[2:4]
    assert len(set(fired)) == len(fired) == MANY - 1
    assert not made


async def test_all_of_them_can_be_called_off(made: Timers[TimerKey], clock: ManualClock, fired: list[TimerKey]) -> None:
    for key in KEYS:
        made.set_late(key, clock.ticks_ms() + 10)
    assert made
    await asyncio.sleep(0)
    made.cancel_all()
    assert not made
    for _ in range(100):
        await asyncio.sleep(0)
    clock.advance(100)
    assert not fired


async def test_an_earlier_deadline_is_not_reported(
    made: Timers[TimerKey], clock: ManualClock, fired: list[TimerKey]
) -> None:
    for key in KEYS:
        made.set(key, clock.ticks_ms() + 10)
    clock.advance(10)
    assert made
    made.set(KEYS[-1], clock.ticks_ms() + 10)
    for _ in range(100):
        await asyncio.sleep(0)
    assert fired == KEYS[:-1]
    for key in KEYS[:-1]:
        made.set(key, clock.ticks_ms() + 10)
    fired.clear()
    clock.advance(10)
    told = len(fired)
    made.cancel_all()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(fired) == told < MANY
