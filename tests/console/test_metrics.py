"""`/metrics` of a running server matches the requests of clients."""

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import redis
from tests.harness.exposition import Samples, read
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.oci.conftest import COMPARTMENT, Api

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.cache import FILE_READER_CACHE_BYTES
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import SystemClock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.time_lag import TimeLags
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console import sampler
from headrace.console.metrics import MetricsPage
from headrace.console.sampler import in_pieces
from headrace.kafka.errors import Code, error_name
from headrace.membership.view import Member, View
from headrace.metrics.counters import Counters, StoreFacts
from headrace.metrics.unreadable_values import Unreadable
from headrace.protocol.messages import OffsetCommitRequest
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.testing import InProcessServer, Server, server

HOSTILE = ["plain", 'quote"d', "line\nbreak", "back\\slash", "bell\x07", "\u2028", "x" * 249, "Gruppe ÄÖÜ", "{}=,"]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(oci_auth="off") as started:
        yield started


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    with Wire(running.kafka) as client:
        yield client


@pytest.fixture
def api(running: Server) -> Iterator[Api]:
    client = Api(running.http)
    yield client
    client.close()


def scraped(running: Server | InProcessServer) -> bytes:
    connection = HTTPConnection(running.http.removeprefix("http://"), timeout=60)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    page = answer.read()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    connection.close()
    return page


def commit(wire: Wire, group: str, topic: str, partition: int, offset: int) -> None:
    place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[place])]
    answer = wire.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code == 0, answer


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"headrace_{name}", frozenset(labels.items())]


