"""Runs the state machines of a coordinator, such as consumer groups: one runner for each, which alone touches it.

A machine is pure: an event and the time go in, ordered effects come out (`headrace.machines`). Its runner takes one
event at a time: it asks the machine for effects, carries them out in order, and only then takes the next event. What
has to be durable is durable before the reply that promises it. Storage that refuses a write sends the machine back to
what storage has.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context
from itertools import islice
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.runtime.scheduler import SLICE_S, CooperativeScheduler
from headrace.machines.effects import CancelTimer, Effect, Persist, Reply, SetTimer
from headrace.topics.errors import TopicError

K = TypeVar("K", bound=Hashable)
"""Names of its timers."""


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
        """Return whether another server may have taken over its machines."""


class Timers(Generic[K]):
    """The timers of one machine by their keys."""

    def __init__(self, server: Doubt, fired: Callable[[K], None]) -> None:
        """Start without timers. `fired` is called with the key of each expired one."""
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


E = TypeVar("E")
"""Events of a machine."""
R = TypeVar("R")
"""Results of its requests."""
C = TypeVar("C")
"""Changes that storage takes."""
T = TypeVar("T")

AT_ONCE = 200
"""Requests that are answered in one turn of the event loop: each answer is encoded and sent in the same turn."""
_AGAIN_MS = 1_000
"""Pause before the runtime stores a refused change again that no client repeats, such as the end of a timer."""


class _LateReplies(Generic[T]):
    """Replies in order, after the first ones of a turn. They were decided, and stored if need be."""

    def __init__(self) -> None:
        self._replies: deque[tuple[asyncio.Future[T], T]] = deque()

    def add(self, future: "asyncio.Future[T]", result: T) -> None:
        """Reply later."""
        self._replies.append((future, result))

    def send(self) -> None:
        """Send all of them, in the next turns of the event loop."""
        if self._replies:
            asyncio.get_running_loop().call_soon(self._send_some)

    def _send_some(self) -> None:
        for _ in range(min(len(self._replies), AT_ONCE)):
            future, result = self._replies.popleft()
            if not future.done():
                future.set_result(result)
        self.send()


class Host(Doubt, Protocol):
    """What a runner needs of the coordinator that has it."""

    @property
    def lane(self) -> CooperativeScheduler:
        """The turns that long work takes."""

    def settled(self, runner: Any) -> None:
        """A runner has nothing to do."""


class Runner(ABC, Generic[E, R, C, K]):
    """The one owner of a machine. A kind of machine says how it is asked, stored and refused."""

    def __init__(self, name: str, host: Host, view: int | None) -> None:
        """Have no machine yet: `begin` makes it.

        Args:
            name: the machine's.
            host: the coordinator that has it.
            view: the number of the view by which this server coordinates it; None: it is alone.
        """
        self.name = name
        self.view = view
        self._host = host
        self._queue: deque[tuple[E, int]] = deque()
        """Events with the time of their arrival (ticks)."""
        self._waiting: dict[Hashable, tuple[E, asyncio.Future[R]]] = {}
        self._timers: Timers[K] = Timers(host, lambda key: self.post(self.fired(key)))
        self._resting = False
        """Whether events wait for their turn: those before them took long."""
        self._writing: asyncio.Task[None] | None = None
        self._began_ms = 0  # the write that is under way (ticks)
        self._rewrite = False
        """Whether the last write may have happened or not: the next one says everything again."""
        self._closed = False
        self._moved = False
        """Whether another broker coordinates it."""

    # What a kind of machine adds

    @abstractmethod
    def restore(self) -> list[Effect[C, K, R]]:
        """Make the machine from what storage has."""

    @abstractmethod
    def handle(self, event: E, arrived_ms: int) -> list[Effect[C, K, R]]:
        """Have the machine take an event."""

    @abstractmethod
    def fired(self, key: K) -> E:
        """Return the event of a timer."""

    @abstractmethod
    def refusal(self, request: E, reason: str) -> R:
        """Return the result for a request that its client must repeat, here or at the new coordinator (`moved`)."""

    @abstractmethod
    async def store(self, changes: tuple[C, ...], *, everything: bool) -> None:
        """Make changes durable; `everything`: after all that was stored before. Raises TopicError."""

    @abstractmethod
    def stored(self, changes: tuple[C, ...]) -> None:
        """Take over changes that storage has taken."""

    def not_stored(self, reason: str, again_ms: int) -> None:
        """Storage refused changes, and the machine was restored. The next attempt is in `again_ms` or later."""

    def idle(self) -> None:
        """Every event was handled, and nothing is being written."""

    def released(self) -> None:
        """The machine is not this server's any more, or is about to be deleted."""

    # Events in

    def begin(self) -> None:
        """Restore the machine, and do what it asks for."""
        self._carry_out(self.restore())

    def submit(self, token: Hashable, event: E) -> "asyncio.Future[R]":
        """Queue a request; the future gets the result that the machine replies under its token."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(self.refusal(event, ""))
            return future
        self._waiting[token] = (event, future)
        self.post(event)
        return future

    def post(self, event: E) -> None:
        """Queue an event without a caller, and work through the queue unless a write is in progress."""
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
                # Of a topic of thousands of partitions each event takes milliseconds.
                self._resting = True
                self._host.lane.later(self._go_on)
                return
            self._carry_out(self.handle(*self._queue.popleft()))
        if self._writing is None:
            self.idle()
            self._host.settled(self)

    # Effects out

    def _carry_out(self, effects: list[Effect[C, K, R]]) -> None:
        late: _LateReplies[R] = _LateReplies()
        for index, effect in enumerate(effects):
            if isinstance(effect, Persist):
                # A context of its own: what follows the write, and is logged then, may belong to other requests.
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

    async def _write(self, changes: tuple[C, ...], rest: list[Effect[C, K, R]]) -> None:
        try:
            await self.store(changes, everything=self._rewrite)
        except TopicError as error:
            self._start_over(str(error))
        else:
            self._rewrite = False
            self.stored(changes)
            if len(changes) > AT_ONCE:
                # As much again is done for as many members now: not in one piece.
                await asyncio.sleep(0)
            self._writing = None
            self._carry_out(rest)
        if self._writing is asyncio.current_task() or self._writing is None:
            self._writing = None
            if self._closed:
                # Events that it queued itself: timers, which matter to no caller.
                self._refuse_all()
                return
            self._work()

    def _start_over(self, reason: str) -> None:
        """Refuse every request that waits, and send the machine back to what storage has."""
        self._refuse_all(reason)
        # The write may have happened all the same.
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
        """Call every timer off, and tell every client that waits to ask again, and why, if known."""
        self.call_off()
        for request, future in self._waiting.values():
            if not future.done():
                future.set_result(self.refusal(request, reason))
        self._waiting.clear()
        self._queue.clear()

    # State

    @property
    def closed(self) -> bool:
        """Whether it takes no more events."""
        return self._closed

    @property
    def moved(self) -> bool:
        """Whether another broker coordinates it."""
        return self._moved

    @property
    def busy(self) -> bool:
        """Whether anything waits, a timer is set, or all state must be stored again."""
        return bool(self._waiting or self._timers or self._queue or self._rewrite)

    @property
    def writing_since_ms(self) -> int | None:
        """When the write that is under way began (ticks); None: there is none."""
        return None if self._writing is None else self._began_ms

    # Its end

    def hand_over(self) -> None:
        """Another broker coordinates it from now on. What is under way to storage lands, or is refused there."""
        self._closed = self._moved = True
        self.released()
        self._refuse_all()

    async def close(self) -> None:
        """Take no more events, refuse every client that waits, and wait for a write under way."""
        self._closed = True
        self.released()
        self._refuse_all()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def stop(self) -> None:
        """Cancel every timer and drop what waits."""
        self.call_off()
        for _, future in self._waiting.values():
            future.cancel()
        self._waiting.clear()


def _not_before(earliest_ms: int, effect: Effect[C, K, R]) -> Effect[C, K, R]:
    """Return the effect; a timer is put off until then.

    What is due already would be written, and refused, hundreds of times a second.
    """
    if isinstance(effect, SetTimer) and effect.deadline_ms < earliest_ms:
        return SetTimer(effect.key, earliest_ms)
    return effect
