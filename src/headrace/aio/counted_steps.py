"""The time that a coroutine has the event loop, without the time that it waits."""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any


@coroutine
def counted(
    later: Coroutine[Any, Any, Any], resume: Callable[[], None], pause: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Run as `later`, calling `resume` before each of its steps and `pause` after it."""
    error: BaseException | None = None
    value: Any = None
    while True:
        resume()
        try:
            awaited = later.send(value) if error is None else later.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            pause()
        value = error = None
        try:
            value = yield awaited
        except BaseException as thrown:
            error = thrown
