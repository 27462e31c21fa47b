"""Java's share consumer on a native topic, next to a Redis program."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.harness.apache_kafka import java_command
from tests.harness.wire import Wire
from tests.kafka.sharer import configure

from headrace.testing import Server

DAY_MS = 86_400_000
_PATIENCE_S = 120


@pytest.fixture
def link(running: Server) -> Iterator[Any]:
    """A Redis program."""
    with redis.Redis.from_url(running.storage, decode_responses=True) as client:
        yield client


@pytest.mark.maven
def test_java_reads_entries_days_apart_with_little_memory(running: Server, wire: Wire, topic: str, link: Any) -> None:
    """It makes an object for each offset of a range, and a day has 88 billion offsets."""
    wire.create(topic, headrace_storage="native", retention_ms=-1)
    configure(wire, topic, share_auto_offset_reset="earliest")
    stream = f"headrace:{topic}:0"
    for day in range(3):
        link.xadd(stream, {"value": f"day {day}"}, id=f"{1 + day * DAY_MS}-0")
    link.xgroup_create(stream, topic, "0")
    [[_, [[entry, _]]]] = link.xreadgroup(topic, "program", {stream: ">"}, count=1)
    command = java_command(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *("--bootstrap-server", running.kafka, "--topic", topic, "--group", topic, "--max-messages", "2"),
        heap_mib=64,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["day 1", "day 2"]), done.stderr
    assert [each["message_id"] for each in link.xpending_range(stream, topic, "-", "+", 10)] == [entry]
    assert link.xack(stream, topic, entry) == 1
