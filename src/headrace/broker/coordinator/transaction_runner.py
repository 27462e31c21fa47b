"""Runner of one transactional ID on the generic `runtime`."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Protocol

import structlog

from headrace.broker.coordinator.runtime import Host, Runner
from headrace.broker.ports import TransactionStorage
from headrace.machines.effects import Command, Now
from headrace.topics.errors import TopicError
from headrace.transactions.effects import Effect, EndParticipants, NewProducerId, Result, refusal
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import (
    Ended,
    Event,
    ProducerIdAllocated,
    Request,
    TimerFired,
    TimerKind,
    TopicGone,
)
from headrace.transactions.model import Participant, StoredTransaction, TransactionChange, TransactionSettings
from headrace.transactions.snapshot import Snapshot
from headrace.transactions.transaction import Transaction

_log = structlog.get_logger("headrace.broker.coordinator")
_CALL_S = 30.0
"""Maximum seconds of one call of participants. Those without a response are called again."""


class Participants(Protocol):
    """The partitions and groups of transactions, on this and on other brokers."""

    async def end(self, call: EndParticipants) -> Collection[Participant]:
        """End a transaction at its participants. Return those that have ended it durably.

        A participant of a deleted topic counts. Each one ignores a transaction whose number it has ended already, and
        remembers the number durably before it counts, also if it had nothing of the transaction. The others are called
        again. May raise TopicError: none has ended.
        """


class TransactionHost(Host, Protocol):
    """What a runner needs from its server."""

    @property
    def number(self) -> int | None:
        """Broker epoch."""

    @property
    def storage(self) -> TransactionStorage:
        """Storage of transactional IDs."""

    @property
    def settings(self) -> TransactionSettings:
        """Limits of transactional IDs."""

    @property
    def participants(self) -> Participants:
        """Partitions and groups."""

    @property
    def new_producer_id(self) -> Callable[[], Awaitable[int]]:
        """Allocator of producer IDs. Raises TopicError."""

    def now(self) -> Now:
        """Return the time for state machines."""


class TransactionRunner(Runner[Event, Result, TransactionChange, TimerKind]):
    """Only owner of a transactional ID's state machine."""

    machine: Transaction

    def __init__(self, name: str, stored: StoredTransaction, server: TransactionHost) -> None:
        super().__init__(name, server, server.number)
        self._server = server
        self._snapshot = Snapshot(stored)
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: Transaction | None = None
        self.begin()

    def request(self, event: Request) -> "asyncio.Future[Result]":
        """Queue a request."""
        return self.submit(event.token, event)

    def topic_gone(self, event: TopicGone) -> None:
        """Drop the partitions of a deleted topic."""
        self.post(event)

    def fired(self, key: TimerKind) -> Event:
        """See `Runner`."""
        return TimerFired(key)

    def handle(self, event: Event, arrived_ms: int) -> list[Effect]:
        """See `Runner`."""
        return self.machine.handle(event, self._server.now())

    def restore(self) -> list[Effect]:
        """See `Runner`."""
        server = self._server
        self.machine, effects = Transaction.restore(
            self.name, server.settings, self._snapshot.stored, server.now(), self._before
        )
        self._before = self.machine
        return effects

    async def store(self, changes: tuple[TransactionChange, ...], *, everything: bool) -> None:
        """See `Runner`. Each change has the whole state."""
        (change,) = changes
        await self._server.storage.save(self.name, change, self.view)

    def stored(self, changes: tuple[TransactionChange, ...]) -> None:
        """See `Runner`."""
        self._snapshot.apply(changes)

    def not_stored(self, reason: str, again_ms: int) -> None:
        """See `Runner`."""
        _log.error("transaction not stored", transactional_id=self.name, reason=reason)

    def refusal(self, request: Event, reason: str) -> Result:
        """See `Runner`."""
        error = TransactionError.NOT_COORDINATOR if self.moved else TransactionError.COORDINATOR_NOT_AVAILABLE
        assert not isinstance(request, Ended | TopicGone | ProducerIdAllocated | TimerFired), "no caller waits for it"
        return refusal(request, error)

    def perform(self, command: Command) -> None:
        """See `Runner`. After a takeover, the other coordinator does it."""
        if self.closed:
            return
        match command:
            case EndParticipants():
                self._run(self._end(command))
            case NewProducerId():
                self._run(self._allocate())
            case _:
                super().perform(command)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="transaction")
        self._tasks.add(task)
        task.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self.closed:
            self._server.settled(self)

    async def _end(self, call: EndParticipants) -> None:
        ended: Collection[Participant] = ()
        try:
            async with asyncio.timeout(_CALL_S):
                ended = await self._server.participants.end(call)
        except (TopicError, TimeoutError) as error:
            _log.warning("transaction not ended yet", transactional_id=self.name, reason=str(error))
        except Exception:  # the machine waits for the end of each call
            _log.exception("transaction not ended yet", transactional_id=self.name)
        self.post(Ended(call.number, tuple(ended)))

    async def _allocate(self) -> None:
        producer_id: int | None = None
        try:
            producer_id = await self._server.new_producer_id()
        except TopicError as error:
            _log.warning("no producer ID", transactional_id=self.name, reason=str(error))
        except Exception:  # the machine waits for the ID, and its request for the machine
            _log.exception("no producer ID", transactional_id=self.name)
        self.post(ProducerIdAllocated(producer_id))

    def released(self) -> None:
        """See `Runner`."""
        for task in tuple(self._tasks):
            task.cancel()

    def stop(self) -> None:
        """See `Runner`."""
        self._closed = True
        super().stop()
        self.released()

    @property
    def idle_and_empty(self) -> bool:
        """Whether the transactional ID can be dropped."""
        idle = not (self.busy or self._tasks) and self.writing_since_ms is None
        return idle and self._snapshot.nothing
