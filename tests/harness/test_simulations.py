"""A mistake is noticed by an error of the rules, and not by one of the mistake itself."""

from collections.abc import Callable

import pytest

from tests.harness.simulations import check_noticed, noted


def failing(*seeds: int, error: type[Exception] = AssertionError) -> Callable[[int], None]:
    def simulate(seed: int) -> None:
        if seed in seeds:
            raise error(f"{seed}")

    return simulate


@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_one_seed_is_enough(error: type[Exception]) -> None:
    check_noticed(failing(3, error=error), range(5))


def test_nothing_is_noticed() -> None:
    with pytest.raises(AssertionError, match="nothing was noticed"):
        check_noticed(failing(), range(5))


@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_mistake_that_does_not_fit_is_none(error: type[Exception]) -> None:
    with pytest.raises(error):
        check_noticed(failing(0, error=error), range(5))


def test_the_seed_is_named() -> None:
    with pytest.raises(AssertionError) as caught, noted(7):
        raise AssertionError("two owners")
    assert caught.value.__notes__ == ["simulate(seed=7)"]
