import zlib
from typing import Any

import pytest
from tests.cli.commands.test_groups import reader

from headrace.testing import Server


@pytest.fixture
def read(headrace: Any, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with five records of known times in the first, of which a group has read two."""
    name = f"reset-{zlib.crc32(request.node.name.encode()):x}"
    headrace.run("topics", "create", name, "--partitions", "2", "--config", "message.timestamp.type=CreateTime")
    lines = "".join(
        f'{{"value": "{number}", "timestamp": {1_700_000_000_000 + 1000 * number}}}\n' for number in range(5)
    )
    headrace.run("records", "produce", name, "--partition", "0", "--json", stdin=lines)
    headrace.run("groups", "reset", name, "--topic", f"{name}:0", "--to-offset", "2", "--execute")
    return name


def positions(headrace: Any, group: str) -> dict[int, int | None]:
    return {each["partition"]: each["position"] for each in headrace.json("groups", "describe", group)["positions"]}


@pytest.mark.parametrize(
    ("target", "to"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 5),
        (["--to-offset", "4"], 4),
        (["--to-offset", "99"], 5),
        (["--to-time", "@1700000003000"], 3),
        (["--to-time", "@1700000002001"], 3),
        (["--to-time", "2023-11-14T22:13:21Z"], 1),
        (["--to-time", "@1900000000000"], 5),
        (["--by-duration", "P9000D"], 0),
        (["--by-duration", "1s"], 5),
    ],
)
def test_it_shows_where_positions_would_go_and_then_moves_them(
    headrace: Any, read: str, target: list[str], to: int
) -> None:
    shown = headrace.run("groups", "reset", read, *target)
    assert f"Nothing was changed; --execute resets the committed offsets of {read}." in shown
    assert positions(headrace, read)[0] == 2
    answer = headrace.json("groups", "reset", read, *target, "--execute")
    assert answer == {
        "group": read,
        "executed": True,
        "positions": [{"topic": read, "partition": 0, "position": 2, "to": to, "lag": 5 - to}],
    }
    assert positions(headrace, read)[0] == to


def test_topics_and_partitions_may_be_named(headrace: Any, read: str) -> None:
    headrace.run("groups", "reset", read, "--to-earliest", "--topic", f"{read}:1", "--execute")
    assert positions(headrace, read) == {0: 2, 1: 0}
    headrace.run("groups", "reset", read, "--to-latest", "--topic", read, "--execute")
    assert positions(headrace, read) == {0: 5, 1: 0}
    headrace.run("groups", "reset", read, "--to-latest", "--topic", f"{read}:2", status=4)
    assert "has partitions 0 to 1, not 2" in headrace.err
    headrace.run("groups", "reset", read, "--to-latest", "--topic", f"{read}:x", status=2)
    headrace.run("groups", "reset", read, "--to-latest", "--topic", "nowhere", status=4)
    assert positions(headrace, read) == {0: 5, 1: 0}


def test_a_group_that_reads_is_shown_and_not_moved(headrace: Any, running: Server, read: str) -> None:
    headrace.run("topics", "create", "being-read", "--partitions", "1")
    headrace.run("records", "produce", "being-read", stdin="a\nb\n")
    with reader(running, "busy", "being-read", 1):
        assert "Stop its 1 member first." in headrace.run("groups", "reset", "busy", "--to-earliest")
        headrace.run("groups", "reset", "busy", "--to-earliest", "--execute", status=1)
        assert "has 1 member, which would continue from their own offsets: stop them first" in headrace.err
        assert positions(headrace, "busy") == {0: 1}


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ([], 2, "give one of --to-earliest"),
        (["--to-earliest", "--to-latest"], 2, "give one of --to-earliest"),
        (["--to-earliest", "--to-offset", "0"], 2, "give one of --to-earliest"),
        (["--to-time", "soon"], 2, "--to-time: expected a duration"),
        (["--by-duration", "2023-11-14"], 2, "--by-duration: expected a duration"),
        (["--to-earliest"], 4, "no group 'nobody-reset' at "),
        (["--to-offset", "first"], 2, "invalid value for '--to-offset': 'first' is not a whole number;"),
    ],
)
def test_what_is_not_asked_correctly(headrace: Any, arguments: list[str], status: int, reason: str) -> None:
    headrace.run("groups", "reset", "nobody-reset", *arguments, status=status)
    assert reason in headrace.err


@pytest.mark.parametrize("command", [["describe"], ["lag"], ["delete"], ["reset", "--to-earliest", "--topic", "any"]])
def test_an_empty_name_is_no_group(headrace: Any, command: list[str]) -> None:
    headrace.run("groups", *command, "", status=4)
    assert "no group '' at " in headrace.err


def test_a_native_topic_is_reset_too(headrace: Any) -> None:
    headrace.run("topics", "create", "native-reset", "--partitions", "1", "--config", "headrace.storage=native")
    headrace.run("records", "produce", "native-reset", stdin="a\nb\nc\n")
    headrace.run("groups", "reset", "native-group", "--to-latest", "--topic", "native-reset", "--execute")
    assert headrace.json("groups", "describe", "native-group")["positions"][0]["lag"] == 0
    assert headrace.json("groups", "reset", "native-group", "--to-earliest", "--execute")["positions"][0]["lag"] == 3
    assert headrace.json("groups", "reset", "native-group", "--to-offset", "1")["positions"][0]["lag"] is None
    assert headrace.json("groups", "reset", "native-group", "--to-latest")["positions"][0]["lag"] == 0
    assert headrace.json("groups", "describe", "native-group")["positions"][0]["lag"] == 3


def test_groups_are_deleted_with_their_positions(headrace: Any, running: Server, read: str) -> None:
    headrace.run("groups", "reset", "short-lived", "--to-latest", "--topic", read, "--execute")
    headrace.run("groups", "delete", "short-lived", "no-such", status=4)
    assert "no group 'no-such' at " in headrace.err
    assert headrace.run("groups", "delete", "short-lived") == "deleted group short-lived\n"
    headrace.run("groups", "describe", "short-lived", status=4)
    headrace.run("topics", "create", "kept-read", "--partitions", "1")
    headrace.run("records", "produce", "kept-read", stdin="a\n")
    with reader(running, "alive", "kept-read", 1):
        headrace.run("groups", "delete", "alive", status=1)
    assert "cannot delete group 'alive': it has members: stop them first" in headrace.err
