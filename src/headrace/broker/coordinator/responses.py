"""Answers many requests in several turns of the event loop: each answer is to be encoded and sent in its turn."""

import asyncio
from collections import deque

from headrace.groups.effects import Result

AT_ONCE = 200
"""Requests that are answered in one turn."""
Late = deque[tuple["asyncio.Future[Result]", Result]]
"""Answers that have to wait for theirs, in order. Nobody takes them back: they were decided, and stored if need be."""


def answer_soon(late: Late) -> None:
    """Answer all of them, in the next turns of the loop."""
    if late:
        asyncio.get_running_loop().call_soon(_answer_some, late)


def _answer_some(late: Late) -> None:
    for _ in range(min(len(late), AT_ONCE)):
        future, result = late.popleft()
        if not future.done():
            future.set_result(result)
    answer_soon(late)
