import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.harness.commands import Command, run

from headrace.testing import Server


def lagging(headrace: Any, topic: str, group: str, records: int) -> None:
    headrace.run("topics", "create", topic, "--partitions", "2")
    headrace.run("records", "produce", topic, stdin="x\n" * records)
    headrace.run("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute")


def test_each_group_has_a_line_for_each_topic(headrace: Any) -> None:
    lagging(headrace, "lag-one", "lag-group", 7)
    lagging(headrace, "lag-two", "lag-group", 3)
    line = {"group": "lag-group", "state": "empty", "members": 0}
    assert headrace.json("groups", "lag", "lag-group") == [
        line | {"topic": "lag-one", "lag": 7},
        line | {"topic": "lag-two", "lag": 3},
    ]
    assert headrace.json("groups", "lag", "lag-group", "--topic", "lag-two") == [line | {"topic": "lag-two", "lag": 3}]
    assert line | {"topic": "lag-one", "lag": 7} in headrace.json("groups", "lag")
    headrace.run("groups", "lag", "lag-gruop", status=4)
    assert "did you mean lag-group?" in headrace.err
    headrace.run("groups", "lag", "--topic", "nowhere", status=4)
    headrace.run("groups", "lag", "-n", "2", status=2)


def test_of_a_group_that_left_nothing_no_lag_is_known(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "lag-unread")
    headrace.run("records", "produce", "lag-unread", stdin="x\n" * 5)
    consumer = Consumer({"bootstrap.servers": running.kafka, "group.id": "left-nothing", "enable.auto.commit": False})
    consumer.subscribe(["lag-unread"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.close()
    line = {"group": "left-nothing", "topic": None, "state": "empty", "members": 0, "lag": None}
    assert headrace.json("groups", "lag", "left-nothing") == [line]
    assert headrace.run("groups", "lag", "left-nothing").split()[-5:] == ["left-nothing", "-", "empty", "0", "-"]


def test_watching_looks_again_until_it_is_interrupted(headrace: Any, running: Server) -> None:
    lagging(headrace, "lag-watched", "watched", 2)
    words = ("groups", "lag", "watched", "--watch", "--every", "0.2", "--json")
    with Command(running.kafka, *words) as watching:
        assert json.loads(watching.out.readline())["groups"][0]["lag"] == 2
        headrace.run("records", "produce", "lag-watched", stdin="x\n")
        while json.loads(watching.out.readline())["groups"][0]["lag"] != 3:
            pass
        watching.interrupt()
        assert watching.status() == 0


def test_watching_shows_the_change_per_second(headrace: Any) -> None:
    lagging(headrace, "lag-still", "still", 2)
    shown = headrace.run("groups", "lag", "still", "--watch", "-n", "2", "--every", "0.1")
    first, second = shown.split("group ")[1:]
    assert "per second" not in first
    assert "per second" in second.replace("  ", " ")
    assert second.splitlines()[2].split() == ["still", "lag-still", "empty", "0", "2", "0"]


@pytest.mark.long
def test_watching_outlasts_the_server(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as own:
        run(own.kafka, "topics", "create", "t")
        run(own.kafka, "groups", "reset", "g", "--topic", "t", "--to-latest", "--execute")
        with Command(own.kafka, "groups", "lag", "--watch", "--every", "0.2", "--json") as watching:
            assert json.loads(watching.out.readline())["groups"][0]["group"] == "g"
            own.stop()
            assert f"{own.kafka} no longer responds; waiting for it" in watching.err.readline()
            own.start()
            run(own.kafka, "records", "produce", "t", stdin="a\n")
            while json.loads(watching.out.readline())["groups"][0]["lag"] != 1:
                pass
            watching.interrupt()
            assert watching.status() == 0
