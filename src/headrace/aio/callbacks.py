"""How those who wait for one thing are told of it."""

from collections.abc import Callable
from typing import TypeVar

import structlog

R = TypeVar("R")
_log = structlog.get_logger("headrace.aio")


def tell(done: Callable[[R], None], result: R, to: str) -> None:
    """Call back one of several: what goes wrong there is logged, and all others are told all the same.

    `to`: what the result is the answer to, for the log.
    """
    try:
        done(result)
    except Exception:
        log_unhandled(to)


def log_unhandled(to: str) -> None:
    """Log the present exception as `tell` does, which where batches are many is a call too much for each."""
    _log.exception("an answer could not be handled", to=to)
