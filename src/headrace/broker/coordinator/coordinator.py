"""Assignment of state machines to this broker, whatever they coordinate.

The cluster membership decides. A machine is loaded on its first request, or soon after this broker becomes its
coordinator.
"""

import asyncio
import contextlib
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
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError

M = TypeVar("M", bound=Runner[Any, Any, Any, Any])
"""Runner type of one kind of machine."""

_AT_ONCE = 64
"""Maximum machines loaded at once."""
_AGAIN_MS, _SELDOM_MS = 250, 1_000
"""First and maximum delay before a failed load is retried."""
_COMPLETE_S = 2.0
"""Maximum wait until all machines are loaded."""
_LATELY_MS = 10_000
"""Time in which heartbeats discover the new coordinator. Kafka's default interval is 3 s."""
_VIEW_CHANGED = "another broker may coordinate it by now"
_log = structlog.get_logger("headrace.broker.coordinator")


class Ownership(Protocol):
    """Cluster membership, as a coordinator needs it."""

    @property
    def shared(self) -> bool:
        """Whether other brokers are possible."""

    @property
    def number(self) -> int | None:
        """Broker epoch. None: a single server."""

    @property
    def unbroken(self) -> bool:
        """Whether this server missed no broker epoch before the current one."""

    @property
    def certain(self) -> bool:
        """Whether no other broker can coordinate its machines now."""

    def owns(self, name: str) -> bool:
        """Whether this server coordinates a machine."""


class Unready(Exception):
    """A machine is not available on this server."""

    def __init__(self, why: str, *, moved: bool) -> None:
        """`moved`: another broker coordinates it; else it cannot be loaded now."""
        super().__init__(why)
        self.moved = moved


class Coordinator(ABC, Generic[M]):
    """The runners of this server."""

    noun: ClassVar[str]
    """The log's term for a machine."""

    def __init__(self, clock: Clock, lane: CooperativeScheduler, ownership: Ownership) -> None:
        self.clock = clock
        self.lane = lane
        self.firing = Firing()
        self.doubted_ms: int | None = None
        """Ticks of the last refused request or deferred timer because of doubtful ownership."""
        self._ownership = ownership
        self._here: dict[str, M] = {}
        self._loads = SingleFlight(self._take_over, joins=True)
        self._loading_all: asyncio.Task[None] | None = None
        self._complete = asyncio.Event()
        self._unread = 0
        """Machines of this round that are unreadable."""
        self._adopted_ms: int | None = None
        """Ticks at which the current broker epoch was adopted."""

    @abstractmethod
    async def stored_names(self) -> list[str]:
        """Return the names of all stored machines. Raises TopicError."""

    @abstractmethod
    async def load_one(self, name: str, number: int) -> Callable[[], M | None]:
        """Load a machine by a broker epoch. Raises TopicError.

        Returns a function that creates its runner, or returns None if none is stored.
        """

    @abstractmethod
    async def prepare_alone(self, name: str) -> None:
        """Load a machine on a single server after a failed load. Raises TopicError."""

    def forget(self, name: str) -> None:
        """Drop a machine that moved or could not be loaded."""

    def in_doubt(self) -> bool:
        """See `runtime.Doubt`."""
        if doubted := not self._ownership.certain:
            self.doubted_ms = self.clock.ticks_ms()
        return doubted

    def moved_lately(self) -> bool:
        """Whether a missing machine may have moved before its clients know."""
        now_ms = self.clock.ticks_ms()
        return self.in_doubt() or (self._adopted_ms is not None and now_ms < self._adopted_ms + _LATELY_MS)

    def adopt(self) -> None:
        """Adopt the current broker epoch: release other brokers' machines and load its own.

        After a missed epoch, all are loaded again: other brokers may have changed them.
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
        self._complete.clear()
        if self._loading_all is not None:
            self._loading_all.cancel()
        self._loading_all = asyncio.get_running_loop().create_task(self._take_over_all(), name=f"{self.noun}s")

    async def bring(self, name: str) -> None:
        """Return once a machine is available here. Raises Unready."""
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
        number = self._ownership.number
        assert number is not None
        try:
            make = await self.load_one(name, number)
            if self._ownership.number != number or not self._ownership.owns(name):
                # It may have moved. The client's next request loads it.
                raise StorageUnavailable(_VIEW_CHANGED)
        except TopicError:
            self.forget(name)
            raise
        make()

    async def _take_over_all(self) -> None:
        """Retry until every stored machine is loaded or belongs to another broker.

        Covers a new broker before its first heartbeat, and unavailable shards. Members' timers start after loading.
        """
        again = backoff(self.clock, _AGAIN_MS, _SELDOM_MS)
        names = await retry(self.stored_names, TopicError, again)
        while names := [name for name in names if self._ownership.owns(name)]:
            later: list[str] = []
            self._unread = 0
            async for part in in_slices(names, self._has_to_wait, _AT_ONCE):
                later += [name for name, has_to_wait in part if has_to_wait]
                if all(has_to_wait for _, has_to_wait in part):
                    await again.pause()
            names = later
            if len(names) == self._unread:
                self._complete.set()
        self._complete.set()

    async def complete(self) -> bool:
        """Wait until all machines that can be read are here. Return False if they are not after 2 seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COMPLETE_S):
                await self._complete.wait()
        return self._complete.is_set()

    async def _has_to_wait(self, name: str) -> bool:
        try:
            await self.bring(name)
        except Unready as unready:
            # An unreadable value may stay. It must not hide the others.
            cause = unready.__cause__
            self._unread += cause is not None and not isinstance(cause, Fenced | StorageUnavailable)
            return True
        except Exception:  # load the others anyway
            _log.exception(
                f"a {self.noun} could not be loaded: the next request of a client retries", **{self.noun: name}
            )
        return False

    def runner(self, name: str) -> M | None:
        """Return a loaded runner."""
        return self._here.get(name)

    def runners(self) -> Iterable[M]:
        """Return all runners in name order."""
        return [self._here[name] for name in sorted(self._here)]

    def names(self) -> list[str]:
        """Return the sorted names of loaded machines."""
        return sorted(self._here)

    def keep(self, runner: M) -> M:
        """Add a runner."""
        self._here[runner.name] = runner
        return runner

    def drop(self, runner: M) -> None:
        """Remove a runner, unless a newer one has its name."""
        if self._here.get(runner.name) is runner:
            del self._here[runner.name]

    async def stop(self) -> None:
        """Stop the timers. Stored state remains."""
        if self._loading_all is not None:
            self._loading_all.cancel()
        for runner in self._here.values():
            runner.stop()
