"""Options of several benchmarks: lists of names and of numbers.

    parser.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS))
    parser.add_argument("--sizes", type=numbers, default=[100, 1024])

Both are types for `argparse`. They split the text at its commas, and report what is not allowed as argparse does.
"""

import argparse
from collections.abc import Callable


def some_of(*allowed: str) -> Callable[[str], list[str]]:
    """Return the type of an option with some of these names.

    Args:
        allowed: the names, which the error lists.
    """

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if not set(found) <= set(allowed):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(allowed)}, found {text}")
        return found

    return parse


def numbers(text: str) -> list[int]:
    """Return the numbers of an option.

    Raises:
        ArgumentTypeError: one is none.
    """
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, found {text}") from None
