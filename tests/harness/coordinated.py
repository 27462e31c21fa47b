"""A broker's transactional IDs in a view that a test chooses, with participants that end when the test lets them."""

import asyncio
from collections.abc import Collection
from itertools import count

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.transactions import TransactionCoordinator, transaction_ownership
from headrace.broker.runtime.clock import RunningClock
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock
from headrace.transactions.effects import EndParticipants, Result
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init
from headrace.transactions.model import Participant, TransactionSettings, TransactionState
from tests.harness.memory import MemoryStorage
from tests.harness.transactions import P0

E = TransactionError
S = TransactionState
MINUTE_MS = 60_000


class Logs:
    """Participants that end when the test lets them."""

    def __init__(self) -> None:
        self.calls: list[EndParticipants] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.error: Exception | None = None
        self.away: set[Participant] = set()

    async def end(self, call: EndParticipants) -> Collection[Participant]:
        self.calls.append(call)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return [each for each in call.participants if each not in self.away]


class Site:
    """One broker's transactional IDs, in a view that a test chooses."""

    def __init__(self, storage: MemoryStorage, settings: TransactionSettings | None = None) -> None:
        self.clock = ManualClock()
        self.storage = storage
        self.logs = Logs()
        self.ownership = Ownership(1)
        self.ids = count(100)
        self.id_error: Exception | None = None
        self.table = self.made(settings or TransactionSettings())

    def made(self, settings: TransactionSettings) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.storage.transactions, RunningClock(self.clock), settings, self.logs, self._new_producer_id,
            transaction_ownership(self.ownership),
        )  # fmt: skip

    async def _new_producer_id(self) -> int:
        if self.id_error is not None:
            raise self.id_error
        return next(self.ids)

    def go_by(self, number: int, *nodes: int) -> None:
        members = tuple(Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes)
        self.ownership.adopt(View(number, members, self.ownership.number or 0), inside=1 in nodes)
        self.table.adopt()

    async def init(self, name: str = "id", timeout_ms: int = MINUTE_MS) -> Result:
        return await self.table.request(name, Init(token=object(), timeout_ms=timeout_ms))

    async def add(self, *participants: Participant, epoch: int = 0) -> Result:
        event = Add(token=object(), producer_id=100, epoch=epoch, participants=participants or (P0,))
        return await self.table.request("id", event)

    async def end(self, *, commit: bool = True, epoch: int = 0, name: str = "id") -> Result:
        return await self.table.request(name, End(token=object(), producer_id=100, epoch=epoch, commit=commit))

    def state(self, name: str = "id") -> TransactionState | None:
        described = self.table.describe(name)
        return None if described is None else described.state


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
