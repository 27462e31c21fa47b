import pytest
from tests.harness.memory import MemoryDocuments, MemoryStorage

from headrace.schema_registry.store import SCHEMAS, SETTINGS, VERSIONS, SchemaStore
from headrace.schemas.errors import RegistryError
from headrace.schemas.model import Level, Mode, Schema, Version


@pytest.fixture
def documents() -> MemoryDocuments:
    return MemoryDocuments(MemoryStorage())


async def stored(documents: MemoryDocuments, *versions: Version) -> SchemaStore:
    store = SchemaStore(documents, 100, 10_000)
    for one in versions:

        async def add(version: Version = one) -> None:
            await store.add(version, Schema("AVRO", f'"{version.guid}"'))

        await store.exclusively(add)
    return store


def version(subject: str, number: int, guid: str, at: int) -> Version:
    return Version(subject, number, at, guid, "AVRO", 10)


async def loaded(documents: MemoryDocuments) -> SchemaStore:
    store = SchemaStore(documents, 100, 10_000)
    await store.load()
    return store


async def test_what_is_stored_is_loaded_again(documents: MemoryDocuments) -> None:
    await stored(documents, version("a b", 1, "x", 1), version("a b", 2, "y", 2), version("c", 1, "y", 2))
    again = await loaded(documents)
    assert [one.id for one in again.index.versions("a b")] == [1, 2]
    assert again.index.next_id == 3
    assert [one.text for one in await again.schemas(again.index.versions("c"))] == ['"y"']


async def test_a_schema_is_deleted_with_its_last_version(documents: MemoryDocuments) -> None:
    first, second = version("a", 1, "x", 1), version("b", 1, "x", 1)
    store = await stored(documents, first, second)

    async def delete(*versions: Version) -> None:
        await store.delete(versions, [], permanent=True)

    await store.exclusively(lambda: delete(first))
    assert (SCHEMAS, "x") in documents.stored
    await store.exclusively(lambda: delete(second))
    assert (SCHEMAS, "x") not in documents.stored
    assert (await loaded(documents)).index.next_id == 2, "the ID is not used again"


async def test_damaged_documents_do_not_keep_a_server_from_starting(documents: MemoryDocuments) -> None:
    await stored(documents, version("a", 1, "x", 1), version("b", 1, "y", 2))
    documents.stored[VERSIONS, "1 a"] = b"{"
    documents.stored[SCHEMAS, "y"] = b"[]"
    documents.stored[SETTINGS, "next-id "] = b'"many"'
    documents.stored[SETTINGS, "compatibility a"] = b'"SOME"'
    documents.stored[SETTINGS, "mode a"] = b"5"
    documents.stored[SETTINGS, "else a"] = b'"x"'
    store = await loaded(documents)
    assert list(store.index.names()) == ["b"]
    assert (store.index.level("a"), store.index.mode("a")) == (Level.BACKWARD, Mode.READWRITE)
    assert store.index.next_id == 3
    with pytest.raises(RegistryError, match="damaged"):
        await store.schemas(store.index.versions("b"))
    assert documents.unreadable.told
