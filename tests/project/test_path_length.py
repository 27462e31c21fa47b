"""A Produce and a Fetch pass through few files, from the bytes of the request to the bytes of the response.

Counted are the modules whose functions run in the thread of a server, in every one of several equal requests: what runs
in the background comes in some of them only. What is written in C has no frame, and is not counted.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.harness.wire import Wire, batch

import headrace
from headrace.protocol import produce
from headrace.testing import InProcessServer

pytestmark = pytest.mark.skipif(not hasattr(produce, "_produce"), reason="no C extension here")

ROOT = Path(headrace.__file__).parent
TIMES = 8
FIRST, LAST = "Framing.get_buffer", "Answers.leave"
"""The functions that a request begins with, and its response ends with."""
TARGET = 20
LARGE = 100_000
"""Bytes of a batch that waits for Redis: the journal takes none of these."""

ARRIVES = {
    "broker.runtime.scheduler",
    "kafka.server.connection",
    "kafka.server.frames",
    "kafka.server.memory_pool",
    "kafka.server.request_scheduler",
}
LEAVES = {"kafka.server.response_queue"}
DECODED = {"kafka.server.request_context", "protocol.headers", "protocol.message"}
PARTITION = {
    "broker.fetch",
    "broker.partition.cache",
    "broker.partition.leader",
    "broker.partition.reader",
    "broker.runtime.clock",
    "broker.topics.known",
    "broker.topics.live",
}
APPENDED = {"storage.free_space", "storage.logs.append", "topics.append", "topics.validator"}
JOURNALED = {"storage.journal.acks", "storage.journal.journal"}
SENT = {
    "aio.tasks",
    "metrics.counters",
    "storage.journal.acks",
    "storage.logs.leader_log",
    "storage.redis.connection",
    "storage.redis.protocol",
    "storage.valkey.aof",
}

PRODUCE = ARRIVES | {"kafka.produce_response"} | PARTITION | APPENDED | LEAVES
FETCH = (
    ARRIVES
    | DECODED
    | {"kafka.apis.fetch", "kafka.errors", "broker.partition.source", "broker.runtime.budget"}
    | PARTITION
    | LEAVES
)


class Profile:
    """The files of the functions that run from the first byte of a request to the last of its response."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._counts = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call":
            self._counts = self._counts or code.co_qualname == FIRST
            if self._counts:
                self.files.add(code.co_filename)
        elif event == "return" and code.co_qualname == LAST:
            self._counts = False


def passed(server: InProcessServer, ask: Callable[[], object]) -> set[str]:
    """The modules, without `headrace.`, that every one of several equal requests passes through in the server."""
    loop = server._loop  # noqa: SLF001  # what runs in its thread is looked at from there
    assert loop is not None
    found: list[set[str]] = []
    for _ in range(TIMES):
        profile = Profile()
        turn(loop, profile)
        try:
            ask()
        finally:
            turn(loop, None)
        found.append(profile.files)
    paths = (Path(each) for each in set.intersection(*found))
    names = {".".join(each.relative_to(ROOT).with_suffix("").parts) for each in paths if each.is_relative_to(ROOT)}
    # The clock of the test stands in front of the server's.
    return names - {"testing.clock"}


def turn(loop: asyncio.AbstractEventLoop, profile: Profile | None) -> None:
    """Have the thread of a loop be profiled from now on, or no longer."""
    turned = threading.Event()

    def now() -> None:
        sys.setprofile(profile)
        turned.set()

    loop.call_soon_threadsafe(now)
    assert turned.wait(30)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer() as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: InProcessServer) -> Iterator[Wire]:
    """A client whose topics have been written to and read from: what is done once is done."""
    with Wire(server.kafka) as client:
        for topic in ("t", "large"):
            client.create(topic)
            client.produce(topic, batch(b"x"))
            client.fetch(topic, 0)
        yield client


def test_a_produce_passes_through_few_files(server: InProcessServer, wire: Wire) -> None:
    files = passed(server, lambda: wire.produce("t", batch(b"x")))
    assert sorted(files) == sorted(PRODUCE | JOURNALED)
    assert len(files) <= TARGET


def test_a_produce_that_waits_for_redis_passes_through_few_more(server: InProcessServer, wire: Wire) -> None:
    files = passed(server, lambda: wire.produce("large", batch(bytes(LARGE))))
    assert sorted(files) == sorted(PRODUCE | SENT)


def test_a_fetch_passes_through_few_files(server: InProcessServer, wire: Wire) -> None:
    files = passed(server, lambda: wire.fetch("t", 0, partition_max_bytes=1))
    assert sorted(files) == sorted(FETCH)
    assert len(files) <= TARGET
