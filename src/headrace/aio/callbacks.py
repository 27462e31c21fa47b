"""Callbacks of several waiters, of which none can stop another."""

from collections.abc import Callable
from typing import TypeVar

import structlog

R = TypeVar("R")
_log = structlog.get_logger("headrace.aio")


def tell(done: Callable[[R], None], result: R, to: str) -> None:
    """Call one of several callbacks. Its exception is logged, so that the others are called as well.

    `to`: what the result answers, for the log.
    """
    try:
        done(result)
    except Exception:
        log_unhandled(to)


def log_unhandled(to: str) -> None:
    """Log the current exception as `tell` does, for loops over many batches that cannot afford its call for each."""
    _log.exception("an answer could not be handled", to=to)
