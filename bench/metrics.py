"""Metrics: what counting costs a request, and for how long a scrape holds the event loop.

The first figure drives a real connection without sockets: as many ApiVersions requests as one read brings, the best of
many turns. With `--against SRC` it is measured in turns with another source tree, such as one without the counting.
The second is a page of about 10 000 series, written while a callback looks how long it was kept from the loop.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any, cast

import structlog
import uvloop

from bench.machine import describe
from bench.table import Cell, table
from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.group_runner import GroupMemory
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import SystemClock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.time_lag import TimeLags
from headrace.broker.topics.cleaner import CleanerCounters
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console.metrics import MetricsPage
from headrace.kafka.errors import error_name
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.listener import KafkaListener
from headrace.metrics.counters import (
    Counters,
    DeadLetterCounters,
    Durations,
    ShareCounters,
    StoreFacts,
    TopicCounters,
)
from headrace.metrics.unreadable_values import Unreadable
from headrace.protocol.headers import encode_request_header
from headrace.protocol.messages import ApiVersionsRequest

_HOLD_MS, _COUNT_US = 2.0, 0.5
"""What the project asks for."""
REQUESTS = (1, 20)
"""How many there are in one read."""
_TOPICS, _PARTITIONS = 500, 8


class _Full:
    """A server with this many topics, without the server."""

    def __init__(self, topics: int) -> None:
        partition = [
            SimpleNamespace(
                index=number,
                leader=None,
                log_start=0,
                log_end=1_000,
                log=SimpleNamespace(fenced_reason=None, transactions=None),
                offline=None,
            )
            for number in range(_PARTITIONS)
        ]
        self.topics = [
            SimpleNamespace(
                topic=SimpleNamespace(name=f"topic-{number}"), counted=TopicCounters(), partitions=partition
            )
            for number in range(topics)
        ]
        self.groups = SimpleNamespace(runners=tuple, memory=GroupMemory())
        self.transactions = SimpleNamespace(coordinator=SimpleNamespace(runners=tuple), verified=Durations())
        self.cleaner = SimpleNamespace(counted=CleanerCounters())
        self.shares = _Shares()
        self.dead_letters = SimpleNamespace(counters=DeadLetterCounters(), waiting=0)
        self.clock = SystemClock()
        self.settings = BrokerSettings.of()
        self.quotas = SimpleNamespace(throttled={})
        self.ownership = Ownership(0)
        self.reads = ReadBudget()
        unreadable = SimpleNamespace(documents=SimpleNamespace(unreadable=Unreadable()))
        self.default = SimpleNamespace(storage=unreadable)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter([("default", self)])


class _Shares(tuple[Any, ...]):
    """No share partitions."""

    __slots__ = ()

    counters = ShareCounters()
    sessions = ()


def _broker() -> Broker:
    """One that answers what needs no storage."""
    topics = SimpleNamespace(find=None)
    nothing: Any = SimpleNamespace(
        topics=topics, groups=None, transactions=None, logs=None, native=None, documents=None, shares=None
    )
    return Broker(nothing, BrokerSettings.of(), SystemClock(), cluster_id="bench", stream_of=lambda *_: "")


class _Sink(asyncio.Transport):
    """Takes answers and forgets them."""

    bytes = 0

    def write(self, data: Any) -> None:
        self.bytes += len(data)

    def writelines(self, list_of_data: Any) -> None:
        self.bytes += sum(map(len, list_of_data))

    def close(self) -> None:
        raise RuntimeError("the connection was closed")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="turns of each tree (9; quick: 3)")
    parser.add_argument("--against", type=Path, metavar="SRC", help="another tree's src/, measured in turns")
    parser.add_argument("--requests-only", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    if options.requests_only:
        # Standard output must contain only the result.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        print(json.dumps(uvloop.run(_request_us(200 if options.quick else 2_000))))
        return
    rounds = options.rounds or (3 if options.quick else 9)
    print(describe(fsync="no", median_of=f"{rounds} rounds"), end="\n\n", flush=True)
    trees: dict[str, Path | None] = {"this one": None}
    if options.against is not None:
        trees["the other"] = options.against
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, source in trees.items():
            found[name].append(_in_tree(source, quick=options.quick))
    for many in map(str, REQUESTS):
        best = {name: min(each[many] for each in turns) for name, turns in found.items()}
        rows: list[list[Cell]] = [[f"request, {many} in a read", name, value] for name, value in best.items()]
        if len(best) == 2:
            this, other = best.values()
            rows.append([f"the difference; asked for {_COUNT_US}", "", this - other])
        print(table(["what", "tree", "us"], rows), end="\n\n", flush=True)
    pages = [uvloop.run(_page()) for _ in range(rounds)]
    series, size = pages[0][:2]
    longest, whole = (statistics.median(page[field] for page in pages) for field in (2, 3))
    print(
        table(
            ["page", "series", "kB", "CPU ms in all", "longest hold, ms", "asked for"],
            [["/metrics", series, size / 1e3, whole, longest, _HOLD_MS]],
        )
    )


def _in_tree(source: Path | None, *, quick: bool) -> dict[str, float]:
    """Microseconds per request by requests in a read, measured in a process of its own."""
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "bench", "metrics", "--requests-only", *["--quick"] * quick]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=300)
    # What goes on before is said there too.
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


async def _request_us(turns: int, reads: int = 5) -> dict[str, float]:
    """The best turn counts: what else goes on on the machine only ever adds."""
    listener = KafkaListener(_broker(), max_request_bytes=1 << 20)
    connection = Connection(listener)
    sink = _Sink()
    connection.connection_made(sink)
    head = encode_request_header(ApiVersionsRequest.API_KEY, 0, 7, "bench")
    body = b"".join(ApiVersionsRequest().encode(0))
    frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    answer, sent = sink.bytes, 1
    gc.collect()
    gc.disable()
    best: dict[str, float] = {}
    for many in REQUESTS:
        read = frame * many
        for _ in range(turns):
            began = perf_counter_ns()
            for _ in range(reads):
                connection.get_buffer(-1)[: len(read)] = read
                connection.buffer_updated(len(read))
                sent += many
                while sink.bytes < sent * answer:
                    await asyncio.sleep(0)  # a slow turn: some were put off
            took = (perf_counter_ns() - began) / (reads * many) / 1e3
            best[str(many)] = min(best.get(str(many), took), took)
            await asyncio.sleep(0)
    return best


async def _page() -> tuple[int, int, float, float]:
    """Series, bytes, the longest time in ms that another callback was kept waiting, and the time of the whole in ms."""
    counters = Counters()

    async def facts() -> StoreFacts:
        return StoreFacts(memory_bytes=1, memory_max_bytes=1, replicas=0, append_file_bytes=1, append_file_ok=True)

    page = MetricsPage(
        cast("VirtualClusters", _Full(_TOPICS)),
        counters,
        connections={},
        store=facts,
        log_lines_lost=lambda: 0,
        writable=lambda: True,
        time_lags=TimeLags(tuple, SystemClock(), CooperativeScheduler()),
        error_name=error_name,
        refusal=lambda _: None,
        data=Path("/"),
        most_series=20_000,
    )
    gc.collect()
    gc.freeze()
    # The thread's own time: what other processes take is not the server's doing.
    longest = 0
    last = thread_time_ns()
    loop = asyncio.get_running_loop()

    handle: asyncio.Handle

    def look() -> None:
        nonlocal longest, last, handle
        now = thread_time_ns()
        longest, last = max(longest, now - last), now
        handle = loop.call_soon(look)

    handle = loop.call_soon(look)
    began = thread_time_ns()
    text = await page.render()
    await asyncio.sleep(0)
    whole = thread_time_ns() - began
    handle.cancel()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return series, len(text), longest / 1e6, whole / 1e6
