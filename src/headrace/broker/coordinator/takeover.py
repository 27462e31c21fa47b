"""Takes over every stored group of a broker that has become a coordinator: their members' time runs from then on."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import compress

import structlog

from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.backoff import Backoff
from headrace.broker.runtime.clock import Clock
from headrace.topics.errors import TopicError

_AT_ONCE = 64
_AGAIN_MS, _SELDOM_MS = 250, 1_000
"""How soon groups are tried again that could not be taken over: at first, and at last."""
_log = structlog.get_logger("headrace.groups")


async def take_over_all(
    storage: GroupStorage, owns: Callable[[str], bool], ready: Callable[[str], Awaitable[object]], clock: Clock
) -> None:
    """Try until all are taken over, or are another broker's.

    Who has just joined is in doubt until its next heartbeat, and a shard may be away: none is left out for that.

    Args:
        storage: knows the names of all groups.
        owns: whether a group is this broker's.
        ready: takes a group over; answers why it cannot be, None: it is.
        clock: its ticks say when to try again.
    """
    again = Backoff(clock, _AGAIN_MS, _SELDOM_MS)
    while True:
        try:
            names = await storage.names()
            break
        except TopicError:
            await again.pause()
    while names := [name for name in names if owns(name)]:
        later: list[str] = []
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            wait = await asyncio.gather(*(_has_to_wait(name, ready) for name in part))
            later += compress(part, wait)
            if all(wait):
                await again.pause()
        names = later


async def _has_to_wait(name: str, ready: Callable[[str], Awaitable[object]]) -> bool:
    """Take a group over if that can be; whether it is to be tried again."""
    try:
        return await ready(name) is not None
    except Exception:  # the others are to be taken over all the same
        _log.exception("a group could not be taken over: it is tried again when somebody asks", group=name)
        return False
