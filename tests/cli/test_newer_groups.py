"""Requests for groups of newer kinds."""

import pytest
from confluent_kafka import Consumer
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.kafka.sharer import Sharer

from headrace.cli import newer_groups
from headrace.cli.client import Client, KafkaServer
from headrace.cli.command import CommandFailed
from headrace.testing import Server


def test_a_consumer_group_has_what_the_client_library_leaves_out(running: Server) -> None:
    kafka = KafkaServer(running.kafka)
    with Wire(running.kafka) as wire:
        wire.create("raw-read", 2)
    consumer = Consumer({"bootstrap.servers": running.kafka, "group.id": "raw", "group.protocol": "consumer"})
    consumer.subscribe(["raw-read"])
    try:
        wait_for(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, "partitions")
        found = newer_groups.consumer_group(kafka, "raw")
    finally:
        consumer.close()
    assert (found.state, found.assignor, found.coordinator) == ("Stable", "uniform", running.kafka)
    [member] = found.members
    assert member.epoch == found.epoch == found.target_epoch
    assert member.partitions == member.target == (("raw-read", 0), ("raw-read", 1))


def test_a_group_of_another_kind_is_not_described(running: Server) -> None:
    with pytest.raises(CommandFailed, match="cannot describe group 'not-there'"):
        newer_groups.consumer_group(KafkaServer(running.kafka), "not-there")


def test_a_missing_share_group_is_none(running: Server) -> None:
    kafka = KafkaServer(running.kafka)
    client = Client(kafka)
    assert newer_groups.share_group(kafka, client, "not-there") is None


def test_a_share_group_is_listed_and_described(running: Server) -> None:
    kafka = KafkaServer(running.kafka)
    with Wire(running.kafka) as wire:
        wire.create("shared-out", 2)
        sharer = Sharer(wire, "sharers", "shared-out")
        sharer.beat()
        client = Client(kafka)
        assert newer_groups.share_groups(kafka, client)["sharers"] == newer_groups.Listed("sharers", "Stable", "share")
        assert newer_groups.listed(kafka, client)["sharers"].kind == newer_groups.SHARE
        found = newer_groups.share_group(kafka, client, "sharers")
        assert found is not None
        assert (found.state, found.assignor) == ("Stable", "simple")
        [member] = found.members
        assert (member.partitions, member.target) == ((("shared-out", 0), ("shared-out", 1)), None)
        # No member has fetched.
        assert newer_groups.share_offsets(kafka, "sharers") == [
            newer_groups.ShareOffset("shared-out", 0, None, None),
            newer_groups.ShareOffset("shared-out", 1, None, None),
        ]
        sharer.beat(-1)
