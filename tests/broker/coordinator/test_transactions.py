"""Transactional IDs on the runtime: order of effects, participants, takeovers, storage that fails.

The rules are those of tests/transactions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from itertools import count
from uuid import UUID

import pytest
import structlog
from msgspec.structs import replace
from tests.conftest import OpenStorage
from tests.harness.memory import MemoryStorage
from tests.harness.transactions import P0, P1, TOPIC, stored_at
from tests.harness.waiting import until

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.transactions import LONGEST_ID, TransactionCoordinator, transaction_ownership
from headrace.broker.runtime.clock import RunningClock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.membership.view import Member, View
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable
from headrace.transactions.effects import AddResult, EndParticipants, EndResult, InitResult, LookupResult, Result
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init, Lookup, Verify
from headrace.transactions.model import GroupId, Participant, SaveTransaction, TransactionSettings, TransactionState

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


@pytest.fixture
async def site(storage: MemoryStorage) -> AsyncIterator[Site]:
    made = Site(storage)
    yield made
    await made.table.stop()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_transaction_is_committed(site: Site) -> None:
    assert await site.init() == InitResult(producer_id=100, epoch=0)
    assert await site.add(P0, GroupId("g")) == AddResult(number=1)
    assert await site.end() == EndResult(producer_id=100, epoch=0)
    assert site.storage.transactions.saved == [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT]
    (call,) = site.logs.calls
    assert (call.commit, call.number, call.participants) == (True, 1, (P0, GroupId("g")))
    assert site.state() is S.COMPLETE_COMMIT


async def test_participants_are_called_after_the_decision_is_durable(site: Site) -> None:
    await site.init()
    await site.add()
    storage = site.storage.transactions
    storage.answers = asyncio.Event()
    ending = asyncio.ensure_future(site.end())
    await turns()
    assert site.logs.calls == []
    storage.answers.set()
    await ending
    assert len(site.logs.calls) == 1


async def test_end_responds_though_a_participant_is_away_and_goes_on(site: Site) -> None:
    await site.init()
    await site.add(P0, P1)
    site.logs.away = {P1}
    ending = asyncio.ensure_future(site.end())
    await turns()
    assert not ending.done()
    site.clock.advance(250)
    assert await ending == EndResult(producer_id=100, epoch=0)
    await turns()
    assert site.logs.calls[-1].participants == (P1,)
    site.logs.away = set()
    site.clock.advance(2_000)
    await turns()
    assert site.state() is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [StorageUnavailable("away"), RuntimeError("a mistake")])
async def test_participants_that_fail_are_called_again(site: Site, error: Exception) -> None:
    await site.init()
    await site.add()
    site.logs.error = error
    ending = asyncio.ensure_future(site.end())
    with structlog.testing.capture_logs() as lines:
        await turns()
    assert [line["event"] for line in lines] == ["transaction not ended yet"]
    site.logs.error = None
    site.clock.advance(50)
    assert await ending == EndResult(producer_id=100, epoch=0)


async def test_a_decision_that_storage_refuses_is_no_decision(site: Site) -> None:
    await site.init()
    await site.add()
    site.storage.unavailable = True
    with structlog.testing.capture_logs() as lines:
        assert await site.end() == EndResult(error=E.COORDINATOR_NOT_AVAILABLE)
    assert [line["event"] for line in lines] == ["transaction not stored"]
    assert site.state() is S.ONGOING
    assert site.logs.calls == []
    site.storage.unavailable = False
    assert await site.end() == EndResult(producer_id=100, epoch=0)


async def test_a_timeout_that_storage_refuses_is_repeated_after_a_second(site: Site) -> None:
    await site.init()
    await site.add()
    site.storage.unavailable = True
    site.clock.advance(MINUTE_MS)
    await turns()
    site.storage.unavailable = False
    site.clock.advance(999)
    await turns()
    assert site.state() is S.ONGOING
    site.clock.advance(1)
    await until(lambda: site.state() is S.COMPLETE_ABORT)
    assert not site.logs.calls[0].commit


async def test_a_new_id_leaves_no_trace_without_a_producer_id(site: Site) -> None:
    site.id_error = StorageUnavailable("away")
    assert await site.init() == InitResult(error=E.COORDINATOR_NOT_AVAILABLE)
    await turns()
    assert site.table.names() == []
    site.id_error = None
    assert await site.init() == InitResult(producer_id=100, epoch=0)


@pytest.mark.parametrize(
    ("name", "error"), [("", E.INVALID_REQUEST), ("x" * (LONGEST_ID + 1), E.INVALID_REQUEST), ("x" * LONGEST_ID, None)]
)
async def test_names_have_a_length(site: Site, name: str, error: TransactionError | None) -> None:
    assert (await site.init(name)).error is error


async def test_only_a_producer_makes_an_id(site: Site) -> None:
    assert await site.add() == AddResult(error=E.INVALID_PRODUCER_ID_MAPPING)
    verify = Verify(token=object(), producer_id=1, epoch=0, participants=(P0,))
    assert (await site.table.request("id", verify)).error is E.INVALID_PRODUCER_ID_MAPPING
    lookup = Lookup(token=object(), producer_id=1, epoch=0, participant=P0)
    assert await site.table.request("id", lookup) == LookupResult(open=False)
    assert site.table.names() == []


async def test_a_limit_of_ids(storage: MemoryStorage) -> None:
    site = Site(storage, TransactionSettings(max_ids=1))
    await site.init("a")
    with structlog.testing.capture_logs() as lines:
        assert [(await site.init(name)).error for name in ("b", "c")] == [E.POLICY_VIOLATION] * 2
    assert [line["setting"] for line in lines] == ["headrace.max.transactional.ids"]
    assert (await site.init("a")).error is None
    await site.table.stop()


async def test_an_expired_id_is_dropped(storage: MemoryStorage) -> None:
    site = Site(storage, TransactionSettings(expiration_ms=1_000))
    await site.init()
    site.clock.advance(1_000)
    await until(lambda: site.table.names() == [])
    assert storage.transactions.stored == {}
    assert (await site.add()).error is E.INVALID_PRODUCER_ID_MAPPING


async def test_a_request_that_was_given_up_is_not_processed(site: Site) -> None:
    told = await site.table.request("id", Init(token=object(), timeout_ms=1), lambda: True)
    assert told == InitResult(error=E.COORDINATOR_NOT_AVAILABLE)
    assert site.table.names() == []


async def test_a_server_that_starts_goes_on_with_what_was_decided(site: Site) -> None:
    stored = site.storage.transactions.stored
    stored["decided"] = stored_at(S.PREPARE_COMMIT)
    stored["ongoing"] = stored_at(S.ONGOING)
    site.table.load()
    await until(lambda: site.state("decided") is S.COMPLETE_COMMIT)
    assert [(call.producer_id, call.commit) for call in site.logs.calls] == [(9, True)]
    await until(lambda: site.state("ongoing") is S.ONGOING)
    site.clock.advance(MINUTE_MS)
    await until(lambda: site.state("ongoing") is S.COMPLETE_ABORT)
    assert [each.transactional_id for each in site.table.describe_all()] == ["decided", "ongoing"]


async def test_a_request_loads_its_id_and_waits_for_the_decided_transaction(site: Site) -> None:
    site.storage.transactions.stored["id"] = stored_at(S.PREPARE_ABORT)
    site.logs.may_end.clear()
    add = Add(token=object(), producer_id=9, epoch=5, participants=(P0,))
    assert await site.table.request("id", add) == AddResult(error=E.CONCURRENT_TRANSACTIONS)
    await turns()
    assert len(site.logs.calls) == 1
    site.logs.may_end.set()
    await until(lambda: site.state() is S.COMPLETE_ABORT)
    assert (await site.table.request("id", replace(add, token=object()))).error is None


async def test_an_id_of_another_broker_is_refused_and_released(site: Site) -> None:
    site.go_by(1, 1)
    await site.init()
    await site.add()
    site.logs.may_end.clear()
    ending = asyncio.ensure_future(site.end())
    await until(lambda: bool(site.logs.calls))
    site.go_by(2, 2)
    assert await ending == EndResult(error=E.NOT_COORDINATOR)
    assert (await site.init()).error is E.NOT_COORDINATOR
    assert site.table.names() == []
    assert site.storage.transactions.forgotten == ["id"]
    await turns()
    site.clock.advance(MINUTE_MS)
    await turns()
    assert len(site.logs.calls) == 1, "its calls, timers and tasks are over"


async def test_a_broker_that_takes_over_ends_participants(site: Site) -> None:
    site.storage.transactions.stored["id"] = stored_at(S.PREPARE_COMMIT)
    site.go_by(1, 2)
    await turns()
    assert site.logs.calls == []
    site.go_by(2, 1)
    await until(lambda: site.state() is S.COMPLETE_COMMIT)
    assert site.logs.calls[0].number == 3


async def test_a_stopped_server_calls_no_participants(site: Site) -> None:
    await site.init()
    await site.add()
    storage = site.storage.transactions
    storage.answers = asyncio.Event()
    ending = asyncio.ensure_future(site.end())
    await turns()
    await site.table.stop()
    storage.answers.set()
    await turns()
    assert site.logs.calls == []
    assert ending.cancelled() or ending.done()
    assert storage.stored["id"].state is S.PREPARE_COMMIT, "the next server goes on"


async def test_a_deleted_topic_leaves_its_transactions(site: Site) -> None:
    await site.init()
    await site.add(P0, GroupId("g"))
    for topic_id in (UUID(int=1), TOPIC):
        await site.table.topic_deleted(topic_id, CooperativeScheduler().pace())
    await site.end()
    assert site.logs.calls[0].participants == (GroupId("g"),)


@pytest.fixture
async def redis_storage(open_storage: OpenStorage) -> RedisStorage:
    return await open_storage()


def over(storage: RedisStorage, logs: Logs, new_producer_id: Callable[[], Awaitable[int]]) -> TransactionCoordinator:
    return TransactionCoordinator(storage.transactions, ManualClock(), TransactionSettings(), logs, new_producer_id)


async def test_over_a_real_storage_a_later_server_goes_on_and_the_earlier_one_is_fenced(
    redis_storage: RedisStorage, open_storage: OpenStorage
) -> None:
    ids = count(7)

    async def new_producer_id() -> int:
        return next(ids)

    first, logs = over(redis_storage, Logs(), new_producer_id), Logs()
    assert await first.request("id", Init(token=object(), timeout_ms=MINUTE_MS)) == InitResult(producer_id=7, epoch=0)
    add = Add(token=object(), producer_id=7, epoch=0, participants=(P0, GroupId("g")))
    assert await first.request("id", add) == AddResult(number=1)
    later = await open_storage(epoch=2)
    second = over(later, logs, new_producer_id)
    second.load()
    await until(lambda: second.describe("id") is not None)
    end = End(token=object(), producer_id=7, epoch=0, commit=False)
    assert await first.request("id", end) == EndResult(error=E.COORDINATOR_NOT_AVAILABLE)
    assert await second.request("id", replace(end, token=object(), commit=True)) == EndResult(producer_id=7, epoch=0)
    assert logs.calls[0].participants == (P0, GroupId("g"))
    assert (await later.transactions.load_one("id")).state is S.PREPARE_COMMIT
    await later.transactions.save("id", SaveTransaction(stored_at(S.EMPTY)))
    await first.stop()
    await second.stop()
