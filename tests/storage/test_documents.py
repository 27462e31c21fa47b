import pytest
import redis
from tests.conftest import OpenStorage

from headrace.topics.errors import Fenced, StorageFull


async def test_documents_come_back_by_kind(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    await storage.documents.save({("a", "1"): b"one", ("b", "1"): b"\x00\xff", ("a", "ü {}:"): b""})
    restarted = await open_storage(epoch=2)
    assert await restarted.documents.load("a") == {"1": b"one", "ü {}:": b""}
    assert await restarted.documents.load("b") == {"1": b"\x00\xff"}
    assert await restarted.documents.load("c") == {}


async def test_changes_of_several_kinds_are_one(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    await storage.documents.save({("a", str(number)): b"old" for number in range(3)})
    before = await storage.documents.load("a")
    await storage.documents.save({("a", "0"): None, ("b", "0"): b"new", ("a", "1"): b"new", ("a", "none"): None})
    assert before == {"0": b"old", "1": b"old", "2": b"old"}
    assert await storage.documents.load("a") == {"1": b"new", "2": b"old"}
    assert await storage.documents.load("b") == {"0": b"new"}
    await storage.documents.save({("a", "1"): None, ("a", "2"): None, ("b", "0"): None})
    assert not raw.keys("*documents*")


async def test_no_change_is_no_call(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    await storage.close()
    await storage.documents.save({})


async def test_very_many_changes_at_once(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    changes: dict[tuple[str, str], bytes | None] = {("many", f"{number:05}"): b"x" * 100 for number in range(20_000)}
    await storage.documents.save(changes)
    assert list(await storage.documents.load("many")) == [f"{number:05}" for number in range(20_000)]


async def test_an_older_server_is_fenced(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    await storage.documents.save({("a", "1"): b"one"})
    raw.set("headrace:{meta}:epoch", 2)
    with pytest.raises(Fenced):
        await storage.documents.save({("a", "1"): b"late"})
    newer = await open_storage(epoch=2)
    assert await newer.documents.load("a") == {"1": b"one"}


async def test_documents_are_kept_while_redis_is_full(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    raw.config_set("maxmemory", 1)
    try:
        await storage.documents.save({("a", "1"): b"one"})
        assert await storage.documents.load("a") == {"1": b"one"}
    finally:
        raw.config_set("maxmemory", 0)


async def test_a_kind_that_cannot_be_a_key_is_refused(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    with pytest.raises(ValueError, match="cannot be part of a key"):
        await storage.documents.save({("a:b", "1"): b"one"})


async def test_kept_documents_are_read_while_redis_is_full(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    """A server starts then: it is what trims."""
    storage = await open_storage()
    assert await storage.documents.keep("a", "1", b"first") == b"first"
    raw.config_set("maxmemory", 1)
    try:
        assert await storage.documents.keep("a", "1", b"second") == b"first"
        with pytest.raises(StorageFull):
            await storage.documents.keep("a", "2", b"first")
    finally:
        raw.config_set("maxmemory", 0)
