"""Simulations by seed: runs of many seeds, and of code with a rule that is broken on purpose."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

_NO_MISTAKES = AttributeError, NameError, TypeError
"""What a mistake raises that no longer fits the code: it shows nothing about the rules."""


@contextmanager
def noted(seed: int) -> Iterator[None]:
    """Name the seed of a simulation that fails in this context."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"simulate(seed={seed})")
        raise


def check_noticed(simulate: Callable[[int], object], seeds: Iterable[int]) -> None:
    """Raise AssertionError if all seeds pass with a broken rule.

    The checks of the rules themselves count as well, whatever they raise. An AttributeError or TypeError does not.
    """
    for seed in seeds:
        try:
            simulate(seed)
        except _NO_MISTAKES:
            raise
        except Exception:
            return
    raise AssertionError("nothing was noticed")


def run_many(simulate: Callable[[int], object]) -> None:
    """Many seeds, by the arguments of the command line."""
    parser = argparse.ArgumentParser(description=run_many.__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        simulate(seed)
