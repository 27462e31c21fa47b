import pytest
import redis
import redis.asyncio
from tests.conftest import OpenStorage

from headrace.storage.errors import Unreachable, WrongLayout
from headrace.storage.layout import LAYOUT_VERSION
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import StorageUnavailable


async def test_the_layout_is_written_down_and_the_cluster_keeps_its_id(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    first = await open_storage()
    assert raw.get("headrace:{meta}:version") == str(LAYOUT_VERSION)
    second = await open_storage(epoch=2)
    assert len(first.cluster_id) == 22
    assert second.cluster_id == first.cluster_id


@pytest.mark.parametrize("version", ["4", "1000", "", "two"])
async def test_a_newer_layout_is_refused(open_storage: OpenStorage, raw: "redis.Redis", version: str) -> None:
    raw.flushall()
    raw.set("headrace:{meta}:version", version)
    with pytest.raises(WrongLayout, match=f"layout {version}, this Headrace knows 2 and 3: start a newer version"):
        await open_storage()
    assert raw.keys() == ["headrace:{meta}:version"]


async def test_a_full_redis_can_be_opened(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    first = await open_storage()
    raw.config_set("maxmemory", 1)
    try:
        assert (await open_storage(epoch=2)).cluster_id == first.cluster_id
    finally:
        raw.config_set("maxmemory", 0)


async def test_nothing_listens() -> None:
    url = "unix:///nonexistent/sock"
    async with redis.asyncio.from_url(url) as admin:
        with pytest.raises(Unreachable, match=url):
            await RedisStorage.open(url, admin, 1)


async def test_ping(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    await storage.ping()
    await storage.close()
    with pytest.raises(StorageUnavailable):
        await storage.ping()
