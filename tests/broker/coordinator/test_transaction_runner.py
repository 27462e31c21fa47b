"""One transactional ID on the runtime: order of effects, participants, storage that fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog
from msgspec.structs import replace
from tests.harness.coordinated import Site, turns
from tests.harness.memory import MemoryStorage
from tests.harness.transactions import P0, P1, stored_at
from tests.harness.waiting import until

from headrace.topics.errors import StorageUnavailable
from headrace.transactions.effects import AddResult, EndResult, InitResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add
from headrace.transactions.model import GroupId, TransactionSettings, TransactionState

E = TransactionError
S = TransactionState
MINUTE_MS = 60_000


@pytest.fixture
async def site(storage: MemoryStorage) -> AsyncIterator[Site]:
    made = Site(storage)
    yield made
    await made.table.stop()


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


async def test_a_write_that_fails_unexpectedly_is_refused_and_can_be_repeated(site: Site) -> None:
    await site.init()
    storage = site.storage.transactions
    storage.error = ValueError("a mistake")
    with structlog.testing.capture_logs() as lines:
        assert await site.add() == AddResult(error=E.COORDINATOR_NOT_AVAILABLE)
    assert [line["event"] for line in lines] == ["a state was not stored", "transaction not stored"]
    assert site.state() is S.EMPTY
    storage.error = None
    assert (await site.add()).error is None
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


@pytest.mark.parametrize("error", [StorageUnavailable("away"), RuntimeError("a mistake")])
async def test_a_new_id_leaves_no_trace_without_a_producer_id(site: Site, error: Exception) -> None:
    site.id_error = error
    with structlog.testing.capture_logs() as lines:
        assert await site.init() == InitResult(error=E.COORDINATOR_NOT_AVAILABLE)
    assert [line["event"] for line in lines] == ["no producer ID"]
    await turns()
    assert site.table.names() == []
    site.id_error = None
    assert await site.init() == InitResult(producer_id=100, epoch=0)


async def test_an_expired_id_is_dropped(storage: MemoryStorage) -> None:
    site = Site(storage, TransactionSettings(expiration_ms=1_000))
    await site.init()
    site.clock.advance(1_000)
    await until(lambda: site.table.names() == [])
    assert storage.transactions.stored == {}
    assert (await site.add()).error is E.INVALID_PRODUCER_ID_MAPPING


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
