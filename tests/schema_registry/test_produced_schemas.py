"""Schemas of produced records: under which subjects they are, their names, and what other brokers have registered."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from tests.harness.memory import MemoryStorage

from headrace.schema_registry.produced_schemas import ProducedSchemas
from headrace.schema_registry.registry import Given, Registry
from headrace.schema_registry.store import SchemaStore
from headrace.schema_registry.worker import Worker
from headrace.schemas.errors import RegistryError
from headrace.schemas.formats import record_names
from headrace.topics.errors import StorageUnavailable

ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": []})


class BusyWorker(Worker):
    """Has no room for the names of a schema."""

    async def run(self, work: Callable[[], Any]) -> Any:
        if getattr(work, "func", None) is record_names:
            raise RegistryError(503, 50302, "Too many schemas wait to be parsed: try again")
        return await super().run(work)


def made(storage: Any, worker: Worker | None = None) -> Registry:
    return Registry(SchemaStore(storage.documents, 1_000, 1 << 20), worker or Worker(), None, 1 << 16, "c")


def by_id(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


async def test_a_schema_is_known_by_id_and_guid_in_its_subjects() -> None:
    registry = made(MemoryStorage())
    version = await registry.register("t-value", Given(ORDER))
    schemas = ProducedSchemas(registry, None)
    for reference in (by_id(version.id), b"\1" + UUID(version.guid).bytes):
        assert schemas.is_registered(reference, "t-value")
        assert not schemas.is_registered(reference, "other-value")
    for reference in (by_id(version.id + 1), by_id(0), b"\1" + bytes(16)):
        assert not schemas.is_registered(reference, "t-value")
    await registry.delete_subject("t-value", permanent=False)
    assert not schemas.is_registered(by_id(version.id), "t-value")


async def test_names_are_learned_once() -> None:
    registry = made(MemoryStorage())
    version = await registry.register("any", Given(ORDER))
    schemas, reference = ProducedSchemas(registry, None), by_id(version.id)
    assert schemas.names(reference) == frozenset()
    await schemas.learn([reference, by_id(99)], names=False)
    assert schemas.names(reference) == frozenset()
    await schemas.learn([reference, by_id(99)], names=True)
    assert schemas.names(reference) == {"shop.Order"}
    assert schemas.names(by_id(99)) == frozenset()


async def test_schemas_of_another_broker_are_learned() -> None:
    storage = MemoryStorage()
    mine, other = made(storage), made(storage)
    version = await other.register("t-value", Given(ORDER))

    def catching_up() -> Callable[[], Awaitable[bool]]:
        async def catch_up() -> bool:
            await mine.store.reload(frozenset())
            return True

        return catch_up

    schemas, reference = ProducedSchemas(mine, catching_up), by_id(version.id)
    assert not schemas.is_registered(reference, "t-value")
    await schemas.learn([reference], names=True)
    assert schemas.is_registered(reference, "t-value")
    assert schemas.names(reference) == {"shop.Order"}


async def test_a_busy_registry_is_an_error_to_retry() -> None:
    registry = made(MemoryStorage(), BusyWorker())
    version = await registry.register("any", Given(ORDER))
    with pytest.raises(StorageUnavailable, match="try again"):
        await ProducedSchemas(registry, None).learn([by_id(version.id)], names=True)
