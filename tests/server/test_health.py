"""A server that accepts no records shows it: probes, every page of the console, metrics, and answers to producers."""

import asyncio
import http.client
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from structlog.testing import capture_logs
from tests.console.visiting import ask
from tests.harness.exposition import read as samples_of
from tests.harness.redis import RedisServer, valkey_program
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.metrics.counters import StoreCounters
from headrace.server.health import HealthCheck
from headrace.storage import free_space
from headrace.storage.redis.connection import Readiness
from headrace.testing import InProcessServer, Server, server
from headrace.testing.clock import ManualClock
from headrace.topics.errors import TopicError

PAGES = ("/", "/topics", "/topics/orders", "/topics/orders/records", "/groups", "/pipeline", "/brokers", "/topics/none")
INCOMING = ("topic_records_in_total", "topic_bytes_in_total")
MEMORY = "Redis accepts no writes: its memory is full (OOM); raise its maxmemory"
FILE = "Redis accepts no writes: it cannot write its own files (MISCONF); free space on its disk"
DISK = "less than 64 MiB are free on the disk of the data directory: free some of it"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RedisServer]:
    # A write beyond RLIMIT_FSIZE fails, instead of ending the process.
    program = tmp_path / "valkey"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec '{valkey_program()}' \"$@\"\n")
    program.chmod(0o755)
    with RedisServer(program, {"appendonly": "yes", "appendfsync": "no"}) as own:
        yield own


@pytest.fixture
def started(storage: RedisServer) -> Iterator[Server]:
    with server(redis=storage.url, num_partitions=1) as running:
        with Wire(running.kafka) as client:
            client.create("orders")
            assert client.produce("orders", batch(b"x" * 1_000)).error_code == 0
        yield running


def probe(started: InProcessServer | Server, query: str = "") -> tuple[int, dict[str, str]]:
    answer = ask(started, f"/readyz{query}")
    told: dict[str, str] = json.loads(answer.body)
    return answer.status, told


def cells(started: InProcessServer | Server, page: str) -> dict[str, str]:
    """Return the first cells that an open page gets."""
    link = http.client.HTTPConnection(started.http.removeprefix("http://"), timeout=60)
    link.request("GET", f"/events?of={page}")
    answer = link.getresponse()
    while not answer.readline().startswith(b"event: cells"):
        pass
    found: dict[str, str] = json.loads(answer.readline().removeprefix(b"data: "))
    link.close()
    return found


def shows(started: InProcessServer | Server, reason: str) -> None:
    """Every place shows that records are refused, and why; readers are served."""
    wait_for(lambda: probe(started, "?for=write")[0] == 503, "a check that finds the reason")
    for query, status in (("", 200), ("?for=write", 503)):
        found, told = probe(started, query)
        assert (found, told["status"]) == (status, "read-only" if query else "ready")
        assert told["detail"].startswith(reason)
    banner = f"This server accepts no records: {told['detail']}."
    wait_for(lambda: banner in ask(started, "/").text, "the banner")
    assert [page for page in PAGES if banner not in ask(started, page).text] == []
    for page in ("/", "/topics/orders", "/topics/orders/records?tail=0"):
        assert cells(started, page)["banner"] == banner
    assert writable(started) == 0
    before = [metric(started, name, topic="orders") for name in INCOMING]
    assert min(before) > 0
    with Wire(started.kafka) as client:
        assert client.fetch("orders", 0).records
        for records in (batch(b"y" * 1_000), None):
            answer = client.produce("orders", records)
            assert answer.error_code == Code.KAFKA_STORAGE_ERROR
            assert reason in str(answer.error_message)
    assert [metric(started, name, topic="orders") for name in INCOMING] == before, "only stored records count"


def metric(started: InProcessServer | Server, name: str, **labels: str) -> float:
    return samples_of(ask(started, "/metrics").body)[f"headrace_{name}", frozenset(labels.items())]


def writable(started: InProcessServer | Server) -> float:
    return metric(started, "writable")


