"""Dead letters from the command line: listed with their origins, and produced to their topics again."""

import json
import zlib
from typing import Any

import pytest
from tests.harness.wire import Wire

from headrace.groups.sharing.dead_letter import Origin, headers_of
from headrace.protocol.messages import IncrementalAlterConfigsRequest
from headrace.testing import Server


class Letters:
    """A topic of two partitions, and dead letters of two groups in another one."""

    def __init__(self, headrace: Any, name: str) -> None:
        self.headrace = headrace
        self.topic, self.dlq, self.group = name, f"dlq.{name}", f"{name}-group"
        for topic in (self.topic, self.dlq):
            headrace.run("topics", "create", topic, "--partitions", "2")

    def add(self, partition: int, offset: int, value: str | None, group: str | None = None, count: int = 5) -> None:
        origin = Origin(self.topic, partition, offset, group or self.group, count, "why")
        own = (("own", b"x"),) if value is not None else ()
        headers = [[name, (text or b"").decode()] for name, text in headers_of(origin, own)]
        record = {"key": None if value is None else "k", "value": value, "headers": headers}
        where = ("--partition", str(offset % 2))
        self.headrace.run("records", "produce", self.dlq, "--json", *where, stdin=json.dumps(record) + "\n")

    def run(self, command: str, *arguments: str) -> Any:
        yes = ("--yes",) if command == "redrive" else ()
        return self.headrace.json("groups", "dead-letters", command, self.group, "--topic", self.dlq, *arguments, *yes)

    def back(self) -> list[tuple[int, str | None]]:
        return [(each["partition"], each["value"]) for each in self.headrace.records(self.topic)]


@pytest.fixture
def letters(headrace: Any, request: pytest.FixtureRequest) -> Letters:
    return Letters(headrace, f"dead-{zlib.crc32(request.node.name.encode()):x}")


def test_they_are_listed_and_redriven_once(letters: Letters) -> None:
    letters.add(0, 7, "a")
    letters.add(1, 8, "b")
    letters.add(1, 9, "not ours", group="another")
    listed = letters.run("list")
    assert sorted((each["origin"]["partition"], each["origin"]["offset"], each["value"]) for each in listed) == [
        (0, 7, "a"),
        (1, 8, "b"),
    ]
    assert letters.run("redrive") == {"redriven": 2, "missing": 0}
    assert letters.back() == [(0, "a"), (1, "b")]
    [first, _] = letters.headrace.records(letters.topic)
    assert (first["key"], first["headers"]) == ("k", [["own", "x"]])
    assert letters.run("redrive") == {"redriven": 0, "missing": 0}
    assert letters.run("list") == []
    assert len(letters.run("list", "--all")) == 2
    letters.add(0, 11, "c")
    assert letters.run("redrive") == {"redriven": 1, "missing": 0}


def test_some_of_them(letters: Letters) -> None:
    for offset in range(0, 8, 2):
        letters.add(0, offset, str(offset))
    assert len(letters.run("list", "-n", "3")) == 3
    assert letters.run("redrive", "-n", "3") == {"redriven": 3, "missing": 0}
    assert letters.run("redrive") == {"redriven": 1, "missing": 0}
    assert [value for _, value in letters.back()] == ["0", "2", "4", "6"]


def test_an_origin_without_its_record_is_looked_up(letters: Letters) -> None:
    letters.headrace.run("records", "produce", letters.topic, "--partition", "0", stdin="x\ny\n")
    letters.add(0, 1, None)
    letters.add(0, 99, None)
    assert letters.run("redrive") == {"redriven": 1, "missing": 1}
    assert letters.back() == [(0, "x"), (0, "y"), (0, "y")]


def test_people_get_a_table(letters: Letters) -> None:
    letters.add(0, 7, "a")
    shown = letters.headrace.run("groups", "dead-letters", "list", letters.group, "--topic", letters.dlq)
    assert all(word in shown for word in (letters.topic, "7", "5", "why"))
    shown = letters.headrace.run("groups", "dead-letters", "redrive", letters.group, "--topic", letters.dlq, "--yes")
    assert shown == "1 redriven\n"


def test_the_topic_is_that_of_the_groups_configuration(running: Server, letters: Letters) -> None:
    letters.headrace.run("groups", "dead-letters", "list", letters.group, status=4)
    assert "has no dead letter topic" in letters.headrace.err
    with Wire(running.kafka) as wire:
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="errors.deadletterqueue.topic.name", config_operation=0, value=letters.dlq
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=32, resource_name=letters.group, configs=[config]
        )
        answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
        assert answer.responses[0].error_code == 0
    letters.add(0, 7, "a")
    assert len(letters.headrace.json("groups", "dead-letters", "list", letters.group)) == 1
