"""Dead letters from the command line: listed with their origins, and produced to their topics again."""

import json
import zlib
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.kafka.sharer import ACCEPT, REJECT, RELEASE, Sharer, acquired, codes, configure, values

from headrace.groups.sharing.dead_letter import Origin, headers_of
from headrace.protocol.messages import IncrementalAlterConfigsRequest
from headrace.testing import Server, server


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
        yes = ("--yes", "--origin", self.topic) if command == "redrive" else ()
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
    assert letters.run("redrive") == {"redriven": 2, "missing": 0, "skipped": 0}
    assert letters.back() == [(0, "a"), (1, "b")]
    [first, _] = letters.headrace.records(letters.topic)
    assert (first["key"], first["headers"]) == ("k", [["own", "x"]])
    assert letters.run("redrive") == {"redriven": 0, "missing": 0, "skipped": 0}
    assert letters.run("list") == []
    assert len(letters.run("list", "--all")) == 2
    letters.add(0, 11, "c")
    assert letters.run("redrive") == {"redriven": 1, "missing": 0, "skipped": 0}


def test_some_of_them(letters: Letters) -> None:
    for offset in range(0, 8, 2):
        letters.add(0, offset, str(offset))
    assert len(letters.run("list", "-n", "3")) == 3
    assert letters.run("redrive", "-n", "3") == {"redriven": 3, "missing": 0, "skipped": 0}
    assert letters.run("redrive") == {"redriven": 1, "missing": 0, "skipped": 0}
    assert [value for _, value in letters.back()] == ["0", "2", "4", "6"]


def test_an_origin_without_its_record_is_looked_up(letters: Letters) -> None:
    letters.headrace.run("records", "produce", letters.topic, "--partition", "0", stdin="x\ny\n")
    letters.add(0, 1, None)
    letters.add(0, 99, None)
    assert letters.run("redrive") == {"redriven": 1, "missing": 1, "skipped": 0}
    assert letters.back() == [(0, "x"), (0, "y"), (0, "y")]


def test_people_get_a_table(letters: Letters) -> None:
    letters.add(0, 7, "a")
    shown = letters.headrace.run("groups", "dead-letters", "list", letters.group, "--topic", letters.dlq)
    assert all(word in shown for word in (letters.topic, "7", "5", "why"))
    redrive = ("groups", "dead-letters", "redrive", letters.group, "--topic", letters.dlq, "--yes")
    letters.headrace.run(*redrive, status=4)
    assert "reads no topics" in letters.headrace.err
    assert letters.headrace.run(*redrive, "--origin", letters.topic) == "1 redriven\n"


def test_a_forged_origin_gets_no_record(running: Server, letters: Letters) -> None:
    """Who may write to the dead letter topic could write to every topic otherwise, with the operator's rights."""
    letters.add(0, 7, "forged")
    read = f"{letters.topic}-read"
    letters.headrace.run("topics", "create", read)
    with Wire(running.kafka) as wire:
        assert Sharer(wire, letters.group, read).beat().error_code == 0
    redrive = ("groups", "dead-letters", "redrive", letters.group, "--topic", letters.dlq, "--yes")
    shown = letters.headrace.run(*redrive)
    assert shown == f"0 redriven\n1 skipped: they name other topics, such as '{letters.topic}'\n"
    assert letters.back() == []


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


