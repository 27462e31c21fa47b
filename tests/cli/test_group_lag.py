import json
import time
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


def without_ages(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds_behind"} for line in answer]


def test_each_group_has_a_line_for_each_topic(headrace: Any) -> None:
    lagging(headrace, "lag-one", "lag-group", 7)
    lagging(headrace, "lag-two", "lag-group", 3)
    line = {"group": "lag-group", "state": "empty", "members": 0}
    assert without_ages(headrace.json("groups", "lag", "lag-group")) == [
        line | {"topic": "lag-one", "lag": 7},
        line | {"topic": "lag-two", "lag": 3},
    ]
    of_two = without_ages(headrace.json("groups", "lag", "lag-group", "--topic", "lag-two"))
    assert of_two == [line | {"topic": "lag-two", "lag": 3}]
    assert line | {"topic": "lag-one", "lag": 7} in without_ages(headrace.json("groups", "lag"))
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
    assert without_ages(headrace.json("groups", "lag", "left-nothing")) == [line]
    assert headrace.run("groups", "lag", "left-nothing").split()[-6:] == ["left-nothing", "-", "empty", "0", "-", "-"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("kind", ["log", "native"])
def test_a_group_is_as_far_behind_as_its_next_record_is_old(headrace: Any, codec: str, kind: str) -> None:
    topic, group, now_ms = f"old-{kind}-{codec}", f"reads-{kind}-{codec}", round(time.time() * 1000)
    headrace.run("topics", "create", topic, "--partitions", "1", "--config", f"headrace.storage={kind}")
    ages = (5_000, 3_000, 1_000)
    lines = "\n".join(json.dumps({"value": "x", "timestamp": now_ms - age * 1_000}) for age in ages)
    headrace.run("records", "produce", topic, "--json", "--compression", codec, stdin=lines)
    offsets = [line["offset"] for line in headrace.records(topic)]
    for offset, age in (*zip(offsets, ages, strict=True), (offsets[-1] + 1, 0)):
        headrace.run("groups", "reset", group, "--topic", topic, "--to-offset", str(offset), "--execute")
        [line] = headrace.json("groups", "lag", group)
        assert age <= line["seconds_behind"] < age + 60
        assert age or line["seconds_behind"] == 0
        [position] = headrace.json("groups", "describe", group)["positions"]
        assert age <= position["seconds_behind"] < age + 60
        shown = headrace.run("groups", "lag", group).splitlines()[2].split()
        assert age <= int(shown[-1]) < age + 60


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
    assert second.splitlines()[2].split()[:5] == ["still", "lag-still", "empty", "0", "2"]
    assert second.splitlines()[2].split()[-1] == "0"


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
