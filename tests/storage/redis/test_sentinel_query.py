"""What is said where no Sentinel names a primary: the reason of each, by either kind of client."""

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from headrace.storage.redis.clients import blocking
from headrace.storage.redis.endpoint import finder
from headrace.topics.errors import StorageUnavailable

# No process listens on ports below 3.
URL = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main?sentinel_password=secret"
_REFUSED = r"127\.0\.0\.1:{0}: Error \d+ connecting to 127\.0\.0\.1:{0}\..*"
WORDS = rf"^no Sentinel names a primary 'main' \({_REFUSED.format(1)}; {_REFUSED.format(2)}\)$"


async def test_a_missing_primary_is_explained() -> None:
    _, found = finder(URL)
    assert found is not None
    with pytest.raises(StorageUnavailable, match=WORDS):
        await found.find()


def test_so_are_those_who_use_a_client_for_threads() -> None:
    with pytest.raises(RedisConnectionError, match=WORDS):
        blocking(URL, retry=Retry(NoBackoff(), 0)).ping()
