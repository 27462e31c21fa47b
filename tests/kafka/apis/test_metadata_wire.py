"""Metadata on the wire: topics by name and id, and topics that it creates (KIP-516)."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.topic_requests import described

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    CreatePartitionsRequest,
    MetadataRequest,
)
from headrace.testing import Server, server

NO_ID = b"\x00" * 16


@pytest.mark.parametrize("version", range(13))
def test_versions_of_metadata(wire: Wire, running: Server, topic: str, version: int) -> None:
    wire.create(topic, partitions=3)
    answer = wire.metadata(topic, version=version)
    [node] = answer.brokers
    assert (f"{node.host}:{node.port}", node.node_id) == (running.kafka, 1)
    if version >= 1:
        assert answer.controller_id == node.node_id, "admin calls go there"
    [found] = answer.topics
    assert (found.error_code, found.name, found.is_internal) == (0, topic, False)
    assert [one.partition_index for one in found.partitions] == [0, 1, 2]
    for one in found.partitions:
        assert (one.error_code, one.leader_id, one.replica_nodes, one.isr_nodes) == (0, 1, [1], [1])
        assert one.offline_replicas == []
    if version >= 10:
        assert found.topic_id.bytes != NO_ID


def test_null_topics_are_all_and_an_empty_list_is_none(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for version in range(1, 13):
        assert topic in [one.name for one in wire.ask(MetadataRequest(topics=None), version).topics]
        assert wire.ask(MetadataRequest(topics=[]), version).topics == []
    assert topic in [one.name for one in wire.ask(MetadataRequest(topics=[]), 0).topics], "version 0 knows no null"


def test_a_topic_id_is_stable_and_new_when_the_topic_is_created_again(wire: Wire, topic: str) -> None:
    wire.create(topic)
    first = wire.metadata(topic).topics[0].topic_id
    wire.produce(topic, batch(b"old"))
    assert wire.metadata(topic).topics[0].topic_id == first
    # Java's consumers of patterns send an empty name, and not null.
    for name in (None, ""):
        asking = MetadataRequest.MetadataRequestTopic(name=name, topic_id=first)
        [found] = wire.ask(MetadataRequest(topics=[asking]), 13).topics
        assert (found.error_code, found.name, found.topic_id) == (0, topic, first)
    by_id = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None, topic_id=first)])
    assert wire.ask(by_id, 12).topics[0].name == topic
    wire.delete(topic)
    assert wire.ask(by_id, 12).topics[0].error_code == Code.UNKNOWN_TOPIC_ID
    wire.create(topic)
    assert wire.metadata(topic).topics[0].topic_id != first
    assert wire.offset(topic, -1).offset == 0, "none of the old records"
    assert wire.produce(topic, batch(b"new")).base_offset == 0


def test_a_topic_that_grows_is_described_as_it_is_now(wire: Wire, topic: str) -> None:
    """Also in versions that it was described in before."""
    wire.create(topic, partitions=2)
    for _ in range(2):
        assert [described(wire, topic, version) for version in range(13)] == [(0, 2)] * 13
    more = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=700, assignments=None)
    assert wire.ask(CreatePartitionsRequest(topics=[more], timeout_ms=30_000), 2).results[0].error_code == 0
    for _ in range(2):
        assert [described(wire, topic, version) for version in range(13)] == [(0, 700)] * 13
    wire.delete(topic)
    assert described(wire, topic) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_topic_ids_survive_a_restart(topic: str) -> None:
    with server() as one:
        with Wire(one.kafka) as wire:
            wire.create(topic)
            before = wire.metadata(topic).topics[0].topic_id
            cluster = wire.metadata().cluster_id
        one.restart()
        with Wire(one.kafka) as wire:
            assert wire.metadata(topic).topics[0].topic_id == before
            assert wire.metadata().cluster_id == cluster


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_a_missing_topic_is_created_before_the_answer(wire: Wire, topic: str, version: int) -> None:
    assert described(wire, topic, version, create=True) == (0, 1)
    assert wire.produce(topic, batch(b"x")).error_code == 0


@pytest.mark.parametrize("version", [4, 9, 12])
def test_a_missing_topic_is_not_created_against_the_clients_wish(wire: Wire, topic: str, version: int) -> None:
    assert described(wire, topic, version) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert described(wire, topic, version) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_a_missing_topic_is_not_created_against_the_servers_setting(topic: str) -> None:
    with server(auto_create_topics_enable=False) as strict, Wire(strict.kafka) as wire:
        assert described(wire, topic, create=True) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)
