import itertools

import pytest

from headrace.aio.retry import Backoff, pauses, retry


class Refusal(Exception):
    pass


class Final(Refusal):
    pass


class Step:
    """Fails as often as it is asked to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


class Slept:
    """Sleeps that take no time."""

    def __init__(self) -> None:
        self.durations: list[float] = []

    async def __call__(self, duration: float) -> None:
        self.durations.append(duration)


def test_pauses_double_up_to_the_longest() -> None:
    assert list(itertools.islice(pauses(1, 5), 5)) == [1, 2, 4, 5, 5]
    assert list(itertools.islice(pauses(0.5), 3)) == [0.5, 0.5, 0.5]


async def test_a_step_is_repeated_with_pauses() -> None:
    slept, step = Slept(), Step(Refusal(), Refusal(), Refusal())
    assert await retry(step, Refusal, Backoff(1, 3, slept)) == "done"
    assert step.made == 4
    assert slept.durations == [1, 2, 3]


async def test_a_reset_begins_with_the_first_pause() -> None:
    slept = Slept()
    backoff = Backoff(1, 8, slept)
    for _ in range(3):
        await backoff.pause()
    backoff.reset()
    await backoff.pause()
    assert slept.durations == [1, 2, 4, 1]


@pytest.mark.parametrize("error", [Final("lost"), ValueError("another")])
async def test_permanent_errors_are_raised_at_once(error: Exception) -> None:
    slept, step = Slept(), Step(error)
    with pytest.raises(type(error)):
        await retry(step, Refusal, Backoff(1, sleep=slept), unless=(Final,))
    assert (step.made, slept.durations) == (1, [])


async def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    slept, step = Slept(), Step(*(Refusal(str(number)) for number in range(5)))
    with pytest.raises(Refusal, match="2"):
        await retry(step, Refusal, Backoff(1, sleep=slept), is_over=lambda: step.made == 3)
    assert slept.durations == [1, 1]
