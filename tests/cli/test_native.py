"""Native topics from the command line: created, adopted, described, with a lag that means something."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headrace.testing import Server
from headrace.testing.member import Member


@pytest.fixture
def link(running: Server) -> Iterator[Any]:
    """A Redis program."""
    with redis.Redis.from_url(running.storage, decode_responses=True) as client:
        yield client


def test_a_native_topic_is_created_filled_and_described(headrace: Any, link: Any) -> None:
    headrace.run("topics", "create", "sensors", "--partitions", "2", "--config", "headrace.storage=native")
    headrace.run("records", "produce", "sensors", "--partition", "0", stdin="a\nb\n")
    link.xadd("headrace:sensors:1", {"temperature": "21", "room": "kitchen"})
    described = headrace.json("topics", "describe", "sensors")
    assert described["config"]["headrace.storage"] == "native"
    assert "headrace.native" not in described["config"]
    assert [(part["stream"], part["records"]) for part in described["partitions"]] == [
        ("headrace:sensors:0", 2),
        ("headrace:sensors:1", 1),
    ]
    assert "headrace:sensors:1" in headrace.run("topics", "describe", "sensors")
    assert {"topic": "sensors", "partitions": 2, "records": 3} in headrace.json("topics", "list")
    values = [record["value"] for record in headrace.records("sensors")]
    assert values[:2] == ["a", "b"]
    assert len(values) == 3


def test_a_stream_that_is_there_is_adopted_untouched(headrace: Any, link: Any) -> None:
    for number in range(3):
        link.xadd("old,stream", {"value": f"v{number}"}, id=f"{1_000 + number}-0")
    link.xgroup_create("old,stream", "workers", "0-0")
    before = link.xinfo_stream("old,stream", full=True)
    told = headrace.run("topics", "adopt", "--stream", "old,stream", "--topic", "adopted")
    assert told == "stream old,stream is partition 0 of topic adopted\n"
    assert link.xinfo_stream("old,stream", full=True) == before
    described = headrace.json("topics", "describe", "adopted")
    assert described["config"]["retention.ms"] == "-1", "nothing is trimmed of what was there before"
    assert [part["stream"] for part in described["partitions"]] == ["old,stream"]
    assert [record["value"] for record in headrace.records("adopted")] == ["v0", "v1", "v2"]
    assert [record["offset"] for record in headrace.records("adopted")] == [1000 << 10, 1001 << 10, 1002 << 10]

    link.xadd("second", {"value": "x"})
    headrace.run("topics", "adopt", "--stream", "second", "--topic", "adopted", "--partition", "1")
    assert [part["stream"] for part in headrace.json("topics", "describe", "adopted")["partitions"]] == [
        "old,stream",
        "second",
    ]
    headrace.run("topics", "delete", "adopted")
    assert link.xlen("old,stream") == 3
    assert link.xlen("second") == 1


def test_an_empty_partition_takes_over_a_stream(headrace: Any, link: Any) -> None:
    headrace.run("topics", "create", "replaced", "--partitions", "2", "--config", "headrace.storage=native")
    link.xadd("taken", {"value": "x"})
    headrace.run("topics", "adopt", "--stream", "taken", "--topic", "replaced", "--partition", "1")
    assert [part["stream"] for part in headrace.json("topics", "describe", "replaced")["partitions"]] == [
        "headrace:replaced:0",
        "taken",
    ]
    link.xadd("other", {"value": "x"})
    headrace.run("topics", "adopt", "--stream", "other", "--topic", "replaced", "--partition", "1", status=1)
    assert "records of its own" in headrace.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--stream", "no-such-key", "--topic", "wrong"), "not there"),
        (("--stream", "a-string", "--topic", "wrong"), "a string"),
        (("--stream", "a-stream", "--topic", "wrong", "--partition", "4"), "the next one is 0"),
        (("--stream", "a-stream", "--topic", "plain-log"), "no native topic"),
        (("--stream", "headrace:taken-native:0", "--topic", "wrong"), "already"),
        (("--stream", "headrace:plain-log:0", "--topic", "wrong"), "already"),
    ],
)
def test_what_cannot_be_adopted(headrace: Any, link: Any, arguments: tuple[str, ...], reason: str) -> None:
    link.set("a-string", "x")
    link.delete("a-stream")
    link.xadd("a-stream", {"value": "x"})
    if "plain-log" not in [line["topic"] for line in headrace.json("topics", "list")]:
        headrace.run("topics", "create", "plain-log")
        headrace.run("topics", "create", "taken-native", "--config", "headrace.storage=native")
    headrace.run("topics", "adopt", *arguments, status=1)
    assert reason in headrace.err
    assert "wrong" not in [line["topic"] for line in headrace.json("topics", "list")]


def test_lag_counts_records_and_not_offsets(headrace: Any, running: Server, link: Any) -> None:
    headrace.run("topics", "create", "lagging", "--partitions", "1", "--config", "headrace.storage=native")
    offsets = []
    for number in range(10):
        link.xadd("headrace:lagging:0", {"value": "x" * 500}, id=f"{1_000 + 50 * number}-0")
        offsets.append((1_000 + 50 * number) << 10)

    def lag() -> tuple[int, int, int]:
        [line] = headrace.json("groups", "describe", "slow")["positions"]
        return line["position"], line["lag"], line["pending"]

    with Member(running.kafka, "slow", "lagging") as reader:
        reader.join()
        got = reader.read(0, partition_max_bytes=1_200)
        assert reader.commit(got[0].offset + 1) == 0
        assert lag()[:2] == (got[0].offset + 1, 9)
        assert lag()[2] >= 1
        assert "pending" in headrace.run("groups", "describe", "slow")
        assert reader.commit(offsets[6]) == 0
        assert lag()[:2] == (offsets[6], 4)
        assert reader.commit(offsets[9] + 1) == 0
        assert lag() == (offsets[9] + 1, 0, 0)
