"""Changes of the documents, one at a time."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.harness.memory import MemoryStorage
from tests.oci.resources.conftest import World

from headrace.membership.view import Lock
from headrace.oci.resources.catalog import Catalog
from headrace.oci.resources.documents import Documents
from headrace.oci.resources.records import RetryToken
from headrace.oci.settings import OciSettings
from headrace.testing.clock import ManualClock
from headrace.topics.errors import LockLost, StorageUnavailable


async def test_a_change_whose_turn_never_comes_is_closed() -> None:
    documents = Documents(MemoryStorage().documents, OciSettings.of({}), ManualClock())
    others = asyncio.all_tasks()
    turn = asyncio.Event()

    async def change() -> None:
        await turn.wait()

    first, second = change(), change()
    asking = [asyncio.create_task(documents.exclusively(each)) for each in (first, second)]
    for _ in range(3):
        await asyncio.sleep(0)
    # As at the end of the loop.
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.wait(asking)
    await asyncio.sleep(0)
    assert [inspect.getcoroutinestate(each) for each in (first, second)] == [inspect.CORO_CLOSED] * 2


async def test_a_failed_change_without_waiters_is_not_reported() -> None:
    """As if the client had disconnected: Python would report it as a bug."""
    documents = Documents(MemoryStorage().documents, OciSettings.of({}), ManualClock())
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    turn = asyncio.Event()

    async def change() -> None:
        await turn.wait()
        raise StorageUnavailable("away")

    asking = asyncio.create_task(documents.exclusively(change()))
    for _ in range(3):
        await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asking, asyncio.current_task()}
    asking.cancel()
    turn.set()
    await asyncio.wait({asking, *others})
    del asking, others
    gc.collect()
    assert told == []


async def test_a_start_waits_for_another_brokers_long_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await world.stream("t")
    tries: list[str] = []
    free = world.storage.documents.locked

    @asynccontextmanager
    async def held(name: str) -> AsyncIterator[Lock]:
        tries.append(name)
        if len(tries) < 3:
            raise LockLost("other brokers have been making changes")
        async with free(name) as lock:
            yield lock

    monkeypatch.setattr(world.storage.documents, "locked", held)
    catalog = Catalog(world.clusters, OciSettings.of({}))
    await catalog.start()
    assert tries == ["oci"] * 3
    assert [each.id for each in catalog.streams.all()] == [record.id]


async def test_others_go_first_while_very_many_documents_are_read() -> None:
    storage = MemoryStorage()
    token = RetryToken(resource="r", work_request="w", request="d", expires_ms=1)
    documents = Documents(storage.documents, OciSettings.of({}), ManualClock())
    kind = documents.tokens.kind
    await storage.documents.save({(kind, str(number)): msgspec.json.encode(token) for number in range(5_000)})
    reading = asyncio.ensure_future(documents.reload(frozenset({kind})))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5
    assert len(documents.tokens.values) == 5_000
