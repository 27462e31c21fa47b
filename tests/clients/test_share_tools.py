"""Kafka's tools and its Java client for share groups (KIP-932)."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, ShareConsumer
from tests.harness.apache_kafka import tool
from tests.harness.wire import Wire
from tests.kafka.sharer import configure

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
SHARES = "consumer.group.ShareGroupCommand"


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


def rows(text: str) -> list[dict[str, str]]:
    """The rows that a tool prints, by the columns of its header."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def test_kafka_share_groups_and_the_console_consumer(running: Server) -> None:
    with Wire(running.kafka) as wire:
        wire.create("jobs", 2)
        configure(wire, "workers", share_auto_offset_reset="earliest")
    producer = Producer({"bootstrap.servers": running.kafka})
    for partition in (0, 1):
        for number in range(10):
            producer.produce("jobs", b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    member = ShareConsumer({"bootstrap.servers": running.kafka, "group.id": "workers"})
    member.subscribe(["jobs"])
    got, deadline = 0, time.monotonic() + 30
    while got < 20 and time.monotonic() < deadline:
        got += len(member.poll(0.5) or ())
    member.commit_sync(10)
    here = ("--bootstrap-server", running.kafka)
    group = (*here, "--group", "workers")
    assert tool(SHARES, *here, "--list").split() == ["workers"]
    (state,) = rows(tool(SHARES, *group, "--describe", "--state").replace("COORDINATOR (ID)", "COORDINATOR ID"))
    assert state["GROUP"] == "workers"
    assert "Stable" in state.values()
    (only,) = rows(tool(SHARES, *group, "--describe", "--members"))
    assert only["#PARTITIONS"] == "2"
    described = rows(tool(SHARES, *group, "--describe"))
    assert {row["PARTITION"]: (row["START-OFFSET"], row["LAG"]) for row in described} == {
        "0": ("10", "0"),
        "1": ("10", "0"),
    }
    member.close()
    tool(SHARES, *group, "--reset-offsets", "--topic", "jobs", "--to-earliest", "--execute")
    described = rows(tool(SHARES, *group, "--describe"))
    assert {row["START-OFFSET"] for row in described} == {"0"}
    read = tool("consumer.ConsoleShareConsumer", *group, "--topic", "jobs", "--max-messages", "20")
    assert Counter(read.split()) == Counter(str(number) for number in range(10) for _ in (0, 1))
    assert "Successful" in tool(SHARES, *group, "--delete-offsets", "--topic", "jobs")
    tool(SHARES, *group, "--delete")
    assert tool(SHARES, *here, "--list").split() == []
