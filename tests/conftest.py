import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis.asyncio
from hypothesis import settings

from headrace.store.storage import RedisStorage

pytest.register_assert_rewrite("tests.harness")  # before anything imports it
from tests.harness.redis import RedisServer, debian_redis_program  # noqa: E402

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("headrace", deadline=None)
settings.register_profile("fuzz", parent=settings.get_profile("headrace"), max_examples=1_000)
settings.load_profile("headrace")

APART = {"crash", "demo", "bench", "test_serve_external.py"}
"""Folders and files whose tests share nothing: each may go to another worker. Elsewhere one worker has a whole file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extensions",
        choices=["required", "none", "sanitized"],
        help="the build of the C extensions that this run is about: it fails when they are not so",
    )
    parser.addoption(
        "--crash-rounds",
        type=int,
        default=3,
        help="how often each test with a round of chance kills its servers (3: each of the victims once)",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what must have the machine to itself, and put tests that share something dear into a group."""
    folder, _, file = item.nodeid.partition("::")[0].removeprefix("tests/").rpartition("/")
    if folder.startswith("hostile"):
        item.add_marker("alone")
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("spark session"))
    elif not ({folder, file} & APART):
        item.add_marker(pytest.mark.xdist_group(f"{folder}/{file}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first, so that no worker is left with it at the end."""
    items.sort(key=lambda item: "spark" not in item.keywords and "crash" not in item.keywords)


OpenStorage = Callable[..., Awaitable[RedisStorage]]


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[RedisServer]:
    """A Valkey without persistence for all tests that bring nothing down."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_debian_redis() -> Iterator[RedisServer]:
    """Debian's Redis, the oldest there is support for."""
    with RedisServer(debian_redis_program()) as server:
        yield server


@pytest.fixture(params=["shared_valkey", pytest.param("shared_debian_redis", marks=pytest.mark.apt)])
def any_redis(request: pytest.FixtureRequest) -> RedisServer:
    """Either of them: the same promises hold on both. What is in it is the test's to clear."""
    found: RedisServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def open_storage(any_redis: RedisServer) -> AsyncIterator[OpenStorage]:
    """Open storages on a Redis that was emptied; closed when the test ends. Each takes its epoch, 1 by default."""
    async with contextlib.AsyncExitStack() as stack:
        admin = redis.asyncio.from_url(any_redis.url)
        await admin.flushall()
        await admin.aclose()

        async def make(epoch: int = 1, **options: Any) -> RedisStorage:
            admin = redis.asyncio.from_url(any_redis.url)
            stack.push_async_callback(admin.aclose)
            made = await RedisStorage.open(any_redis.url, admin, epoch, **options)
            stack.push_async_callback(made.close)
            return made

        yield make
