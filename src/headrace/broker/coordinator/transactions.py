"""Coordination of transactions in the running server."""

from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

import structlog

from headrace.aio.single_flight import SingleFlight
from headrace.broker.brokers.ownership import KeyedOwnership, Ownership
from headrace.broker.coordinator.coordinator import Coordinator, Unready
from headrace.broker.coordinator.transaction_runner import Participants, TransactionRunner
from headrace.broker.ports import TransactionStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler, TimeSlice
from headrace.machines.effects import Now
from headrace.topics.errors import StorageUnavailable
from headrace.transactions.description import TransactionDescription
from headrace.transactions.effects import LookupResult, Result, refusal
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Init, Lookup, Request, TopicGone
from headrace.transactions.model import NEW, DropTransaction, TransactionSettings, TransactionState

_log = structlog.get_logger("headrace.broker.coordinator")

LONGEST_ID = 1_024
"""Maximum bytes of a new transactional ID (Kafka: 32,767). All IDs are kept in memory and listed together."""


def transaction_ownership(ownership: Ownership, cluster: str = "default") -> KeyedOwnership:
    """Return the ownership of the transactional IDs of a virtual cluster."""
    return KeyedOwnership(ownership, lambda name: ownership.transaction_key(cluster, name))


class TransactionCoordinator(Coordinator[TransactionRunner]):
    """All transactional IDs of this server."""

    noun = "transaction"

    def __init__(
        self,
        storage: TransactionStorage,
        clock: Clock,
        settings: TransactionSettings,
        participants: Participants,
        new_producer_id: Callable[[], Awaitable[int]],
        ownership: KeyedOwnership | None = None,
        lane: CooperativeScheduler | None = None,
    ) -> None:
        """Coordinate as the owner by `ownership` (None: a single server)."""
        super().__init__(clock, lane or CooperativeScheduler(), ownership or transaction_ownership(Ownership(0)))
        self.storage = storage
        self.settings = settings
        self.participants = participants
        self.new_producer_id = new_producer_id
        self._loads_alone = SingleFlight(self._load_alone, joins=True)
        self._refusing = False

    @property
    def number(self) -> int | None:
        """Broker epoch."""
        return self._ownership.number

    def now(self) -> Now:
        """Return the time for state machines."""
        return Now(self.clock.now_ms(), self.clock.ticks_ms())

    def load(self) -> None:
        """Load the stored IDs in the background: decided transactions go on, and others time out.

        A request loads its own at once.
        """
        self.adopt()

    async def stored_names(self) -> list[str]:
        """See `Coordinator`."""
        return await self.storage.names()

    async def prepare_alone(self, name: str) -> None:
        """See `Coordinator`. A single server loads IDs like any other."""
        if name not in self._here:
            await self._loads_alone.get(name)

    async def _load_alone(self, name: str) -> None:
        stored = await self.storage.load_one(name)
        if name not in self._here and stored is not NEW:
            self.keep(TransactionRunner(name, stored, self))

    async def load_one(self, name: str, number: int) -> Callable[[], TransactionRunner | None]:
        """See `Coordinator`."""
        stored = await self.storage.load_one(name, number)

        def make() -> TransactionRunner | None:
            return None if stored is NEW else self.keep(TransactionRunner(name, stored, self))

        return make

    def forget(self, name: str) -> None:
        """See `Coordinator`."""
        self.storage.forget(name)

    async def ready(self, name: str) -> TransactionError | None:
        """Return the error if a transactional ID cannot be made available here."""
        try:
            await self.bring(name)
        except Unready as away:
            return TransactionError.NOT_COORDINATOR if away.moved else TransactionError.COORDINATOR_NOT_AVAILABLE
        return None

    async def request(self, name: str, event: Request, given_up: Callable[[], bool] = lambda: False) -> Result:
        """Send a request to a transactional ID.

        `given_up`: whether the client abandoned it while the ID was loaded, so that newer requests may be ahead.
        """
        if not name:
            return refusal(event, TransactionError.INVALID_REQUEST)
        refused = await self.ready(name)
        if refused is None and given_up():
            refused = TransactionError.COORDINATOR_NOT_AVAILABLE
        if refused is not None:
            return refusal(event, refused)
        runner = self._here.get(name)
        if runner is None:
            if isinstance(event, Lookup):
                return LookupResult(open=False)
            error = self._why_not(name, event)
            if error is not None:
                return refusal(event, error)
            runner = self.keep(TransactionRunner(name, NEW, self))
        return await runner.request(event)

    def _why_not(self, name: str, event: Request) -> TransactionError | None:
        """Return why a request cannot create a transactional ID. Logs the first of consecutive refusals."""
        if not isinstance(event, Init):
            return TransactionError.INVALID_PRODUCER_ID_MAPPING
        if len(name.encode()) > LONGEST_ID:
            return TransactionError.INVALID_REQUEST
        full = len(self._here) >= self.settings.max_ids
        if full and not self._refusing:
            setting = "headrace.max.transactional.ids"
            _log.error("new transactional IDs are rejected: limit reached", ids=len(self._here), setting=setting)
        self._refusing = full
        return TransactionError.POLICY_VIOLATION if full else None

    def settled(self, runner: TransactionRunner) -> None:
        """Drop the runner of an expired ID."""
        if runner.idle_and_empty:
            self.drop(runner)

    async def topic_deleted(self, topic_id: UUID, pace: TimeSlice) -> None:
        """Drop the partitions of a deleted topic from all transactions."""
        gone = TopicGone(topic_id)
        async for runner in pace.each(tuple(self._here.values())):
            if topic_id in runner.machine.current.partitions:
                runner.topic_gone(gone)

    async def all_names(self) -> list[str]:
        """Return all transactional IDs, also those of other brokers. Raises StorageUnavailable."""
        return sorted({*self._here, *await self.storage.names()})

    async def end_open(self, name: str) -> None:
        """Abort the ongoing transaction of an ID, or end its decided one, at all participants.

        Raises StorageUnavailable if it has not ended, or if another broker coordinates the ID; call again.
        """
        refused = await self.ready(name)
        if refused is not None:
            raise StorageUnavailable(f"transactional ID {name!r}: {refused.name}")
        runner = self._here.get(name)
        if runner is not None and runner.machine.current.state.open:
            await self._end(runner)

    async def _end(self, runner: TransactionRunner) -> None:
        timeout_ms = min(max(1, runner.machine.current.timeout_ms), self.settings.max_timeout_ms)
        # The response comes after every earlier write, so the outcome is durable then.
        result = await runner.request(Init(token=object(), timeout_ms=timeout_ms))
        call = runner.machine.call_of_participants()
        if runner.machine.current.state is TransactionState.ONGOING:
            raise StorageUnavailable(f"transactional ID {runner.name!r}: {result}")
        if call is not None and not {*call.participants} <= {*await self.participants.end(call)}:
            raise StorageUnavailable(f"the transaction of {runner.name!r} has not ended everywhere")

    async def drop_all(self) -> None:
        """Delete every transactional ID of the virtual cluster. Clients receive COORDINATOR_NOT_AVAILABLE.

        Raises StorageUnavailable, Fenced.
        """
        for name in await self.all_names():
            runner = self._here.get(name)
            if runner is not None:
                await runner.close()
            await self.storage.save(name, DropTransaction())
            if runner is not None:
                self.drop(runner)

    def describe(self, name: str) -> TransactionDescription | None:
        """Return a known ID's description. Call `ready` before."""
        runner = self._here.get(name)
        return None if runner is None or runner.machine.is_new else runner.machine.describe()

    def describe_all(self) -> Iterable[TransactionDescription]:
        """Return all descriptions in the order of their IDs, for ListTransactions."""
        for name in self.names():
            description = self.describe(name)
            if description is not None:
                yield description

    async def stop(self) -> None:
        """See `Coordinator.stop`. Nothing is loaded afterwards."""
        for task in (*self._loads.tasks(), *self._loads_alone.tasks()):
            task.cancel()
        await super().stop()
