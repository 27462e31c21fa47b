"""`headrace groups describe` of groups whose partitions the server assigns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Sharer, configure

from headrace.testing import Server


@contextmanager
def member(running: Server, group: str, topic: str, partitions: int, **more: str) -> Iterator[Consumer]:
    """A member of a consumer group (KIP-848) that has so many partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.kafka,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "a-member",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
    )
    consumer.subscribe([topic])
    try:
        wait_for(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == partitions, "partitions")
        yield consumer
    finally:
        consumer.close()


def test_members_of_a_consumer_group_have_epochs_and_targets(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "assigned", "--partitions", "3")
    headrace.run("groups", "alter", "served", "--config", "consumer.session.timeout.ms=50000")
    with member(running, "served", "assigned", 3):
        described = headrace.json("groups", "describe", "served")
        shown = headrace.run("groups", "describe", "served")
        assert {"group": "served", "state": "stable", "type": "consumer"} in headrace.json("groups", "list")
    assert (described["type"], described["state"], described["protocol"]) == ("consumer", "stable", "uniform")
    assert described["epoch"] == described["target_epoch"]
    [only] = described["members"]
    assert (only["client"], only["host"], only["epoch"]) == ("a-member", "127.0.0.1", described["epoch"])
    assert only["partitions"] == only["target"] == [{"topic": "assigned", "partition": each} for each in range(3)]
    assert (only["classic"], only["kind"]) == (False, "consumer")
    assert {each["member"] for each in described["positions"]} == {only["member"]}
    heading, key, *_ = shown.splitlines()
    assert heading.endswith(f"type consumer  epoch {described['epoch']}  state stable  protocol uniform")
    assert (key, described["config"]["consumer.session.timeout.ms"]) == ("  consumer.session.timeout.ms=50000", "50000")


def test_a_group_that_has_not_followed_its_target_is_reconciling(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "handed-over", "--partitions", "2")
    # The static member leaves for a while and keeps its partitions, of which the other one is to have half.
    with member(running, "in-between", "handed-over", 2, group_instance_id="comes-back"):
        pass
    with member(running, "in-between", "handed-over", 0):
        wait_for(lambda: len(headrace.json("groups", "describe", "in-between")["members"]) == 2, "the other member")
        assert headrace.json("groups", "describe", "in-between")["state"] == "reconciling"
        assert "state reconciling" in headrace.run("groups", "describe", "in-between")
        assert {"group": "in-between", "state": "reconciling", "type": "consumer"} in headrace.json("groups", "list")
        assert {each["state"] for each in headrace.json("groups", "lag", "in-between")} == {"reconciling"}


def test_an_empty_consumer_group_keeps_its_type(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "once-assigned", "--partitions", "1")
    with member(running, "served-before", "once-assigned", 1) as consumer:
        consumer.commit(offsets=[TopicPartition("once-assigned", 0, 0)], asynchronous=False)
    described = headrace.json("groups", "describe", "served-before")
    assert (described["type"], described["state"], described["members"]) == ("consumer", "empty", [])
    assert headrace.json("groups", "lag", "served-before")[0]["state"] == "empty"
    headrace.run("groups", "delete", "served-before", "--yes")
    headrace.run("groups", "describe", "served-before", status=4)


def test_a_share_group_has_start_offsets(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "to-do", "--partitions", "1")
    with Wire(running.kafka) as wire:
        configure(wire, "doers", share_auto_offset_reset="earliest")
        wire.produce("to-do", batch(b"a", b"b", b"c"))
        sharer = Sharer(wire, "doers", "to-do")
        sharer.beat()
        sharer.fetch(0)
        sharer.acknowledge({0: [(0, 0, [ACCEPT])]})
        described = headrace.json("groups", "describe", "doers")
        shown = headrace.run("groups", "describe", "doers")
        assert {"group": "doers", "state": "stable", "type": "share"} in headrace.json("groups", "list")
        [lag] = headrace.json("groups", "lag", "doers")
        assert (lag["topic"], lag["state"], lag["members"], lag["lag"]) == ("to-do", "stable", 1, 2)
        headrace.run("groups", "reset", "doers", "--to-latest", "--execute", status=1)
        assert "has 1 member" in headrace.err
        sharer.beat(-1)
    [member] = described["members"]
    assert (described["type"], described["protocol"], member["member"]) == ("share", "simple", sharer.member)
    assert described["config"]["share.auto.offset.reset"] == "earliest"
    assert "\n  share.auto.offset.reset=earliest\n" in shown
    assert member["partitions"] == [{"topic": "to-do", "partition": 0}]
    assert described["positions"] == [{"topic": "to-do", "partition": 0, "start_offset": 1, "lag": 2}]
    assert "total lag: 2" in shown
    assert "Nothing was changed" in headrace.run("groups", "reset", "doers", "--to-earliest")
    headrace.run("groups", "reset", "doers", "--to-earliest", "--execute")
    assert headrace.json("groups", "describe", "doers")["positions"][0]["start_offset"] == 0
    headrace.run("groups", "delete", "doers", "--yes")
    assert "doers" not in headrace.run("groups", "list")


def test_a_share_group_of_a_native_topic_is_no_group_of_redis(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "stream-tasks", "--partitions", "1", "--config", "headrace.storage=native")
    with Wire(running.kafka) as wire:
        configure(wire, "stream-crew", share_auto_offset_reset="earliest")
        wire.produce("stream-tasks", batch(b"a", b"b", b"c"))
        sharer = Sharer(wire, "stream-crew", "stream-tasks")
        sharer.beat()
        sharer.fetch(0)
        described = headrace.json("groups", "describe", "stream-crew")
        assert (described["type"], described["state"]) == ("share", "stable")
        assert [each["lag"] for each in described["positions"]] == [3]
        assert "Stop its 1 member first" in headrace.run("groups", "reset", "stream-crew", "--to-latest")
        headrace.run("groups", "reset", "stream-crew", "--to-latest", "--execute", status=1)
        sharer.beat(-1)
    headrace.run("groups", "reset", "stream-crew", "--to-latest", "--execute")
    assert headrace.json("groups", "describe", "stream-crew")["positions"][0]["lag"] == 0
