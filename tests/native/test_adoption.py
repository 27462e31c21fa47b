"""Whose Redis Streams may become topics: whoever may create topics must not reach all that lies in a Redis."""

from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire

from headrace.kafka.codec.messages import CreateTopicsRequest, CreateTopicsResponse
from headrace.kafka.errors import Code
from headrace.testing import server


def adopt(kafka: str, topic: str, stream: str) -> CreateTopicsResponse.CreatableTopicResult:
    config = CreateTopicsRequest.CreatableTopicConfig(name="headrace.stream", value=stream)
    wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, configs=[config])
    with Wire(kafka) as client:
        [answer] = client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=5_000), 7).topics
    found: CreateTopicsResponse.CreatableTopicResult = answer
    return found


@pytest.mark.parametrize(
    ("prefixes", "adopted"),
    [
        (None, set()),
        ("", set()),
        ("sensors:", {"sensors:kitchen"}),
        ("jobs, sensors:", {"sensors:kitchen", "jobs"}),
        ("*", {"sensors:kitchen", "jobs"}),
    ],
)
def test_of_an_external_redis_only_what_is_allowed(prefixes: str | None, adopted: set[str]) -> None:
    given: dict[str, Any] = {} if prefixes is None else {"headrace_adopt_prefixes": prefixes}
    with RedisServer() as external, redis.Redis.from_url(external.url) as link:
        for stream in ("sensors:kitchen", "jobs"):
            link.xadd(stream, {"value": "x"})
        with server(redis=external.url, **given) as started:
            for stream in ("sensors:kitchen", "jobs"):
                answer = adopt(started.kafka, stream.replace(":", "-"), stream)
                assert (answer.error_code == Code.NONE) == (stream in adopted), answer
                if stream not in adopted:
                    assert answer.error_code == Code.INVALID_CONFIG
                    assert "headrace.adopt.prefixes" in str(answer.error_message)


def test_of_the_embedded_valkey_everything_unless_it_is_said() -> None:
    cases: list[tuple[dict[str, Any], Code]] = [
        ({}, Code.NONE),
        ({"headrace_adopt_prefixes": "sensors:"}, Code.INVALID_CONFIG),
    ]
    for given, code in cases:
        with server(**given) as started, redis.Redis.from_url(started.storage) as link:
            link.xadd("jobs", {"value": "x"})
            assert adopt(started.kafka, "jobs", "jobs").error_code == code
