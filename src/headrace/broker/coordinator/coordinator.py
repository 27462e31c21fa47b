"""Which state machines a coordinator has here: it takes over what it owns, and gives up what another broker owns now.

It knows nothing of what they coordinate. Where there are other brokers, the cluster membership says who owns what, and
a machine is loaded when it is first asked for, or soon after this broker became its coordinator.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog

from headrace.aio.retry import retry
from headrace.aio.single_flight import SingleFlight
from headrace.aio.tasks import in_slices
from headrace.broker.coordinator.runtime import Firing, Runner
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.topics.errors import StorageUnavailable, TopicError

M = TypeVar("M", bound=Runner[Any, Any, Any, Any])
"""The runners of one kind of machine."""

_AT_ONCE = 64
"""Machines that are taken over at once."""
_AGAIN_MS, _SELDOM_MS = 250, 1_000
"""How soon machines are tried again that could not be taken over: at first, and at last."""
_LATELY_MS = 10_000
"""Time within which a heartbeat sends each member to the new coordinator: Kafka's default interval is 3 s."""
_VIEW_CHANGED = "another broker may coordinate it by now"
_log = structlog.get_logger("headrace.broker.coordinator")


class Ownership(Protocol):
    """What a coordinator must know of the cluster membership."""

    @property
    def shared(self) -> bool:
        """Whether there may be other brokers."""

    @property
    def number(self) -> int | None:
        """The number of the view; None: this server is alone."""

    @property
    def unbroken(self) -> bool:
        """Whether there was no view between this one and the one that this server went by before it."""

    @property
    def certain(self) -> bool:
        """Whether no other broker can have taken its machines over by now."""

    def owns(self, name: str) -> bool:
        """Whether this server coordinates a machine."""


class Unready(Exception):
    """A machine cannot be asked at this server."""

    def __init__(self, why: str, *, moved: bool) -> None:
        """`moved`: another broker coordinates it; otherwise it cannot be loaded now."""
        super().__init__(why)
        self.moved = moved


class Coordinator(ABC, Generic[M]):
    """The runners of this server."""

    noun: ClassVar[str]
    """What a machine is called in the log."""

    def __init__(self, clock: Clock, lane: CooperativeScheduler, ownership: Ownership) -> None:
        """Have none yet."""
        self.clock = clock
        self.lane = lane
        self.firing = Firing()
        self.doubted_ms: int | None = None
        """When this server was last in doubt about its machines (ticks): it refused a client, or put a timer off."""
        self._ownership = ownership
        self._here: dict[str, M] = {}
        self._loads = SingleFlight(self._take_over, joins=True)
        self._loading_all: asyncio.Task[None] | None = None
        self._adopted_ms: int | None = None
        """When the present view was adopted (ticks)."""

    # What a kind of machine adds

    @abstractmethod
    async def stored_names(self) -> list[str]:
        """Return the names of all machines that storage has. Raises TopicError."""

    @abstractmethod
    async def load_one(self, name: str, number: int) -> Callable[[], M | None]:
        """Load a machine by a view. What is returned makes its runner; None: storage has nothing. Raises TopicError."""

    @abstractmethod
    async def prepare_alone(self, name: str) -> None:
        """Have a machine loaded where there are no other brokers and it could not be read before. Raises TopicError."""

    def forget(self, name: str) -> None:
        """A machine is not here any more, or could not be loaded."""

    # Other brokers

    def in_doubt(self) -> bool:
        """Whether another broker may have taken its machines over by now."""
        if doubted := not self._ownership.certain:
            self.doubted_ms = self.clock.ticks_ms()
        return doubted

    def moved_lately(self) -> bool:
        """Whether a machine that is not here may have been until a moment ago, so that its clients do not know yet."""
        now_ms = self.clock.ticks_ms()
        return self.in_doubt() or (self._adopted_ms is not None and now_ms < self._adopted_ms + _LATELY_MS)

    def adopt(self) -> None:
        """Go by another view from now on: give up what another broker owns now, take over what this one owns.

        Where this server has missed a view, others may have had any of them: what they stored is loaded.
        """
        self._adopted_ms = self.clock.ticks_ms()
        number, unbroken = self._ownership.number, self._ownership.unbroken
        for name, runner in tuple(self._here.items()):
            if unbroken and self._ownership.owns(name):
                runner.view = number
            else:
                del self._here[name]
                runner.hand_over()
                self.forget(name)
        if self._loading_all is not None:
            self._loading_all.cancel()
        self._loading_all = asyncio.get_running_loop().create_task(self._take_over_all(), name=f"{self.noun}s")

    async def bring(self, name: str) -> None:
        """Return once a machine can be asked here. Raises Unready."""
        try:
            if not self._ownership.shared:
                await self.prepare_alone(name)
                return
            if not self._ownership.owns(name) or self.in_doubt():
                raise Unready("another broker coordinates it", moved=True)
            if name in self._here:
                return
            number = self._ownership.number
            await self._loads.get(name)
        except TopicError as error:
            raise Unready(str(error), moved=False) from error
        if number != self._ownership.number:
            raise Unready(_VIEW_CHANGED, moved=False)

    async def _take_over(self, name: str) -> None:
        """Load a machine as its coordinator, if there is one. Raises TopicError."""
        number = self._ownership.number
        assert number is not None
        try:
            make = await self.load_one(name, number)
            if self._ownership.number != number or not self._ownership.owns(name):
                # It may be another's by now; a client that still wants it takes it over by the present view.
                raise StorageUnavailable(_VIEW_CHANGED)
        except TopicError:
            self.forget(name)
            raise
        make()

    async def _take_over_all(self) -> None:
        """Try until every machine that storage has is taken over, or is another broker's.

        A broker that has just joined is in doubt until its next heartbeat, and a shard may be away: none is left out
        for that. Their members' time runs from then on.
        """
        again = backoff(self.clock, _AGAIN_MS, _SELDOM_MS)
        names = await retry(self.stored_names, TopicError, again)
        while names := [name for name in names if self._ownership.owns(name)]:
            later: list[str] = []
            async for part in in_slices(names, self._has_to_wait, _AT_ONCE):
                later += [name for name, has_to_wait in part if has_to_wait]
                if all(has_to_wait for _, has_to_wait in part):
                    await again.pause()
            names = later

    async def _has_to_wait(self, name: str) -> bool:
        """Take a machine over if that can be; whether it is to be tried again."""
        try:
            await self.bring(name)
        except Unready:
            return True
        except Exception:  # the others are to be taken over all the same
            _log.exception(
                f"a {self.noun} could not be taken over: it is tried again when a client asks", **{self.noun: name}
            )
        return False

    # Runners

    def runner(self, name: str) -> M | None:
        """Return the runner of a machine that is here."""
        return self._here.get(name)

    def runners(self) -> Iterable[M]:
        """Return every runner, in the order of their names."""
        return [self._here[name] for name in sorted(self._here)]

    def names(self) -> list[str]:
        """Return the names of all that are here, sorted."""
        return sorted(self._here)

    def keep(self, runner: M) -> M:
        """Have a runner from now on."""
        self._here[runner.name] = runner
        return runner

    def drop(self, runner: M) -> None:
        """Have it no more, unless another has its name by now."""
        if self._here.get(runner.name) is runner:
            del self._here[runner.name]

    async def stop(self) -> None:
        """Stop the timers; what is stored stays."""
        if self._loading_all is not None:
            self._loading_all.cancel()
        for runner in self._here.values():
            runner.stop()
