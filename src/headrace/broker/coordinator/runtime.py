"""Runners of a coordinator's state machines, such as consumer groups.

A machine is pure: it takes an event and the time and returns ordered effects (`headrace.machines`). Its runner executes
those of one event before the next. Changes are durable before the reply that acknowledges them. If storage refuses a
write, the machine is restored from it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context
from itertools import islice
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import structlog

from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.runtime.scheduler import SLICE_S, CooperativeScheduler
from headrace.machines.effects import CancelTimer, Command, Effect, Persist, Reply, SetTimer
from headrace.topics.errors import TopicError

K = TypeVar("K", bound=Hashable)
"""Type of timer keys."""

_log = structlog.get_logger("headrace.broker.coordinator")

_UNCERTAIN_MS = 250
"""Delay of a timer in ms while ownership is doubtful."""
_MOST_GRACE_MS = 60_000
"""Maximum extension afterwards in ms. By default, clients send heartbeats every 15 s or sooner."""
_AT_ONCE = 200
"""Timers set in one turn of the event loop."""
_FIRED_AT_ONCE = 100
"""Timer events per turn of the event loop. Each may remove and log a member."""


class Firing:
    """Spreads timer events over turns, because thousands of members may expire together."""

    def __init__(self) -> None:
        self._late: deque[Callable[[], None]] = deque()
        self._handled = 0

    def hand_on(self, fired: Callable[[], None]) -> None:
        """Call `fired` now or in one of the next turns."""
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
    """What timers need from the server."""

    @property
    def clock(self) -> Clock:
        """Clock of the timers."""

    @property
    def doubted_ms(self) -> int | None:
        """Ticks of the last doubt about ownership."""

    @property
    def firing(self) -> Firing:
        """Handler of timer events."""

    def in_doubt(self) -> bool:
        """Whether another broker may coordinate its machines now."""


class Timers(Generic[K]):
    """Timers of one machine by key."""

    def __init__(self, server: Doubt, fired: Callable[[K], None]) -> None:
        self._server = server
        self._tell = fired
        self._set: dict[K, Timer] = {}
        self._late: dict[K, int] = {}
        """Deadlines of timers to be set in a later turn."""

    def __bool__(self) -> bool:
        return bool(self._set or self._late)

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move a timer."""
        self.cancel(key)
        self._arrange(key, deadline_ms)

    def set_late(self, key: K, deadline_ms: int) -> None:
        """Set a timer in a later turn, because one event may set thousands."""
        self.cancel(key)
        if not self._late:
            asyncio.get_running_loop().call_soon(self._arrange_some)
        self._late[key] = deadline_ms

    def cancel(self, key: K) -> None:
        """Cancel a timer if it is set."""
        self._late.pop(key, None)
        timer = self._set.pop(key, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        """Cancel every timer."""
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
        if self._set.get(key) is timer:
            del self._set[key]
            self._tell(key)

    def _fired(self, key: K, grace_ms: int, waited: bool = False) -> None:
        server, now_ms = self._server, self._server.clock.ticks_ms()
        if server.in_doubt():
            # Members may use another coordinator while this server is paused or Redis does not respond.
            again_ms, waited = now_ms + _UNCERTAIN_MS, False
        elif server.doubted_ms is not None and (again_ms := server.doubted_ms + grace_ms) > now_ms and not waited:
            # Refused members get the same time again, but only once.
            waited = True
        else:
            due = self._set[key]
            server.firing.hand_on(lambda: self._due(key, due))
            return
        self._set[key] = server.clock.call_at(again_ms, lambda: self._fired(key, grace_ms, waited))


E = TypeVar("E")
"""Event type of a machine."""
R = TypeVar("R")
"""Result type of its requests."""
C = TypeVar("C")
"""Type of its stored changes."""
T = TypeVar("T")

AT_ONCE = 200
"""Requests answered per turn of the event loop."""
_MOST_MERGED = 200
"""Changes of several events in one write."""
_AGAIN_MS = 1_000
"""Delay in ms before a refused change is retried that no client repeats, such as an expiry."""


class _LateReplies(Generic[T]):
    def __init__(self) -> None:
        self._replies: deque[tuple[asyncio.Future[T], T]] = deque()

    def add(self, future: "asyncio.Future[T]", result: T) -> None:
        self._replies.append((future, result))

    def send(self) -> None:
        if self._replies:
            asyncio.get_running_loop().call_soon(self._send_some)

    def _send_some(self) -> None:
        for _ in range(min(len(self._replies), AT_ONCE)):
            future, result = self._replies.popleft()
            if not future.done():
                future.set_result(result)
        self.send()


class Host(Doubt, Protocol):
    """What a runner needs of its coordinator."""

    @property
    def lane(self) -> CooperativeScheduler:
        """Scheduler for long work."""

    def settled(self, runner: Any) -> None:
        """Handle an idle runner."""


class Runner(ABC, Generic[E, R, C, K]):
    """Only owner of a machine. Subclasses define requests, storage and refusals."""

    def __init__(self, name: str, host: Host, view: int | None) -> None:
        """Create the runner; `begin` restores its machine. `view`: broker epoch."""
        self.name = name
        self.view = view
        self._host = host
        self._queue: deque[tuple[E, int]] = deque()
        """Events with their arrival time (ticks)."""
        self._waiting: dict[Hashable, tuple[E, asyncio.Future[R]]] = {}
        self._timers: Timers[K] = Timers(host, lambda key: self.post(self.fired(key)))
        self._resting = False
        """Whether queued events wait because earlier ones took long."""
        self._writing: asyncio.Task[None] | None = None
        self._began_ms = 0  # start of the running write (ticks)
        self._rewrite = False
        """Whether the outcome of the last write is unknown, so that the next one stores everything."""
        self._closed = False
        self._moved = False
        """Whether another broker coordinates the machine."""

    @abstractmethod
    def restore(self) -> list[Effect[C, K, R]]:
        """Restore the machine from storage and return its effects."""

    @abstractmethod
    def handle(self, event: E, arrived_ms: int) -> list[Effect[C, K, R]]:
        """Apply an event to the machine."""

    @abstractmethod
    def fired(self, key: K) -> E:
        """Return the event of a timer."""

    @abstractmethod
    def refusal(self, request: E, reason: str) -> R:
        """Return what makes a client retry here or at the new coordinator (`moved`)."""

    @abstractmethod
    async def store(self, changes: tuple[C, ...], *, everything: bool) -> None:
        """Make changes durable; `everything` stores the full state. Raises TopicError."""

    @abstractmethod
    def stored(self, changes: tuple[C, ...]) -> None:
        """Apply changes that storage accepted."""

    def merges(self, changes: tuple[C, ...]) -> bool:
        """Return whether one write may store these with those of the next events."""
        return False

    def not_stored(self, reason: str, again_ms: int) -> None:
        """Handle a refused write, with the machine restored. The next follows at `again_ms` or later."""

    def perform(self, command: Command) -> None:
        """Perform a command of this kind of machine. Raises TypeError for a machine without commands."""
        raise TypeError(f"{type(self).__name__} has no commands: {command}")

    def idle(self) -> None:
        """Handle an empty queue without a running write."""

    def released(self) -> None:
        """Handle the loss or the deletion of the machine."""

    def begin(self) -> None:
        """Restore the machine and execute its first effects."""
        self._carry_out(self.restore())

    def submit(self, token: Hashable, event: E) -> "asyncio.Future[R]":
        """Queue a request. The future gets the reply for its token."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(self.refusal(event, ""))
            return future
        self._waiting[token] = (event, future)
        self.post(event)
        return future

    def post(self, event: E) -> None:
        """Queue an event, and process the queue unless a write runs."""
        if self._closed:
            return
        self._queue.append((event, self._host.clock.ticks_ms()))
        self._work()

    def _go_on(self) -> None:
        self._resting = False
        self._work()

    def _work(self) -> None:
        if self._resting:
            return
        until = perf_counter() + SLICE_S
        while self._queue and self._writing is None:
            if perf_counter() >= until:
                # With thousands of partitions, events take milliseconds.
                self._resting = True
                self._host.lane.later(self._go_on)
                return
            self._carry_out(self._merged(self.handle(*self._queue.popleft()), until))
        if self._writing is None:
            self.idle()
            self._host.settled(self)

    def _merged(self, effects: list[Effect[C, K, R]], until: float) -> list[Effect[C, K, R]]:
        """Handle more events if one write can store them together. Return the effects of all."""
        first = effects[0] if effects else None
        if not (self._queue and isinstance(first, Persist) and self.merges(first.changes)):
            return effects
        changes, rest = list(first.changes), effects[1:]
        while self._queue and len(changes) < _MOST_MERGED and perf_counter() < until:
            more = self.handle(*self._queue.popleft())
            own = more[0] if more else None
            if isinstance(own, Persist):
                if not self.merges(own.changes):
                    # Its write follows this one.
                    rest += more
                    break
                changes += own.changes
                more = more[1:]
            rest += more
        return [Persist(tuple(changes)), *rest]

    def _carry_out(self, effects: list[Effect[C, K, R]]) -> None:
        late: _LateReplies[R] = _LateReplies()
        for index, effect in enumerate(effects):
            if isinstance(effect, Persist):
                # Separate, because later log lines may belong to other requests.
                writing = self._write(effect.changes, effects[index + 1 :])
                self._began_ms = self._host.clock.ticks_ms()
                self._writing = asyncio.get_running_loop().create_task(writing, context=Context())
                break
            if index < AT_ONCE:
                self._act(effect)
            elif isinstance(effect, Reply):
                _, future = self._waiting.pop(effect.token, (None, None))
                if future is not None:
                    late.add(future, effect.result)
            elif isinstance(effect, SetTimer):
                self._timers.set_late(effect.key, effect.deadline_ms)
            else:
                self._act(effect)
        late.send()

    def _act(self, effect: Effect[C, K, R]) -> None:
        match effect:
            case Reply(token, result):
                _, future = self._waiting.pop(token, (None, None))
                if future is not None and not future.done():
                    future.set_result(result)
            case SetTimer(key, deadline_ms):
                self._timers.set(key, deadline_ms)
            case CancelTimer(key):
                self._timers.cancel(key)
            case Command():
                self.perform(effect)

    async def _write(self, changes: tuple[C, ...], rest: list[Effect[C, K, R]]) -> None:
        try:
            await self.store(changes, everything=self._rewrite)
        except TopicError as error:
            self._start_over(str(error))
        except Exception:  # the queue would wait for this write forever
            _log.exception("a state was not stored", machine=self.name)
            self._start_over("an unexpected error")
        else:
            self._rewrite = False
            self.stored(changes)
            if len(changes) > AT_ONCE:
                # Completing this many again must not block the loop.
                await asyncio.sleep(0)
            self._writing = None
            self._carry_out(rest)
        if self._writing is asyncio.current_task() or self._writing is None:
            self._writing = None
            if self._closed:
                # Internal events such as timers have no caller.
                self._refuse_all()
                return
            self._work()

    def _start_over(self, reason: str) -> None:
        self._refuse_all(reason)
        # The write may have succeeded anyway.
        self._rewrite = True
        self._writing = None
        effects = self.restore()
        again_ms = self._host.clock.ticks_ms() + _AGAIN_MS
        self._carry_out([_not_before(again_ms, effect) for effect in effects])
        self.not_stored(reason, again_ms)

    def call_off(self) -> None:
        """Cancel every timer."""
        self._timers.cancel_all()

    def _refuse_all(self, reason: str = "") -> None:
        self.call_off()
        for request, future in self._waiting.values():
            if not future.done():
                future.set_result(self.refusal(request, reason))
        self._waiting.clear()
        self._queue.clear()

    @property
    def closed(self) -> bool:
        """Whether it accepts no more events."""
        return self._closed

    @property
    def moved(self) -> bool:
        """Whether another broker coordinates it."""
        return self._moved

    @property
    def busy(self) -> bool:
        """Whether work waits, a timer is set, or all state must be stored again."""
        return bool(self._waiting or self._timers or self._queue or self._rewrite)

    @property
    def writing_since_ms(self) -> int | None:
        """Start of the running write (ticks), if any."""
        return None if self._writing is None else self._began_ms

    def hand_over(self) -> None:
        """Release the machine to another broker. Fencing decides the fate of a running write."""
        self._closed = self._moved = True
        self.released()
        self._refuse_all()

    async def close(self) -> None:
        """Accept no more events, refuse waiting clients, and wait for a running write."""
        self._closed = True
        self.released()
        self._refuse_all()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def stop(self) -> None:
        """Cancel every timer and drop queued events."""
        self.call_off()
        for _, future in self._waiting.values():
            future.cancel()
        self._waiting.clear()


def _not_before(earliest_ms: int, effect: Effect[C, K, R]) -> Effect[C, K, R]:
    """An expired timer would otherwise be refused hundreds of times per second."""
    if isinstance(effect, SetTimer) and effect.deadline_ms < earliest_ms:
        return SetTimer(effect.key, earliest_ms)
    return effect
