"""The transactional IDs of a broker: limits, loads, takeovers, and a real storage."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from uuid import UUID

import pytest
import structlog
from msgspec.structs import replace
from tests.conftest import OpenStorage
from tests.harness.coordinated import Logs, Site, turns
from tests.harness.memory import MemoryStorage
from tests.harness.transactions import P0, TOPIC, stored_at
from tests.harness.waiting import until

from headrace.broker.coordinator.transactions import LONGEST_ID, TransactionCoordinator
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable, TopicError
from headrace.transactions.effects import AddResult, EndResult, InitResult, LookupResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init, Lookup, Verify
from headrace.transactions.model import (
    GroupId,
    SaveTransaction,
    StoredTransaction,
    TransactionSettings,
    TransactionState,
)

E = TransactionError
S = TransactionState
MINUTE_MS = 60_000


@pytest.fixture
async def site(storage: MemoryStorage) -> AsyncIterator[Site]:
    made = Site(storage)
    yield made
    await made.table.stop()


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


async def test_a_server_is_complete_when_all_readable_ids_are_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.storage.transactions.stored["ongoing"] = stored_at(S.ONGOING)
    site.storage.transactions.stored["unreadable"] = stored_at(S.ONGOING)
    load_one, silent = site.storage.transactions.load_one, True

    async def load(name: str, view: int | None = None) -> StoredTransaction:
        if silent:
            raise StorageUnavailable("no response")
        if name == "unreadable":
            raise TopicError("no JSON")
        return await load_one(name, view)

    monkeypatch.setattr(site.storage.transactions, "load_one", load)
    monkeypatch.setattr("headrace.broker.coordinator.coordinator._COMPLETE_S", 0.05)
    site.table.load()
    assert not await site.table.complete()
    silent = False

    def loaded_later() -> bool:
        site.clock.advance(100)
        return site.state("ongoing") is S.ONGOING

    await until(loaded_later)
    monkeypatch.setattr("headrace.broker.coordinator.coordinator._COMPLETE_S", 5)
    assert await site.table.complete()
    assert site.table.names() == ["ongoing"]


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
