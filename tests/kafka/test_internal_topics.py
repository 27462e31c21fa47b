"""Kafka's internal topics: `__consumer_offsets` is there and empty, and none of them is a client's."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, batches
from tests.oci.conftest import COMPARTMENT, Api

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.testing import InProcessServer, Server, server

OFFSETS = "__consumer_offsets"
OTHERS = ["__transaction_state", "__share_group_state", "__cluster_metadata"]


def create(wire: Wire, *names: str, **config: str) -> list[tuple[int, str]]:
    request = m.CreateTopicsRequest
    configs = [request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topics = [
        request.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs)
        for name in names
    ]
    answer = wire.ask(request(topics=topics, timeout_ms=5_000), 7)
    return [(each.error_code, each.error_message) for each in answer.topics]


def test_consumer_offsets_is_always_in_metadata(wire: Wire) -> None:
    everything = {each.name: each for each in wire.ask(m.MetadataRequest(topics=None), 12).topics}
    [named] = wire.metadata(OFFSETS).topics
    found = everything[OFFSETS]
    assert found.is_internal
    assert named.is_internal
    assert len(found.partitions) == len(named.partitions) == 50
    assert found.topic_id == named.topic_id != UUID(int=0)
    assert {(part.error_code, part.leader_id) for part in found.partitions} == {(0, 1)}
    assert not any(everything[name].is_internal for name in everything if name != OFFSETS)
    [by_id] = wire.ask(
        m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=found.topic_id, name=None)]), 12
    ).topics
    assert by_id.name == OFFSETS


def test_pages_of_partitions_have_it(wire: Wire) -> None:
    names: list[str] = []
    cursor = None
    while True:
        request = m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=20, cursor=cursor)
        answer = wire.ask(request, 0)
        names += [each.name for each in answer.topics for _ in each.partitions]
        assert all(each.is_internal == (each.name == OFFSETS) for each in answer.topics)
        if answer.next_cursor is None:
            break
        cursor = m.DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
    assert names.count(OFFSETS) == 50


def test_its_partitions_are_empty(wire: Wire) -> None:
    for timestamp in (-1, -2, -4):
        assert wire.offset(OFFSETS, timestamp, version=8).offset == 0
    for timestamp in (-3, 0):
        assert wire.offset(OFFSETS, timestamp).offset == -1
    found = wire.fetch(OFFSETS, 0, max_wait_ms=1)
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (0, 0, 0)
    assert not batches(found.records)
    assert wire.fetch(OFFSETS, 1).error_code == Code.OFFSET_OUT_OF_RANGE
    request = m.OffsetForLeaderEpochRequest
    part = request.OffsetForLeaderPartition(partition=49, current_leader_epoch=0, leader_epoch=0)
    topic = request.OffsetForLeaderTopic(topic=OFFSETS, partitions=[part])
    [[ended]] = [each.partitions for each in wire.ask(request(replica_id=-1, topics=[topic]), 4).topics]
    assert (ended.error_code, ended.leader_epoch, ended.end_offset) == (0, 0, 0)
    [directory] = wire.ask(m.DescribeLogDirsRequest(topics=None), 5).results
    [sizes] = [each.partitions for each in directory.topics if each.name == OFFSETS]
    assert [each.partition_size for each in sizes] == [0] * 50
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=OFFSETS, configuration_keys=["cleanup.policy"]
    )
    [configured] = wire.ask(m.DescribeConfigsRequest(resources=[resource]), 4).results
    assert configured.configs[0].value == "compact"
    resource.configuration_keys = None
    [configured] = wire.ask(m.DescribeConfigsRequest(resources=[resource]), 4).results
    assert "headrace.streams" not in {each.name for each in configured.configs}, "nothing lies in Redis"


def test_clients_can_neither_write_nor_change_it(wire: Wire) -> None:
    assert wire.produce(OFFSETS, batch(b"x")).error_code == Code.INVALID_TOPIC_EXCEPTION
    assert create(wire, OFFSETS)[0][0] == Code.TOPIC_ALREADY_EXISTS
    request = m.DeleteTopicsRequest(
        topics=[m.DeleteTopicsRequest.DeleteTopicState(name=OFFSETS, topic_id=UUID(int=0))], timeout_ms=1_000
    )
    assert wire.ask(request, 6).responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert wire.delete_records(OFFSETS, 0)[0] == Code.INVALID_TOPIC_EXCEPTION
    grow = m.CreatePartitionsRequest.CreatePartitionsTopic(name=OFFSETS, count=60, assignments=None)
    grown = wire.ask(m.CreatePartitionsRequest(topics=[grow], timeout_ms=1_000), 3)
    assert grown.results[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    alter = m.AlterConfigsRequest
    config = alter.AlterableConfig(name="retention.ms", value="1")
    resource = alter.AlterConfigsResource(resource_type=2, resource_name=OFFSETS, configs=[config])
    assert wire.ask(alter(resources=[resource]), 2).responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert create(wire, OFFSETS, headrace_convert="native")[0][0] == Code.INVALID_TOPIC_EXCEPTION
    assert create(wire, OFFSETS, headrace_stream="anything")[0][0] == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", OTHERS)
def test_no_client_creates_the_others(wire: Wire, name: str) -> None:
    assert create(wire, name)[0][0] == Code.INVALID_TOPIC_EXCEPTION
    assert create(wire, name, headrace_stream="anything")[0][0] == Code.INVALID_TOPIC_EXCEPTION
    [created] = wire.metadata(name, create=True).topics
    assert created.error_code == Code.INVALID_TOPIC_EXCEPTION
    [asked] = wire.metadata(name).topics
    assert asked.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_clients_see_it_as_they_do_in_kafka(running: Server) -> None:
    admin = AdminClient({"bootstrap.servers": running.kafka})
    assert len(admin.list_topics(timeout=30).topics[OFFSETS].partitions) == 50
    described = admin.describe_topics(TopicCollection([OFFSETS]))
    assert described[OFFSETS].result(30).is_internal


def test_the_oci_api_does_not_have_it() -> None:
    with server(oci_auth="off") as started:
        api = Api(started.http)
        try:
            assert api.done("GET", f"/streams?compartmentId={COMPARTMENT}") == []
            for name in (OFFSETS, *OTHERS):
                wanted = {"name": name, "partitions": 1, "compartmentId": COMPARTMENT}
                refused = api.call("POST", "/streams", wanted)
                assert (refused.status, refused.json["code"]) == (400, "InvalidParameter"), refused
                assert "is reserved" in refused.json["message"]
        finally:
            api.close()


def test_partitions_as_configured() -> None:
    with server(offsets_topic_num_partitions=3) as started, Wire(started.kafka) as wire:
        [before] = wire.metadata(OFFSETS).topics
        assert len(before.partitions) == 3


def test_names_that_differ_only_in_dots_and_underscores(wire: Wire) -> None:
    assert create(wire, "colliding.a_b")[0][0] == 0
    taken = (Code.INVALID_TOPIC_EXCEPTION, "Topic 'colliding_a.b' collides with existing topic: colliding.a_b")
    assert create(wire, "colliding_a.b") == [taken]
    [created] = wire.metadata("colliding_a_b", create=True).topics
    assert created.error_code == Code.INVALID_TOPIC_EXCEPTION
    both = create(wire, "together.x", "together_x")
    assert [code for code, _ in both] == [0, Code.INVALID_TOPIC_EXCEPTION]
    taken = (Code.INVALID_TOPIC_EXCEPTION, f"Topic '__consumer.offsets' collides with existing topic: {OFFSETS}")
    assert create(wire, "__consumer.offsets") == [taken]
    wire.delete("colliding.a_b")
    assert create(wire, "colliding_a.b")[0][0] == 0, "its name is free again"


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def test_a_topic_of_an_earlier_version_is_kept(store: RedisServer) -> None:
    """Earlier versions let clients create such topics."""
    with InProcessServer(redis=store.url) as started, Wire(started.kafka) as wire:
        wire.create("before")
        wire.produce("before", batch(b"kept"))
    with redis.Redis.from_url(store.url, decode_responses=True) as link:
        hashes = [each for each in link.scan_iter("*topics*") if link.type(each) == "hash"]
        [key] = [each for each in hashes if link.hexists(each, "before")]
        stored: Any = link.hget(key, "before")
        link.hset(key, OFFSETS, stored.replace('"name":"before"', f'"name":"{OFFSETS}"'))
        link.hdel(key, "before")
    with InProcessServer(redis=store.url) as started, Wire(started.kafka) as wire:
        [found] = wire.metadata(OFFSETS).topics
        assert (found.is_internal, len(found.partitions)) == (True, 1)
        assert len(batches(wire.fetch(OFFSETS, 0).records)) == 1
        assert wire.produce(OFFSETS, batch(b"more")).error_code == Code.INVALID_TOPIC_EXCEPTION
        wire.delete(OFFSETS)
        [found] = wire.metadata(OFFSETS).topics
        assert (found.is_internal, len(found.partitions)) == (True, 50)
