from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer

from headrace.testing import Server


@contextmanager
def reader(running: Server, group: str, topic: str, count: int) -> Iterator[None]:
    """A member of `group` that has read and committed `count` records of `topic`."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.kafka,
            "group.id": group,
            "client.id": "a-reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        read = consumer.consume(count, timeout=60)
        assert len(read) == count
        consumer.commit(message=read[-1], asynchronous=False)
        yield
    finally:
        consumer.close()


def test_a_group_shows_members_positions_and_lag(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "billed", "--partitions", "1")
    headrace.run("records", "produce", "billed", stdin="".join(f"{number}\n" for number in range(10)))
    with reader(running, "billing", "billed", 4):
        assert {"group": "billing", "state": "stable", "type": "classic"} in headrace.json("groups", "list")
        described = headrace.json("groups", "describe", "billing")
        shown = headrace.run("groups", "describe", "billing")
    (member,) = described["members"]
    assert (member["client"], member["host"]) == ("a-reader", "127.0.0.1")
    assert member["partitions"] == [{"topic": "billed", "partition": 0}]
    assert described["state"] == "stable"
    [position] = described["positions"]
    assert 0 < position.pop("seconds_behind") < 60
    assert position == {
        "topic": "billed", "partition": 0, "position": 4, "log_end": 10, "lag": 6, "member": member["member"],
    }  # fmt: skip
    assert "total lag: 6" in shown
    assert "a-reader" in shown


def test_an_empty_group_keeps_its_positions(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "left", "--partitions", "1")
    headrace.run("records", "produce", "left", stdin="a\nb\n")
    with reader(running, "leaving", "left", 2):
        pass
    described = headrace.json("groups", "describe", "leaving")
    assert (described["state"], described["members"]) == ("empty", [])
    assert described["positions"] == [
        {
            "topic": "left",
            "partition": 0,
            "position": 2,
            "log_end": 2,
            "lag": 0,
            "seconds_behind": 0,
            "member": None,
        }
    ]
    assert "leaving" in headrace.run("groups", "list")


def test_positions_of_a_deleted_topic_do_not_stand_in_the_way(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "gone", "--partitions", "1")
    headrace.run("records", "produce", "gone", stdin="a\n")
    with reader(running, "mourning", "gone", 1):
        pass
    headrace.run("topics", "delete", "gone")
    headrace.run("groups", "list")


def test_a_group_that_is_not_there_is_named(headrace: Any) -> None:
    headrace.run("groups", "describe", "nobody", status=4)
    assert "no group 'nobody' at " in headrace.err


def test_without_a_commit_the_lag_counts_from_the_log_start(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "unread", "--partitions", "2")
    headrace.run("records", "produce", "unread", "--partition", "0", stdin="a\nb\nc\n")
    headrace.run("records", "produce", "unread", "--partition", "1", stdin="d\ne\n")
    headrace.run("records", "trim", "unread", "--offset", "1", "--partition", "0")
    consumer = Consumer({"bootstrap.servers": running.kafka, "group.id": "new-here", "enable.auto.commit": False})
    consumer.subscribe(["unread"])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        described = headrace.json("groups", "describe", "new-here")
        shown = headrace.run("groups", "describe", "new-here")
    finally:
        consumer.close()
    assert [(each["position"], each["log_end"], each["lag"]) for each in described["positions"]] == [
        (None, 3, 2),
        (None, 2, 2),
    ]
    assert "total lag: 4" in shown


def test_a_partition_without_a_commit_counts_too(headrace: Any) -> None:
    headrace.run("topics", "create", "half-read", "--partitions", "2")
    headrace.run("records", "produce", "half-read", "--partition", "1", stdin="d\ne\n")
    headrace.run("groups", "reset", "half", "--topic", "half-read:0", "--to-latest", "--execute")
    described = headrace.json("groups", "describe", "half")
    assert [(each["position"], each["lag"]) for each in described["positions"]] == [(0, 0), (None, 2)]


def test_a_position_that_retention_has_overtaken_counts_what_is_left(headrace: Any) -> None:
    headrace.run("topics", "create", "overtaken", "--partitions", "1")
    headrace.run("records", "produce", "overtaken", stdin="a\nb\nc\n")
    headrace.run("groups", "reset", "overtaken-reader", "--topic", "overtaken", "--to-earliest", "--execute")
    headrace.run("records", "trim", "overtaken", "-n", "1")
    (standing,) = headrace.json("groups", "describe", "overtaken-reader")["positions"]
    assert (standing["position"], standing["lag"]) == (0, 1)
