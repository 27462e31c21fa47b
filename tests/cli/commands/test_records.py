from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["produce", "t", "/nonexistent/file"], 1, "no file '/nonexistent/file'; nothing was sent"),
        (["produce", "t", "/proc/self/mem"], 1, "cannot read '/proc/self/mem': "),
        (["produce", "t", "--key", "k", "--json"], 2, "--key is for plain lines"),
        (["produce", "t", "--key", "k", "--key-separator", ":"], 2, "both name a key"),
        (["produce", "t", "--whole", "--json"], 2, "--whole takes files as they are"),
        (["produce", "t", "--header", "x"], 2, "--header x: expected NAME=VALUE"),
        (["produce", "t", "--header", "=x"], 2, "--header =x: expected NAME=VALUE"),
        (["tail", "t", "--offset", "soon"], 2, "--offset soon: expected earliest"),
        (["tail", "t", "--since", "soon"], 2, "--since: expected a duration"),
        (["tail", "t", "--since", "1h", "--offset", "1"], 2, "exclude each other"),
        (["tail", "t", "--from-beginning", "--offset", "1"], 2, "exclude each other"),
        (["tail", "t", "--format", "%q"], 2, "--format: expected one of"),
        (["tail", "t", "--format", "%k", "--json"], 2, "exclude each other"),
        (["trim", "t"], 2, "which records are to stay?"),
        (["trim", "t", "-n", "1", "--offset", "1"], 2, "--offset and -n exclude each other"),
        (["trim", "t", "-n", "1", "--partition", "7"], 4, "has partitions 0 to 1, not 7"),
        (["produce", "t", "--partition", "7"], 4, "has partitions 0 to 1, not 7"),
    ],
)
def test_what_is_not_asked_correctly_is_one_line(headrace: Any, arguments: list[str], status: int, reason: str) -> None:
    command, topic, *rest = arguments
    if "asked" not in [line["topic"] for line in headrace.json("topics", "list")]:
        headrace.run("topics", "create", topic.replace("t", "asked"))
    assert headrace.run("records", command, "asked", *rest, stdin="a\n", status=status) == ""
    assert reason in headrace.err
    assert headrace.err.count("\n") == 1


def test_trim_keeps_the_given_offsets(headrace: Any) -> None:
    headrace.run("topics", "create", "trimmed", "--partitions", "2")
    headrace.run("records", "produce", "trimmed", "--partition", "0", stdin="a\nb\nc\n")
    headrace.run("records", "produce", "trimmed", "--partition", "1", stdin="d\ne\n")
    answer = headrace.json("records", "trim", "trimmed", "-n", "1", "--partition", "0")
    assert answer["partitions"] == [{"partition": 0, "log_start_before": 0, "log_start": 2, "log_end": 3}]
    assert [line["value"] for line in headrace.records("trimmed")] == ["c", "d", "e"]
    headrace.run("records", "trim", "trimmed", "--since", "1h")
    assert [line["value"] for line in headrace.records("trimmed")] == ["c", "d", "e"]
    headrace.run("records", "trim", "trimmed", "--offset", "latest")
    assert headrace.records("trimmed") == []


def test_a_partition_that_is_named_twice_counts_once(headrace: Any) -> None:
    headrace.run("topics", "create", "named-twice", "--partitions", "2")
    headrace.run("records", "produce", "named-twice", "--partition", "0", stdin="a\nb\n")
    answer = headrace.json("records", "trim", "named-twice", "--partition", "0", "--partition", "0", "-n", "0", "--yes")
    assert [(line["partition"], line["log_start"]) for line in answer["partitions"]] == [(0, 2)]
