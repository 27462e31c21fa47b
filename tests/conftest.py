from collections.abc import Iterator

import pytest

from headrace.testing.redis import RedisServer, debian_redis_program


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