def recovers(started: InProcessServer | Server) -> None:
    wait_for(lambda: probe(started, "?for=write")[0] == 200, "a check that finds no problem")
    assert probe(started) == probe(started, "?for=write") == (200, {"status": "ready"})
    wait_for(lambda: "This server accepts no records" not in ask(started, "/").text, "the banner to go")
    assert cells(started, "/")["banner"] == ""
    assert writable(started) == 1
    with Wire(started.kafka) as client:
        wait_for(lambda: client.produce("orders", batch(b"z")).error_code == 0, "the server to accept records")
        assert client.produce("orders", None).error_code == Code.INVALID_RECORD


def test_full_memory(storage: RedisServer, started: Server) -> None:
    recovers(started)
    with redis.Redis.from_url(storage.url) as link:
        link.config_set("maxmemory", "1mb")
        shows(started, MEMORY)
        link.config_set("maxmemory", 0)
    wait_for(lambda: probe(started, "?for=write")[0] == 200, "the probe")
    recovers(started)
    assert "this server accepts no records" in started.log()


def takes_writes(link: redis.Redis) -> bool:
    try:
        link.eval("#!lua\nreturn 1", 0)
    except redis.OutOfMemoryError:
        return False
    return True


def test_memory_that_is_full_only_for_the_batches_that_come(storage: RedisServer, started: Server) -> None:
    """The buffers of a large batch count. Between batches, Redis would take a small write."""
    with redis.Redis.from_url(storage.url) as link, Wire(started.kafka) as client:
        link.config_set("maxmemory", link.info("memory")["used_memory"] + (512 << 10))
        large = batch(b"y" * 1_000_000)
        wait_for(lambda: client.produce("orders", large).error_code == Code.KAFKA_STORAGE_ERROR, "a refusal")
        wait_for(lambda: takes_writes(link), "Redis to take a write")
        wait_for(lambda: probe(started, "?for=write")[0] == 503, "a check that finds the refusal")
        assert probe(started, "?for=write")[1]["detail"].startswith(MEMORY)
        wait_for(lambda: client.produce("orders", batch(b"z")).error_code == 0, "a small batch to fit")
        wait_for(lambda: probe(started, "?for=write")[0] == 200, "a check after it")
        link.config_set("maxmemory", 0)


