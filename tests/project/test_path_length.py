"""A Produce and a Fetch pass through few files, from the bytes of the request to the bytes of the response.

The test counts the modules whose functions run in the thread of a server for most of several equal requests. Background
tasks run during some of them. Functions in C have no frame, and are not counted.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.harness.wire import Wire, batch

import headrace
from headrace.protocol import produce
from headrace.testing import InProcessServer

pytestmark = pytest.mark.skipif(not hasattr(produce, "_produce"), reason="no C extension here")

ROOT = Path(headrace.__file__).parent
TIMES, MOST_TIMES = 8, 64
"""Requests of a measurement, and of one that is repeated since the machine was busy."""
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
    "kafka.server.in_flight_requests",
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

PRODUCE = ARRIVES | {"kafka.single_batch"} | PARTITION | APPENDED | LEAVES
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


def passed(server: InProcessServer, ask: Callable[[], object], expected: set[str]) -> list[str]:
    """Return the modules, without `headrace.`, that most of several equal requests pass through in the server.

    On a busy machine, other work comes between the first and the last byte of a request. Then, more requests follow
    until the modules are those `expected`.
    """
    loop = server._loop  # noqa: SLF001  # the profile is set in its thread
    assert loop is not None
    counts: Counter[str] = Counter()
    for times in range(1, MOST_TIMES + 1):
        profile = Profile()
        turn(loop, profile)
        try:
            ask()
        finally:
            turn(loop, None)
        counts.update(profile.files)
        found = sorted(_names(each for each, count in counts.items() if count * 2 > times))
        if times >= TIMES and found == sorted(expected):
            break
    return found


def _names(files: Iterable[str]) -> set[str]:
    paths = map(Path, files)
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
    expected = PRODUCE | JOURNALED
    assert passed(server, lambda: wire.produce("t", batch(b"x")), expected) == sorted(expected)
    assert len(expected) <= TARGET


def test_a_produce_that_waits_for_redis_passes_through_few_more(server: InProcessServer, wire: Wire) -> None:
    expected = PRODUCE | SENT
    assert passed(server, lambda: wire.produce("large", batch(bytes(LARGE))), expected) == sorted(expected)


def test_a_fetch_passes_through_few_files(server: InProcessServer, wire: Wire) -> None:
    assert passed(server, lambda: wire.fetch("t", 0, partition_max_bytes=1), FETCH) == sorted(FETCH)
    assert len(FETCH) <= TARGET
