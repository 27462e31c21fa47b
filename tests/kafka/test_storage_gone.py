"""Every API that is announced has an answer where Redis is gone, and one in time where it is stopped."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, fetch_request
from tests.hostile.kafka.corpus import BY_NAME, SEEDS, TOPIC, WIDE
from tests.kafka.server.test_timeout_responses import BIG, SEEN_S, Stoppable, codes, creation, produce

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS
from headrace.protocol import messages as m
from headrace.testing import InProcessServer

NATIVE = "plain-streams"
NEW = "made-by-that"
AWAY_S = 27
"""By then everything is answered: 25 s, the second in which a request is first seen, and one more."""


def list_offsets(topic: str) -> m.ListOffsetsRequest:
    asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=1)
    return m.ListOffsetsRequest(
        replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
    )


def log_dirs() -> m.DescribeLogDirsRequest:
    return m.DescribeLogDirsRequest(topics=None)


def epoch_end(topic: str) -> m.OffsetForLeaderEpochRequest:
    asked = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    named = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])
    return m.OffsetForLeaderEpochRequest(replica_id=-1, topics=[named])


def configs(topic: str) -> m.DescribeConfigsRequest:
    asked = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=None
    )
    return m.DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=False)


def creating(*names: str) -> m.MetadataRequest:
    asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(topics=asked, allow_auto_topic_creation=True)


def created_at_once(name: str) -> m.CreateTopicsRequest:
    request = creation(name)
    request.timeout_ms = 0
    return request


READS: dict[str, tuple[Callable[[], Any], int, set[int]]] = {
    "DescribeLogDirs": (log_dirs, 4, {Code.KAFKA_STORAGE_ERROR}),
    "DescribeLogDirs, before errors": (log_dirs, 1, {Code.KAFKA_STORAGE_ERROR}),
    "ListOffsets": (lambda: list_offsets(TOPIC), 7, {Code.KAFKA_STORAGE_ERROR}),
    "Fetch": (lambda: fetch_request([(TOPIC, 0, 0)], max_wait_ms=500), 12, {Code.KAFKA_STORAGE_ERROR}),
    "Fetch, native": (lambda: fetch_request([(NATIVE, 0, 0)], max_wait_ms=500), 12, {Code.KAFKA_STORAGE_ERROR}),
    "OffsetForLeaderEpoch, native": (lambda: epoch_end(NATIVE), 4, {Code.KAFKA_STORAGE_ERROR}),
    "DescribeConfigs, native": (lambda: configs(NATIVE), 4, {Code.REQUEST_TIMED_OUT, Code.KAFKA_STORAGE_ERROR}),
    "Metadata": (lambda: creating(NEW), 12, {Code.LEADER_NOT_AVAILABLE, Code.KAFKA_STORAGE_ERROR}),
    "CreateTopics": (lambda: created_at_once("made-at-once"), 7, {Code.KAFKA_STORAGE_ERROR}),
    "Produce": (lambda: produce(TOPIC), 9, {Code.KAFKA_STORAGE_ERROR, Code.REQUEST_TIMED_OUT}),
}  # fmt: skip


SETTINGS: dict[str, Any] = {"headrace_cache_bytes": 0, "auto_create_topics_enable": True}
"""What is read is not in memory."""


PLAIN: dict[str, Any] = {"headrace.storage": "native"}


def asked_apis() -> list[int]:
    """APIs that ask storage for something, or may: what anybody may ask for has its answer in memory."""
    return sorted(key for key, api in APIS.items() if api.refusal is not None)


def fill(kafka: str) -> None:
    with Wire(kafka) as client:
        client.create(TOPIC)
        client.create(WIDE, partitions=3)
        client.create(NATIVE, 1, **PLAIN)
        for topic in (TOPIC, NATIVE):
            for _ in range(3):
                assert client.produce(topic, batch(b"one", b"two")).error_code == 0


@pytest.fixture
def gone() -> Iterator[InProcessServer]:
    """A server whose Redis has ended."""
    with RedisServer() as store, InProcessServer(redis=store.url, **SETTINGS) as started:
        fill(started.kafka)
        store.kill()
        yield started


@pytest.fixture(scope="module")
def stoppable() -> Iterator[Stoppable]:
    with Stoppable(**SETTINGS) as started:
        fill(started.kafka)
        yield started


def test_every_api_answers_where_redis_is_gone(gone: InProcessServer) -> None:
    for key in asked_apis():
        with Wire(gone.kafka) as client:
            client.ask(SEEDS[key](), APIS[key].newest)


@pytest.mark.parametrize("asked", READS)
def test_requests_that_need_redis_fail(asked: str, gone: InProcessServer) -> None:
    make, version, told = READS[asked]
    with Wire(gone.kafka) as client:
        assert codes(client.ask(make(), version)) <= told


def test_every_api_answers_in_time_where_redis_is_stopped(stoppable: Stoppable) -> None:
    clients = {key: Wire(stoppable.kafka) for key in asked_apis()}
    with stoppable.stopped():
        for key, client in clients.items():
            # By names: the seeds do not know the ids of this server's topics.
            client.send(SEEDS[key](), BY_NAME.get(key, APIS[key].newest))
        assert clients[m.OffsetCommitRequest.API_KEY].is_silent(SEEN_S)
        stoppable.clock.advance(AWAY_S)
        for client in clients.values():
            client.receive()
            client.close()


@pytest.mark.parametrize("asked", READS)
def test_requests_that_need_redis_are_answered_in_time_while_it_is_paused(asked: str, stoppable: Stoppable) -> None:
    make, version, told = READS[asked]
    with Wire(stoppable.kafka) as client:
        with stoppable.stopped():
            client.send(make(), version)
            assert client.is_silent(SEEN_S)
            stoppable.clock.advance(AWAY_S)
            assert codes(client.receive()) <= told
            # The connection goes on.
            assert client.metadata(TOPIC).topics[0].name == TOPIC
        # So does the server: abandoned requests hold nothing.
        assert codes(client.ask(list_offsets(TOPIC), 7)) == {0}


def test_abandoned_requests_are_counted_until_they_complete() -> None:
    with Stoppable(headrace_reads_bytes=1 << 20, **SETTINGS) as server, Wire(server.kafka) as client:
        client.create(TOPIC)
        assert client.produce(TOPIC, batch(BIG)).error_code == 0
        for _ in range(2):
            with server.stopped():
                client.send(fetch_request([(TOPIC, 0, 0)]), 12)
                assert client.is_silent(SEEN_S)
                server.clock.advance(AWAY_S)
                assert codes(client.receive()) == {Code.KAFKA_STORAGE_ERROR}
                # There is no room for another one.
                client.send(fetch_request([(TOPIC, 0, 0)]), 12)
                assert client.is_silent(SEEN_S)
            assert codes(client.receive()) == {0}


def test_nor_does_a_fetch_of_many_partitions_hold_what_it_reads_after_its_client_has_gone() -> None:
    nowhere = [(TOPIC, index, 0) for index in range(1, 202)]
    with Stoppable(headrace_reads_bytes=1 << 20, **SETTINGS) as server, Wire(server.kafka) as client:
        client.create(TOPIC, retention_ms=-1)  # the clock goes past a look at what is old
        assert client.produce(TOPIC, batch(BIG)).error_code == 0
        for _ in range(-(-(1 << 20) // len(BIG))):
            with server.stopped(), Wire(server.kafka) as other:
                other.send(fetch_request([(TOPIC, 0, 0), *nowhere]), 12)
                assert other.is_silent(SEEN_S)
                server.clock.advance(AWAY_S)
                assert Code.KAFKA_STORAGE_ERROR in codes(other.receive())
            client.send(fetch_request([(TOPIC, 0, 0)]), 12)
            assert codes(client.receive()) == {0}