def test_from_a_rejection_to_another_delivery(running: Server, letters: Letters) -> None:
    """A share group rejects one record, and releases another until its limit. Both come back."""
    headrace, topic, dlq, group = letters.headrace, letters.topic, letters.dlq, letters.group
    headrace.run("topics", "alter", dlq, "--config", "errors.deadletterqueue.group.enable=true")
    with Wire(running.kafka) as wire:
        configure(
            wire,
            group,
            share_auto_offset_reset="earliest",
            share_delivery_count_limit=2,
            errors_deadletterqueue_topic_name=dlq,
        )
        headrace.run("records", "produce", topic, "--partition", "1", stdin="bad\ngood\nunlucky\n")
        sharer = Sharer(wire, group, topic)
        assert sharer.beat().error_code == 0
        assert acquired(sharer.fetch(1), 1) == [(0, 2, 1)]
        assert codes(sharer.acknowledge({1: [(0, 2, [REJECT, ACCEPT, RELEASE])]})) == {1: 0}
        assert acquired(sharer.fetch(), 1) == [(2, 2, 2)]
        assert codes(sharer.acknowledge({1: [(2, 2, [RELEASE])]})) == {1: 0}
        wait_for(lambda: len(headrace.json("groups", "dead-letters", "list", group)) == 2, "copies")
        listed = headrace.json("groups", "dead-letters", "list", group)
        assert sorted((each["value"], each["origin"]["offset"], each["origin"]["message"]) for each in listed) == [
            ("bad", 0, "rejected by a member"),
            ("unlucky", 2, "delivered 2 times without being accepted (limit 2)"),
        ]
        assert {(each["origin"]["topic"], each["origin"]["partition"], each["partition"]) for each in listed} == {
            (topic, 1, 1)
        }
        assert headrace.json("groups", "dead-letters", "redrive", group, "--yes") == {
            "redriven": 2,
            "missing": 0,
            "skipped": 0,
        }
        again = sharer.fetch(wait_ms=5_000)
        assert acquired(again, 1) == [(3, 4, 1)]
        assert values(again, 1) == [b"bad", b"unlucky"]


def test_dead_letters_of_a_native_topic_survive_a_kill(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letter topic is missing until the server was killed. Then they are copied, listed and redriven."""
    group = "workers"
    with server(num_partitions=1) as mine:
        headrace = CommandLine(mine.kafka, capsys, monkeypatch)
        headrace.run("topics", "create", "jobs", "--config", "headrace.storage=native")
        with Wire(mine.kafka) as wire:
            configure(
                wire,
                group,
                share_auto_offset_reset="earliest",
                share_delivery_count_limit=2,
                errors_deadletterqueue_topic_name="jobs.dead",
            )
            headrace.run("records", "produce", "jobs", stdin="bad\ngood\nunlucky\n")
            sharer = Sharer(wire, group, "jobs")
            assert sharer.beat().error_code == 0
            [(first, last, _)] = acquired(sharer.fetch(0, wait_ms=5_000))
            assert last == first + 2
            assert codes(sharer.acknowledge({0: [(first, last, [REJECT, ACCEPT, RELEASE])]})) == {0: 0}
            assert acquired(sharer.fetch(wait_ms=5_000)) == [(last, last, 2)]
            assert codes(sharer.acknowledge({0: [(last, last, [RELEASE])]})) == {0: 0}
        mine.kill()
        mine.start()
        headrace = CommandLine(mine.kafka, capsys, monkeypatch)
        headrace.run("topics", "create", "jobs.dead", "--config", "errors.deadletterqueue.group.enable=true")
        with Wire(mine.kafka) as wire:
            sharer = Sharer(wire, group, "jobs")
            wait_for(lambda: sharer.beat().error_code == 0, "the coordinator")
            assert acquired(sharer.fetch(0)) == []
            wait_for(lambda: len(headrace.json("groups", "dead-letters", "list", group)) == 2, "copies")
            listed = headrace.json("groups", "dead-letters", "list", group)
            assert sorted((each["value"], each["origin"]["offset"], each["origin"]["message"]) for each in listed) == [
                ("bad", first, "rejected by a member"),
                ("unlucky", last, "delivered 2 times without being accepted (limit 2)"),
            ]
            assert headrace.json("groups", "dead-letters", "redrive", group, "--yes") == {
                "redriven": 2,
                "missing": 0,
                "skipped": 0,
            }
            found: list[bytes] = []
            while len(found) < 2:
                answer = sharer.fetch(wait_ms=5_000)
                found += values(answer)
                assert {count for _, _, count in acquired(answer)} == {1}
            assert found == [b"bad", b"unlucky"]
