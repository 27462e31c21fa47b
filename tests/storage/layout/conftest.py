from collections.abc import Iterator

import pytest
import redis
from tests.harness.rawlog import RawLog
from tests.harness.redis import RedisServer


@pytest.fixture
def log(any_redis: RedisServer) -> Iterator[RawLog]:
    """A log without a leader, in an empty Redis."""
    with redis.Redis.from_url(any_redis.url) as link:
        link.flushall()
        yield RawLog(link)
        link.config_set("maxmemory", 0)
