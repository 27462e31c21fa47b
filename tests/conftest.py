import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings

from headrace.storage.storage import RedisStorage
from headrace.testing.inprocess import log_to_logging

pytest.register_assert_rewrite("tests.harness")  # before anything imports it
from tests.harness.forked import forked_servers  # noqa: E402
from tests.harness.lanes import TABLE, Table  # noqa: E402
from tests.harness.redis import RedisServer, debian_redis_program  # noqa: E402
from tests.harness.serving import broker, scratch  # noqa: E402, F401
from tests.harness.workers import ByWhatIsShared, longest_first  # noqa: E402

# Where the tests were started in the background it is ignored, by every process that they start too.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes, to make or to try, says more about what else the machine does than about the code. The same
# examples each time: who changes one thing is not to fail for another. New ones are for `fuzz`.
settings.register_profile(
    "headrace", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", parent=settings.get_profile("headrace"), derandomize=False, max_examples=1_000)
settings.load_profile("headrace")
# Before any test: `capture_logs` leaves a structlog behind that counts as set up; `caplog` would see nothing after it.
log_to_logging()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extensions",
        choices=["required", "none", "sanitized"],
        help="the build of the C extensions that this run is about: it fails when they are not so",
    )
    parser.addoption(
        "--extremes",
        type=int,
        default=3,
        help="how many of the generated hostile requests each Kafka API is sent, chosen by chance (0: all)",
    )
    parser.addoption(
        "--crash-rounds",
        type=int,
        default=3,
        help="how often each test with a round of chance kills its servers (3: each of the victims once)",
    )


_COLLECTED = pytest.StashKey[list[tuple[str, frozenset[str]]]]()


_LANES = Table.read(TABLE.read_text())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test the mark of the lane that owns its path, and note it before any is deselected."""
    for mark in _LANES.owner_marks(item.nodeid):
        item.add_marker(mark)
    collected = item.config.stash.setdefault(_COLLECTED, [])
    collected.append((item.nodeid, frozenset(mark.name for mark in item.iter_markers())))


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> list[tuple[str, frozenset[str]]]:
    """Return every test that was collected, run or not, with its marks."""
    return pytestconfig.stash.get(_COLLECTED, [])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from walking what lives to the end: thousands of tests make its rounds long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


_THE_COMMAND_ITSELF = (
    "tests/server/",
    "tests/docs/",
    "tests/project/",
    "tests/cli/commands/test_serve.py",
    "tests/hostile/",
    "tests/packaging/",
    "tests/testing/",
)
"""Where tests are about a server's start, its memory or its process: each has one that was started from nothing."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fork the servers of tests that are about what servers do; its fixtures are set up in here, too."""
    with contextlib.nullcontext() if item.nodeid.startswith(_THE_COMMAND_ITSELF) else forked_servers():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    return ByWhatIsShared(config, log)


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
def raw(any_redis: RedisServer) -> Iterator[Any]:
    """A Redis program: it sees what is stored, and may change it."""
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        yield link


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