def test_requests_errors_and_durations_are_counted_by_listener_and_api(running: Server, wire: Wire) -> None:
    def told(name: str, **labels: str) -> float:
        return read(page).get((f"headrace_{name}", frozenset(labels.items())), 0)

    wire.create("asked")
    page = scraped(running)
    before = told("requests_total", listener="PLAINTEXT", api="Produce")
    errors = told("request_errors_total", listener="PLAINTEXT", api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
    for _ in range(3):
        assert wire.produce("asked", batch(b"value")).error_code == 0
    assert wire.produce("not-there", batch(b"value")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    page = scraped(running)
    assert told("requests_total", listener="PLAINTEXT", api="Produce") == before + 4
    assert (
        told("request_errors_total", listener="PLAINTEXT", api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
        == errors + 1
    )
    assert told("request_duration_seconds_count", listener="PLAINTEXT", api="Produce") == before + 4
    assert told("request_duration_seconds_sum", listener="PLAINTEXT", api="Produce") > 0
    assert told("connections", listener="PLAINTEXT") >= 1
    assert told("connections", listener="HTTP") >= 1


def test_a_topic_counts_records_of_both_apis(running: Server, wire: Wire, api: Api) -> None:
    stream = api.done("POST", "/streams", {"name": "both", "partitions": 1, "compartmentId": COMPARTMENT})["id"]
    sent = batch(b"12345", b"6789")
    wire.produce("both", sent)
    api.put(stream, (None, b"abc"))
    assert api.values(stream, api.cursor(stream)) == [b"12345", b"6789", b"abc"]
    fetched = wire.fetch("both", 0)
    samples = read(scraped(running))
    stored = len(fetched.records or b"")
    assert value(samples, "topic_records_in_total", topic="both") == 3
    assert value(samples, "topic_bytes_in_total", topic="both") == stored
    assert value(samples, "topic_records_out_total", topic="both") == 3 + 3
    assert value(samples, "topic_bytes_out_total", topic="both") == stored + len(b"123456789abc")
    assert value(samples, "log_end_offset", topic="both", partition="0") == 3
    assert value(samples, "log_start_offset", topic="both", partition="0") == 0
    puts = value(samples, "requests_total", listener="HTTP", api="PutMessages")
    api.put(stream, (None, b"abc"))
    api.call("GET", f"/streams/{stream}/messages?cursor=none")
    samples = read(scraped(running))
    assert value(samples, "requests_total", listener="HTTP", api="PutMessages") == puts + 1
    assert value(samples, "request_errors_total", listener="HTTP", api="GetMessages", error="InvalidParameter") == 1


def test_records_of_native_topics_are_counted_one_by_one(running: Server, wire: Wire) -> None:
    wire.create("plain-out", headrace_storage="native")
    for values in ((b"a", b"b", b"c"), (b"d",)):
        assert wire.produce("plain-out", batch(*values)).error_code == 0
    assert wire.fetch("plain-out", 0).error_code == 0
    samples = read(scraped(running))
    assert value(samples, "topic_records_in_total", topic="plain-out") == 4
    assert value(samples, "topic_records_out_total", topic="plain-out") == 4


def test_a_stream_pool_is_labeled_with_its_cluster(running: Server, api: Api) -> None:
    pool = api.done("POST", "/streampools", {"name": "pool", "compartmentId": COMPARTMENT})["id"]
    for where in ({"streamPoolId": pool}, {"compartmentId": COMPARTMENT}):
        stream = api.done("POST", "/streams", {"name": "twice", "partitions": 1, **where})["id"]
        api.put(stream, (None, b"abc"))
    samples = read(scraped(running))
    clusters = {dict(key).get("cluster", "") for (name, key) in samples if ("topic", "twice") in key}
    assert len(clusters) == 2
    assert "" in clusters


def test_a_group_has_metrics_for_members_generations_and_lag(running: Server, wire: Wire) -> None:
    wire.create("read", 2)
    for _ in range(5):
        wire.produce("read", batch(b"value"))
    for name in HOSTILE:
        commit(wire, name, "read", 0, 3)
    samples = read(scraped(running))
    lags = [lag for (name, key), lag in samples.items() if name == "headrace_group_lag" and ("topic", "read") in key]
    # The other partition has no committed offset: all of its records are lag.
    assert sorted(lags) == [0] * len(HOSTILE) + [2] * len(HOSTILE)
    commit(wire, "plain", "read", 1, 0)
    wire.produce("read", batch(b"value", b"value"), partition=1)
    samples = read(scraped(running))
    for group in ("plain", 'quote"d'):
        assert value(samples, "group_lag", group=group, topic="read", partition="1") == 2
    assert value(samples, "group_lag", group='quote"d', topic="read", partition="0") == 2
    assert value(samples, "group_lag", group="line\nbreak", topic="read", partition="0") == 2
    assert value(samples, "group_members", group="plain") == 0


def test_the_source_of_uncached_reads_is_counted() -> None:
    pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")
    with InProcessServer(headrace_cache_bytes=0, headrace_journal_bytes=0) as started, Wire(started.kafka) as wire:
        wire.create("read")
        for each in (b"first", b"second"):
            wire.produce("read", batch(each))
        size = len(batch(b"second"))
        for offset, asked, of_the_file in ((0, True, False), (1, False, True)):
            before = read(scraped(started))
            assert wire.fetch("read", offset).records
            after = read(scraped(started))
            grown = [
                value(after, "store_read_bytes_total", source=source)
                - value(before, "store_read_bytes_total", source=source)
                for source in ("redis", "file")
            ]
            assert (grown[0] > 0, grown[1] >= size) == (asked, of_the_file)


def test_a_server_caches_little_of_the_batches_in_the_file() -> None:
    pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")
    with InProcessServer(headrace_journal_bytes=0) as started, Wire(started.kafka) as wire:
        wire.create("large", max_message_bytes="2000000")
        sent = batch(b"v" * 1_000_000)
        for _ in range(FILE_READER_CACHE_BYTES // len(sent) + 2):
            wire.produce("large", sent)
        assert wire.fetch("large", 1).records
        assert value(read(scraped(started)), "store_read_bytes_total", source="file") >= len(sent)


def test_operations_of_the_store_are_counted(running: Server, wire: Wire) -> None:
    def told(name: str) -> float:
        return value(samples, f"store_{name}")

    samples = read(scraped(running))
    openings, appends, size = told("openings_total"), told("appends_total"), told("append_bytes_total")
    wire.create("stored", 3)
    wire.create("plain", headrace_storage="native")
    sent = batch(b"value")
    for topic in ("stored", "plain"):
        assert wire.produce(topic, sent).error_code == 0
    while True:  # what the journal has acknowledged is on its way
        samples = read(scraped(running))
        if not told("journal_waiting_bytes") and told("appends_total") >= appends + 2:
            break
    assert told("append_bytes_total") >= size + 2 * len(sent)
    assert told("openings_total") == openings + 3
    assert told("append_duration_seconds_count") >= 2
    assert told("journal_bytes") >= 16 << 20
    assert {value(samples, "store_read_bytes_total", source=each) for each in ("file", "redis")} == {0}
    assert told("append_failures_total") == told("reconnects_total") == 0


def test_store_and_process_have_metrics(running: Server) -> None:
    samples = read(scraped(running))
    assert value(samples, "store_up") == 1
    assert value(samples, "store_memory_bytes") > 0
    assert value(samples, "store_replicas") == 0
    assert value(samples, "disk_free_bytes") > 0
    assert samples["process_open_fds", frozenset()] > 3
    assert samples["process_resident_memory_bytes", frozenset()] > 1 << 20
    assert samples["process_cpu_seconds_total", frozenset()] > 0
    while value(read(scraped(running)), "event_loop_delay_seconds_count") < 2:
        pass


@pytest.mark.apt
def test_promtool_finds_nothing_wrong(running: Server, wire: Wire) -> None:
    wire.create("checked")
    for name in HOSTILE:
        commit(wire, name, "checked", 0, 0)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=scraped(running), capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_partitions_whose_logs_cannot_be_opened_are_counted_and_listed_by_readyz() -> None:
    """They were not visible before: the server was ready, and rejected requests to these partitions."""
    with InProcessServer() as started, Wire(started.kafka) as wire:
        wire.create("kept", 3)
        with LogReader(started.storage) as log:
            stream = log.topics(Subscription(("kept",)))["kept"].streams[1]

        def unopened() -> float:
            return value(read(scraped(started)), "unopened_partitions")

        def detail() -> str:
            with urllib.request.urlopen(f"{started.http}/readyz", timeout=60) as answer:
                return str(json.load(answer).get("detail", ""))

        assert (unopened(), detail()) == (0, "")
        with redis.Redis.from_url(started.storage) as link:
            link.rename(stream, "aside")
            link.set(stream, "no log")
            link.client_kill_filter(_type="normal", skipme=True)
            wait_for(lambda: unopened() == 1, "the others to be opened")
            for _ in range(6):
                started.clock.advance(5)
            wait_for(lambda: "partitions offline: 1" in detail(), "the broker to report it")
            link.delete(stream)
            link.rename("aside", stream)
            started.clock.advance(5)
            wait_for(lambda: unopened() == 0, "it to be opened")
            started.clock.advance(5)
            wait_for(lambda: not detail(), "the broker to have looked")


# Without a server


class NoClusters:
    """A server without topics and groups."""

    access = SimpleNamespace(grants=lambda *_: None)
    reads = ReadBudget()
    quotas = SimpleNamespace(throttled={})
    ownership = Ownership(1)
    default = SimpleNamespace(storage=SimpleNamespace(documents=SimpleNamespace(unreadable=Unreadable())))

    def __iter__(self) -> Iterator[tuple[str, Broker]]:
        return iter(())


def page_of(
    counters: Counters,
    *,
    store_answers: bool = True,
    most_series: int = 20_000,
    clusters: NoClusters | None = None,
    writable: bool = True,
) -> MetricsPage:
    async def facts() -> StoreFacts:
        if not store_answers:
            raise ConnectionError("gone")
        return StoreFacts(memory_bytes=1, memory_max_bytes=2, replicas=3, append_file_bytes=4, append_file_ok=False)

    return MetricsPage(
        cast("VirtualClusters", clusters or NoClusters()),
        counters,
        connections={},
        store=facts,
        log_lines_lost=lambda: 7,
        writable=lambda: writable,
        time_lags=TimeLags(tuple, SystemClock(), CooperativeScheduler()),
        error_name=error_name,
        refusal=lambda _: None,
        data=Path("/"),
        most_series=most_series,
    )


async def test_without_storage_the_page_reports_it_and_keeps_the_rest() -> None:
    samples = read(await page_of(Counters(), store_answers=False).render())
    assert value(samples, "store_up") == 0
    assert ("headrace_store_memory_bytes", frozenset()) not in samples
    assert value(samples, "disk_size_bytes") > 0
    assert value(samples, "log_lines_lost_total") == 7
    samples = read(await page_of(Counters()).render())
    assert [value(samples, f"store_{name}") for name in ("up", "memory_bytes", "replicas", "append_file_ok")] == [
        1,
        1,
        3,
        0,
    ]


@pytest.mark.parametrize("writable", [False, True])
async def test_a_server_that_accepts_no_records_shows_it(writable: bool) -> None:
    assert value(read(await page_of(Counters(), writable=writable).render()), "writable") == writable


async def test_brokers_that_are_alive_are_counted_and_none_once_the_others_have_declared_this_one_dead() -> None:
    clusters = NoClusters()
    clusters.ownership = Ownership(1)
    page = page_of(Counters(), clusters=clusters)
    alone = value(read(await page.render()), "brokers")
    both = tuple(Member(node_id=node, incarnation="a", process="p", host="h", port=1) for node in (1, 2))
    clusters.ownership.adopt(View(1, both), inside=True)
    together = value(read(await page.render()), "brokers")
    clusters.ownership.adopt(View(2, both[1:]), inside=False)
    assert (alone, together, value(read(await page.render()), "brokers")) == (1, 2, 0)


async def test_metric_series_beyond_the_limit_are_counted() -> None:
    counters = Counters()
    counters.listener("L", {number: str(number) for number in range(1_000)})
    samples = read(await page_of(counters, most_series=500).render())
    assert len(samples) == 501
    everything = read(await page_of(counters).render())
    assert value(samples, "metrics_series_excess") == len(everything) - 501
    assert value(everything, "metrics_series_excess") == 0


async def test_others_get_the_loop_after_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    steps = turns = 0
    monkeypatch.setattr(sampler, "perf_counter_ns", lambda: now)

    def work() -> Iterator[None]:
        nonlocal now, steps
        for _ in range(100):
            now += 300_000
            steps += 1
            yield

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    background = asyncio.create_task(other())
    await in_pieces(work())
    assert steps == 100
    # A piece ends with the step that takes it beyond a millisecond: four of 0.3 ms.
    assert turns == 100 // 4
    background.cancel()