def test_a_file_that_cannot_be_written(storage: RedisServer, started: Server) -> None:
    with redis.Redis.from_url(storage.url) as link:
        size = link.info("persistence")["aof_current_size"]
        resource.prlimit(storage.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        link.append("filler", b"x" * 10_000)
        wait_for(lambda: link.info("persistence")["aof_last_write_status"] == "err", "a failed write")
        shows(started, FILE)
        resource.prlimit(storage.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_for(lambda: link.info("persistence")["aof_last_write_status"] == "ok", "Redis to recover")
    recovers(started)


def test_a_redis_that_was_killed(storage: RedisServer, started: Server) -> None:
    storage.kill()
    for query in ("", "?for=write"):
        wait_for(lambda query=query: probe(started, query)[0] == 503, "the probe")  # type: ignore[misc]
        assert probe(started, query)[1]["detail"] == "no connection to Redis"
    banner = "This server accepts no records: no connection to Redis."
    wait_for(lambda: banner in ask(started, "/").text, "the banner")
    assert banner in ask(started, "/topics").text
    assert cells(started, "/")["banner"] == banner
    assert writable(started) == 0
    storage.start()
    wait_for(lambda: probe(started, "?for=write")[0] == 200, "the probe")
    recovers(started)


def test_a_repeated_batch_counts_once(started: Server) -> None:
    before = [metric(started, name, topic="orders") for name in INCOMING]
    with Wire(started.kafka) as client:
        repeated = batch(b"x", b"y", producer_id=client.producer_id(), producer_epoch=0, base_sequence=0)
        offsets = {client.produce("orders", repeated).base_offset for _ in range(3)}
    assert len(offsets) == 1
    after = [metric(started, name, topic="orders") for name in INCOMING]
    assert after == [before[0] + 2, before[1] + len(repeated)]


@pytest.mark.parametrize(
    ("free", "reason"),
    [
        (lambda _: free_space.RESERVE_BYTES - 1, DISK),
        (lambda path: Path(path, "gone").stat().st_size, "the data directory cannot be looked at (No such file"),
    ],
)
def test_a_full_disk(free: Callable[[Path], int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcessServer(num_partitions=1) as started:
        with Wire(started.kafka) as client:
            client.create("orders")
            assert client.produce("orders", batch(b"x" * 1_000)).error_code == 0
        recovers(started)
        with monkeypatch.context() as patch:
            patch.setattr(free_space, "free_bytes", free)
            # The server looks again after 4 MiB of records.
            with Wire(started.kafka) as client:
                for _ in range(6):
                    client.produce("orders", batch(b"y" * 900_000))
            shows(started, reason)
        recovers(started)


async def test_a_broker_that_was_declared_dead_accepts_no_records() -> None:
    """Redis answers, and all problems that are known are in one detail, each once."""

    class Storage:
        unreadable = SimpleNamespace(told="a value is skipped")

        async def readiness(self, _: float) -> Readiness:
            return Readiness(("10.0.0.1:6379: no connection to Redis",), writable=True)

    class Clusters:
        ownership = SimpleNamespace(brokers=2)

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            yield "default", SimpleNamespace(unopened=SimpleNamespace(told="a value is skipped"))

    clusters, clock = Clusters(), ManualClock()
    check = HealthCheck(cast("Any", Storage()), cast("Any", clusters), StoreCounters(), clock)
    with capture_logs() as logged:
        alive = await check.look()
        assert (alive.storage, alive.refusal, check.refusal) == (True, "", "")
        assert alive.detail == "10.0.0.1:6379: no connection to Redis; a value is skipped"
        clock.advance(2_001)
        clusters.ownership.brokers = 0
        dead = await check.look()
        assert dead.storage
        assert dead.refusal == check.refusal == dead.detail.partition("; ")[0]
        assert dead.refusal.startswith("the other brokers have declared this one dead")
        clock.advance(2_001)
        await check.look()
        clock.advance(2_001)
        clusters.ownership.brokers = 1
        await check.look()
    assert [line["event"] for line in logged] == [
        "this server accepts no records", "this server accepts records again",
    ]  # fmt: skip


class BusyStorage:
    """A storage that is queried, and does not answer while `hangs`."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.queries = 0
        self.fails = ""
        self.unreadable = SimpleNamespace(told="")

    async def readiness(self, _: float) -> Readiness:
        self.queries += 1
        await self.answers.wait()
        if self.fails:
            raise TopicError(self.fails)
        return Readiness((), writable=True)


class BrokersAlive:
    """Virtual clusters without a problem."""

    ownership = SimpleNamespace(brokers=1)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield "default", SimpleNamespace(unopened=SimpleNamespace(told=""))


def checks(storage: BusyStorage, clock: ManualClock) -> HealthCheck:
    return HealthCheck(cast("Any", storage), cast("Any", BrokersAlive()), StoreCounters(), clock)


async def test_a_recent_check_answers_probes_while_the_storage_is_busy() -> None:
    storage, clock = BusyStorage(), ManualClock()
    health = checks(storage, clock)
    assert (await health.look()).storage
    storage.answers.clear()
    clock.advance(2_000)
    assert (await asyncio.wait_for(health.look(), 10)).storage
    assert storage.queries == 1


async def test_a_probe_waits_for_a_new_check_after_two_seconds() -> None:
    storage, clock = BusyStorage(), ManualClock()
    health = checks(storage, clock)
    assert (await health.look()).storage
    storage.answers.clear()
    clock.advance(2_001)
    probes = [asyncio.create_task(health.look()) for _ in range(100)]
    while storage.queries < 2:
        await asyncio.sleep(0)
    storage.fails = "no answer from Redis"
    storage.answers.set()
    found = await asyncio.gather(*probes)
    assert {(each.storage, each.detail) for each in found} == {(False, "no answer from Redis")}
    assert storage.queries == 2


async def test_checks_continue_without_probes() -> None:
    storage = BusyStorage()
    running = asyncio.create_task(checks(storage, ManualClock()).run())
    try:
        async with asyncio.timeout(10):
            while storage.queries < 2:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
