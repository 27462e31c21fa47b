"""The timers of a state machine: by the server's clock, put off in doubt, and set in pieces where there are many."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from headrace.broker.runtime.clock import Clock, Timer

K = TypeVar("K", bound=Hashable)

_UNCERTAIN_MS = 250
"""How long a timer is put off where this server may coordinate the machine no more."""
_MOST_GRACE_MS = 60_000
"""How long it waits at most when that is over: by default clients give a sign of life every 15 seconds or sooner."""
_AT_ONCE = 200
"""Timers that are set in one turn of the loop."""
_FIRED_AT_ONCE = 100
"""Events of all machines' timers that are handled in one turn of the loop; each may take a member out, and say so."""


class Firing:
    """Hands timers' events on: thousands of members that fall silent at one time are due in one turn of the loop."""

    def __init__(self) -> None:
        """None is due."""
        self._late: deque[Callable[[], None]] = deque()
        self._handled = 0

    def hand_on(self, fired: Callable[[], None]) -> None:
        """Call `fired`, at once or in one of the next turns of the loop."""
        if not self._handled:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._handled < _FIRED_AT_ONCE and not self._late:
            self._handled += 1
            fired()
        else:
            self._late.append(fired)

    def _next_turn(self) -> None:
        self._handled = min(len(self._late), _FIRED_AT_ONCE)
        if self._handled:
            asyncio.get_running_loop().call_soon(self._next_turn)
        for _ in range(self._handled):
            self._late.popleft()()


class Doubt(Protocol):
    """What timers must know of the server."""

    @property
    def clock(self) -> Clock:
        """By which timers are set."""

    @property
    def doubted_ms(self) -> int | None:
        """When it was last in doubt about its machines (ticks)."""

    @property
    def firing(self) -> Firing:
        """Where events of timers go."""

    def in_doubt(self) -> bool:
        """Whether somebody may have taken its machines over by now."""


class Timers(Generic[K]):
    """The timers of one machine by their keys."""

    def __init__(self, server: Doubt, fired: Callable[[K], None]) -> None:
        """None is set; `fired` is told of those that are due."""
        self._server = server
        self._tell = fired
        self._set: dict[K, Timer] = {}
        self._late: dict[K, int] = {}
        """Deadlines of those that are about to be set."""

    def __bool__(self) -> bool:
        return bool(self._set or self._late)

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move one."""
        self.cancel(key)
        self._arrange(key, deadline_ms)

    def set_late(self, key: K, deadline_ms: int) -> None:
        """The same, in one of the next turns of the loop: one event may set those of thousands of members."""
        self.cancel(key)
        if not self._late:
            asyncio.get_running_loop().call_soon(self._arrange_some)
        self._late[key] = deadline_ms

    def cancel(self, key: K) -> None:
        """Forget one, if it is set."""
        self._late.pop(key, None)
        timer = self._set.pop(key, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        """Forget every one."""
        self._late.clear()
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()

    def _arrange_some(self) -> None:
        for key in tuple(islice(self._late, _AT_ONCE)):
            self._arrange(key, self._late.pop(key))
        if self._late:
            asyncio.get_running_loop().call_soon(self._arrange_some)

    def _arrange(self, key: K, deadline_ms: int) -> None:
        clock = self._server.clock
        grace_ms = min(deadline_ms - clock.ticks_ms(), _MOST_GRACE_MS)
        self._set[key] = clock.call_at(deadline_ms, lambda: self._fired(key, grace_ms))

    def _due(self, key: K, timer: Timer) -> None:
        """Tell, unless it was called off or moved since it was due; until now it counts as set."""
        if self._set.get(key) is timer:
            del self._set[key]
            self._tell(key)

    def _fired(self, key: K, grace_ms: int, waited: bool = False) -> None:
        server, now_ms = self._server, self._server.clock.ticks_ms()
        if server.in_doubt():
            # Its members may have gone on elsewhere, while this server stood still or Redis does not answer.
            again_ms, waited = now_ms + _UNCERTAIN_MS, False
        elif server.doubted_ms is not None and (again_ms := server.doubted_ms + grace_ms) > now_ms and not waited:
            # They were refused until then, and get as long to be heard as they had; once, or they might stay for ever.
            waited = True
        else:
            due = self._set[key]
            server.firing.hand_on(lambda: self._due(key, due))
            return
        self._set[key] = server.clock.call_at(again_ms, lambda: self._fired(key, grace_ms, waited))
