"""What is said of a Redis that cannot be used, where it says little itself."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.storage.errors import unusable
from headrace.storage.redis.clients import PrimaryUnavailable


@pytest.mark.parametrize(
    ("error", "url", "told"),
    [
        (ResponseError("DB index is out of range"), "redis://h/99", "no database of that number; end the URL"),
        (
            RedisTimeoutError("Timeout connecting to server"),
            "rediss://h",
            "if it has no TLS, begin its URL with redis",
        ),
        (RedisConnectionError("(104, 'Connection reset by peer')"), "redis://h", "begin its URL with rediss instead"),
        (RedisConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] ..."), "rediss://h", "with --redis-ca FILE"),
        (
            InvalidResponse('Protocol error, got "H" as reply type byte'),
            "redis://h",
            "Redis at redis://h is not a Redis: the server at this address uses another protocol; set the address",
        ),
        (
            InvalidResponse('Protocol error, got "\\x15" as reply type byte'),
            "redis://h",
            "begin its URL with rediss instead",
        ),
        (
            PrimaryUnavailable("h:1", [range(5), range(7, 8), range(9, 11), range(20, 30)], "refused."),
            "redis+cluster://h",
            "h has a primary that does not respond: h:1, which has 18 slots (0-4, 7, 9-10, more): refused; start it",
        ),
        (
            ResponseError("ACL failure in script: User u has no permissions to run 'hset' command script: on @a:9."),
            "redis://h",
            "to run 'hset' command; Headrace needs all commands on its keys",
        ),
        (
            ResponseError("The user executing the script can't run this command or subcommand script: 5f1, on @a:9."),
            "redis://h",
            "can't run this command or subcommand; Headrace needs all commands on its keys",
        ),
        (RedisConnectionError("Connection refused."), "redis://u:p@h", "Redis at redis://u@h does not answer: Conn"),
    ],
)
def test_the_remedy_follows_from_the_response(error: Exception, url: str, told: str) -> None:
    assert told in str(unusable(error, url))
