"""Native topics from the command line: created, adopted, described, with a lag that means something."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from confluent_kafka import Producer
from tests.harness.member import Member, commit, position
from tests.harness.wire import Wire

from headrace.storage.layout.native import id_of
from headrace.testing import Server


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
        (("--stream", "headrace:taken-native:0", "--topic", "wrong"), "are Headrace's own"),
        (("--stream", "headrace:plain-log:0", "--topic", "wrong"), "are Headrace's own"),
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


def test_a_topic_moves_there_and_back(headrace: Any, running: Server, link: Any) -> None:
    headrace.run("topics", "create", "moving", "--partitions", "2", "--config", "max.message.bytes=2000000")
    for partition in range(2):
        lines = "".join(f"k{n}:v{partition}-{n}\n" for n in range(500))
        headrace.run("records", "produce", "moving", "--key-separator", ":", "--partition", str(partition), stdin=lines)
    before = [(record["partition"], record["key"], record["value"]) for record in headrace.records("moving")]
    assert len(before) == 1_000
    with Wire(running.kafka) as wire:
        assert commit(wire, "reader", "moving", 123, note="here") == 0
        assert commit(wire, "reader", "moving", 500, 1) == 0

    told = headrace.run("topics", "convert", "moving", "--to", "native")
    assert "offsets have changed" in told
    described = headrace.json("topics", "describe", "moving")
    assert described["config"]["headrace.storage"] == "native"
    assert described["config"]["max.message.bytes"] == "2000000"
    assert [part["records"] for part in described["partitions"]] == [500, 500]
    assert [(r["partition"], r["key"], r["value"]) for r in headrace.records("moving")] == before
    stream = described["partitions"][0]["stream"]
    assert link.xlen(stream) == 500
    assert link.exists("headrace:moving:0", "{headrace:moving:0}:state") == 0, "nothing is left behind"
    with Wire(running.kafka) as wire:
        offset, note = position(wire, "reader", "moving")
        assert note == "here"
        assert link.xrange(stream, count=1, min=id_of(offset))[0][1]["value"] == "v0-123"
    assert [line["lag"] for line in headrace.json("groups", "describe", "reader")["positions"]] == [377, 0]
    headrace.run("records", "produce", "moving", "--partition", "0", stdin="new\n")

    headrace.run("topics", "convert", "moving", "--to", "log")
    after = [(r["partition"], r["offset"], r["value"]) for r in headrace.records("moving")]
    assert [(part, value) for part, _, value in after if value != "new"] == [(part, value) for part, _, value in before]
    assert [offset for part, offset, _ in after if part == 0] == list(range(501))
    with Wire(running.kafka) as wire:
        assert position(wire, "reader", "moving") == (123, "here")
        assert position(wire, "reader", "moving", 1)[0] == 500
    assert link.exists(stream) == 0
    headrace.run("topics", "delete", "moving")


def test_what_cannot_be_converted(headrace: Any, running: Server) -> None:
    headrace.run("topics", "convert", "no-such-topic", "--to", "log", status=4)
    assert "no-such-topic" in headrace.err
    headrace.run("topics", "create", "busy", "--partitions", "1")
    headrace.run("topics", "convert", "busy", "--to", "log", status=1)
    assert "already" in headrace.err
    headrace.run("records", "produce", "busy", stdin="a\n")
    with Member(running.kafka, "busy-group", "busy") as reader:
        reader.join()
        reader.commit(1)
        headrace.run("topics", "convert", "busy", "--to", "native", status=1)
        assert "stop its consumers" in headrace.err
        assert reader.commit(0) == 0
        reader.leave()
    headrace.run("topics", "convert", "busy", "--to", "native")


def test_members_that_have_committed_nothing_yet_are_in_the_way_as_well(headrace: Any, running: Server) -> None:
    """They would go on at numbers of the log that is gone."""
    headrace.run("topics", "create", "awaited", "--partitions", "1")
    with Member(running.kafka, "awaiting", "awaited") as reader:
        reader.join()
        headrace.run("topics", "convert", "awaited", "--to", "native", status=1)
        assert "group 'awaiting' reads topic 'awaited': stop its consumers first" in headrace.err
        reader.leave()
    headrace.run("topics", "convert", "awaited", "--to", "native")


def test_groups_that_only_redis_programs_are_in_come_along(headrace: Any, link: Any) -> None:
    headrace.run("topics", "create", "only-redis", "--partitions", "1", "--config", "headrace.storage=native")
    for number in range(5):
        link.xadd("headrace:only-redis:0", {"value": "x"}, id=f"{1_000 + number}-0")
    link.xgroup_create("headrace:only-redis:0", "only-programs", "0-0")
    link.xreadgroup("only-programs", "one", {"headrace:only-redis:0": ">"}, count=3)
    link.xack("headrace:only-redis:0", "only-programs", "1000-0", "1001-0")
    headrace.run("topics", "convert", "only-redis", "--to", "log")
    [line] = headrace.json("groups", "describe", "only-programs")["positions"]
    assert (line["position"], line["lag"]) == (2, 3), "the third was delivered, and not acknowledged"


def test_producers_go_on_while_a_topic_moves(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "flowing", "--partitions", "1")
    stop = threading.Event()
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": running.kafka, "enable.idempotence": True, "linger.ms": 1})

    def report(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    def produce() -> None:
        number = 0
        while not stop.is_set():
            producer.produce("flowing", b"%d" % number, on_delivery=report)
            number += 1
            producer.poll(0.001)
        sent.append(number)

    sent: list[int] = []
    writer = threading.Thread(target=produce)
    writer.start()
    try:
        for storage in ("native", "log", "native"):
            headrace.run("topics", "convert", "flowing", "--to", storage)
    finally:
        stop.set()
        writer.join()
    assert producer.flush(60) == 0
    assert failed == []
    assert [record["value"] for record in headrace.records("flowing")] == [str(number) for number in range(sent[0])]


def test_the_group_of_a_redis_program_is_described_as_well(headrace: Any, link: Any) -> None:
    headrace.run("topics", "create", "programs", "--partitions", "1", "--config", "headrace.storage=native")
    for number in range(5):
        link.xadd("headrace:programs:0", {"value": "x"}, id=f"{1_000 + number}-0")
    link.xgroup_create("headrace:programs:0", "workers", "0-0")
    link.xreadgroup("workers", "one", {"headrace:programs:0": ">"}, count=2)
    assert headrace.run("groups", "describe", "workers").startswith("group workers  known to Redis only  protocol -\n")
    [line] = headrace.json("groups", "describe", "workers")["positions"]
    assert (line["position"], line["lag"], line["pending"]) == (1_000 << 10, 5, 2)
    link.xack("headrace:programs:0", "workers", "1000-0", "1001-0")
    [line] = headrace.json("groups", "describe", "workers")["positions"]
    assert (line["position"], line["lag"], line["pending"]) == ((1_001 << 10) + 1, 3, 0)


def test_a_tail_ends_where_the_last_entries_were_deleted(headrace: Any, link: Any) -> None:
    headrace.run("topics", "create", "shortened", "--config", "headrace.storage=native")
    for number in range(4):
        link.xadd("headrace:shortened:0", {"value": f"v{number}"}, id=f"{1_000 + number}-0")
    link.xdel("headrace:shortened:0", "1002-0", "1003-0")
    assert [record["value"] for record in headrace.records("shortened")] == ["v0", "v1"]


def test_internal_topics_are_listed_when_asked_for(headrace: Any) -> None:
    listed = {each["topic"] for each in headrace.json("topics", "list")}
    everything = {each["topic"] for each in headrace.json("topics", "list", "--internal")}
    assert everything - listed == {"__consumer_offsets"}
