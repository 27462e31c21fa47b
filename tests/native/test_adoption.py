"""Redis Streams that may become topics: the right to create topics must not give access to all data of a Redis."""

from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from headrace.testing import server


def adopt(kafka: str, topic: str, stream: str, replicas: int = -1) -> CreateTopicsResponse.CreatableTopicResult:
    config = CreateTopicsRequest.CreatableTopicConfig(name="headrace.stream", value=stream)
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=-1, replication_factor=replicas, configs=[config]
    )
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


def test_a_replication_factor_that_cannot_be_is_refused_as_for_other_topics() -> None:
    with server() as started, redis.Redis.from_url(started.storage) as link:
        link.xadd("jobs", {"value": "x"})
        for replicas in (0, -2, 2):
            assert adopt(started.kafka, "jobs", "jobs", replicas).error_code == Code.INVALID_REPLICATION_FACTOR
        assert adopt(started.kafka, "jobs", "jobs", 1).error_code == Code.NONE


@pytest.mark.parametrize("ms", [2**64 - 1, 2**55, 2**52])
def test_an_entry_without_an_offset_closes_no_connection(ms: int) -> None:
    """Its time is beyond what offsets have: what is before it is served, and nothing can be added."""
    with server() as started, redis.Redis.from_url(started.storage) as link:
        link.xadd("ends", {"value": "first"}, id="5-0")
        link.xadd("ends", {"value": "last"}, id=f"{ms}-{2**64 - 1}")
        assert adopt(started.kafka, "ends", "ends").error_code == Code.NONE
        with Wire(started.kafka) as client:
            assert (client.offset("ends", -2).offset, client.offset("ends", -1).offset) == (0, 1 << 62)
            assert client.offset("ends", 1).offset == 5 << 10
            assert client.offset("ends", 6).offset == -1
            [record] = opened(client.fetch("ends", 0).records)
            assert record.value == b"first"
            assert client.fetch("ends", 1 << 62).error_code == Code.NONE
            assert client.produce("ends", batch(b"x")).error_code != Code.NONE


@pytest.mark.parametrize(
    "stream", ["headrace:orders:0", "own:orders:0", "{headrace:orders:0}:foreign", "headrace:{meta}:changes"]
)
def test_keys_of_headrace_itself_are_never_adopted(stream: str) -> None:
    with server(headrace_stream_prefix="own") as started, redis.Redis.from_url(started.storage) as link:
        link.xadd(stream, {"value": "x"})
        answer = adopt(started.kafka, "stolen", stream)
        assert answer.error_code == Code.INVALID_CONFIG
        assert "Headrace's own" in str(answer.error_message)
