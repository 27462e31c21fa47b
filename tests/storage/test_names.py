import pytest
import redis
from tests.conftest import OpenStorage

from headrace.metrics.unreadable_values import WHOLE, Unreadable
from headrace.storage.names import StoredNames
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import Fenced

KEY, EPOCH = "headrace:{meta}:transactions", "headrace:{meta}:epoch"


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    return await open_storage()


def names_of(storage: RedisStorage, noted: Unreadable | None = None) -> StoredNames:
    return StoredNames(storage.scripts, KEY, EPOCH, noted or Unreadable(), "things")


async def test_names_enter_and_leave(storage: RedisStorage, raw: "redis.Redis") -> None:
    names = names_of(storage)
    for name in ("b", "a", "ü"):
        await names.enter(name, 1)
    assert await names.all() == ["a", "b", "ü"]
    await names.leave("b", 1)
    assert await names.all() == ["a", "ü"]
    raw.sadd(KEY, b"\xff")
    assert await names.all() == ["a", "ü"], "no name of a server"


async def test_a_known_name_is_not_written_again_until_it_is_forgotten(
    storage: RedisStorage, raw: "redis.Redis"
) -> None:
    names = names_of(storage)
    names.loaded(["a"])
    await names.enter("a", 1)
    assert raw.smembers(KEY) == set()
    names.forget("a")
    await names.enter("a", 1)
    assert raw.smembers(KEY) == {"a"}


async def test_an_older_server_adds_nothing(storage: RedisStorage, raw: "redis.Redis") -> None:
    raw.set(EPOCH, 2)
    with pytest.raises(Fenced):
        await names_of(storage).enter("a", 1)
    await names_of(storage).enter("a", 2)
    assert raw.smembers(KEY) == {"a"}


async def test_a_key_of_another_type_is_noted(storage: RedisStorage, raw: "redis.Redis") -> None:
    noted = Unreadable()
    raw.set(KEY, "mine")
    assert await names_of(storage, noted).all() == []
    assert noted.reason("things", WHOLE) is not None
