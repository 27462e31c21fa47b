"""The cleaner of compacted topics, in a server with its embedded Valkey; with `--kafka`, Apache Kafka's too.

Records of 100 B, whose keys come at random. A topic is filled, and then becomes compacted. The time of a pass runs from
the answer to that until all is cleaned that can be: in Kafka, all segments but the last one. Both look for work a
hundred times a second. During the pass and for a while before it, small requests go to the server. Servers take turns,
after a round that does not count.
"""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.request import urlopen

import msgspec
import redis
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.figures import HEADRACE, KAFKA, Figures, figures_table
from bench.load import LIMIT_S, LoadFailed, Produce, Worker
from bench.machine import client_library, describe
from bench.probe_load import Probe, Probed
from bench.processes import cpu_s, peak_mb, reset_peak, resident_mb
from bench.table import Cell
from bench.targets import Target, headrace, kafka, load
from headrace.testing import Server

RECORD_BYTES = 100
_VALUE_BYTES = 86  # and keys of 14
_BACKOFF = "log.cleaner.backoff.ms=10"
_LOOK_S = 0.01
_SEGMENTS = 8
_LEAST_SEGMENT_BYTES = 1 << 20
_RECORDS_A_KEY = 10
_LONG_MS = 24 * 3_600_000
_PROBES = "bench-probes"
_BATCHES = {
    "16 KB batches": {"batch.size": "16384", "linger.ms": "5", "batch.num.messages": "100000"},
    "one-record batches": {
        "batch.num.messages": "1", "linger.ms": "0", "max.in.flight.requests.per.connection": "1000",
    },
}  # fmt: skip
_ONE_RECORD = "one-record batches"


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass took."""

    seconds: float
    bytes_read: int
    """Of batches that were cleaned."""
    share: float
    """What they are of the log."""
    storage_mb: dict[str, float] = {}
    """Memory of Redis before, at most, and after."""


class Cleaned(Protocol):
    """A server whose cleaner is measured."""

    target: Target
    storage: str | None
    pid: int

    def clean(self, topic: str, compact: Callable[[], None]) -> Pass:
        """Let a topic become compacted, and wait for the pass. Raises LoadFailed."""


class Ours:
    """Headrace."""

    def __init__(self, target: Target, server: Server) -> None:
        self.target = target
        self.storage: str | None = server.storage
        self.pid = server.pid
        self._link = redis.Redis.from_url(server.storage)
        self._http = server.http

    def clean(self, topic: str, compact: Callable[[], None]) -> Pass:
        stream, used = f"headrace:{topic}:0", [self._memory_mb()]
        before = self._read_bytes()
        compact()
        began = time.monotonic()
        # The last batch of a log is never cleaned.
        while self._link.xlen(stream) > 1:
            used.append(self._memory_mb())
            _rest(began, f"{self._link.xlen(stream)} batches were not cleaned")
        seconds = time.monotonic() - began
        used.append(self._memory_mb())
        # It counts a pass a moment after its last step.
        while not (size := self._read_bytes() - before):
            _rest(began, "no pass was counted")
        return Pass(
            seconds=seconds, bytes_read=size, share=1.0,
            storage_mb={"before": used[0], "peak": max(used), "after": used[-1]},
        )  # fmt: skip

    def _memory_mb(self) -> float:
        return int(self._link.info("memory")["used_memory"]) / 1e6

    def _read_bytes(self) -> int:
        with urlopen(f"{self._http}/metrics") as answer:
            lines: list[str] = answer.read().decode().splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith(_READ_BYTES))


_READ_BYTES = "headrace_log_cleaner_read_bytes_total "


class Theirs:
    """Apache Kafka, whose files show how far it is."""

    def __init__(self, target: Target, logs: Path) -> None:
        self.target = target
        self.storage: str | None = None
        (self.pid,) = target.processes().values()
        self._logs = logs

    def clean(self, topic: str, compact: Callable[[], None]) -> Pass:
        *closed, last = (each.stat().st_size for each in sorted((self._logs / f"{topic}-0").glob("*.log")))
        size = sum(closed)
        if not size:
            raise LoadFailed("the log has one segment only")
        compact()
        began = time.monotonic()
        while not self._is_clean(topic):
            _rest(began, "the log was not cleaned")
        return Pass(seconds=time.monotonic() - began, bytes_read=size, share=size / (size + last))

    def _is_clean(self, topic: str) -> bool:
        file = self._logs / "cleaner-offset-checkpoint"
        with contextlib.suppress(FileNotFoundError):
            return any(line.startswith(f"{topic} 0 ") for line in file.read_text().splitlines())
        return False


def _rest(began: float, what: str) -> None:
    if time.monotonic() - began > LIMIT_S:
        raise LoadFailed(f"{what} after {LIMIT_S:.0f} s")
    time.sleep(_LOOK_S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too: needs Java and Maven")
    parser.add_argument("--megabytes", type=float, help="records of a log in batches of 16 KB (200; quick: 20)")
    parser.add_argument("--batches", type=int, help="batches of one record in a log (100 000; quick: 20 000)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (5; quick: 1)")


def run(options: argparse.Namespace) -> int:
    quick = options.quick
    rounds = options.rounds or (1 if quick else 5)
    records = {
        "16 KB batches": int(1e6 * (options.megabytes or (20 if quick else 200)) / RECORD_BYTES),
        _ONE_RECORD: options.batches or (20_000 if quick else 100_000),
    }
    print(
        describe(
            client=client_library(), fsync="no", record=f"{RECORD_BYTES} B", records_a_key=_RECORDS_A_KEY,
            records_a_log=" and ".join(f"{each:,}" for each in records.values()), median_of=f"{rounds} rounds",
        ),
        flush=True,
    )  # fmt: skip
    figures = Figures()
    with contextlib.ExitStack() as stack:
        servers: dict[str, Cleaned] = {HEADRACE: Ours(*stack.enter_context(headrace(_PROBES, 1, settings=[_BACKOFF])))}
        if options.kafka:
            servers[KAFKA] = Theirs(*stack.enter_context(kafka(_BACKOFF)))
        bench = Bench(figures, servers, 0.5 if quick else 2.0)
        for shape, many in records.items():
            turns = {name: partial(bench.turn, shape, many, name) for name in servers}
            figures.in_turns(turns, rounds)
            print("\n" + figures_table(bench.rows(shape, many)), flush=True)
    return int(figures.failed)


class Bench:
    """Rounds of all servers."""

    def __init__(self, figures: Figures, servers: dict[str, Cleaned], idle_s: float) -> None:
        self._figures = figures
        self._servers = servers
        self._idle_s = idle_s
        self._numbers = itertools.count()

    def turn(self, shape: str, records: int, name: str, number: int) -> None:
        """Fill a log and clean it."""
        server = self._servers[name]
        admin = AdminClient({"bootstrap.servers": server.target.address, "log_level": 3})
        with self._topic(admin, records) as topic:
            task = Produce(
                servers=server.target.address, topic=topic, partitions=1, records=records, size=_VALUE_BYTES,
                settings=_BATCHES[shape] | {"enable.idempotence": str(shape != _ONE_RECORD).lower()},
                keys=records // _RECORDS_A_KEY,
            )  # fmt: skip
            load(server.target, [task])
            probes = Probe(servers=server.target.address, topic=_PROBES, storage=server.storage)
            with Worker(probes) as idle:
                idle.start()
                time.sleep(self._idle_s)
                idle.stop()
                before: Probed = idle.result(Probed)
            pid, processes = server.pid, list(server.target.processes().values())
            memory = resident_mb(pid)
            reset_peak(pid)
            with Worker(probes) as busy:
                busy.start()
                spent_s = -sum(map(cpu_s, processes))
                done = server.clean(topic, partial(_compact, admin, topic))
                spent_s += sum(map(cpu_s, processes))
                busy.stop()
                during: Probed = busy.result(Probed)
            if number >= 0:
                self._count(shape, name, records, done, before, during)
                self._figures.add(f"{shape}: server memory, peak over before", name, peak_mb(pid) - memory)
                self._figures.add(f"{shape}: CPU", name, spent_s / (done.bytes_read / 1e9))

    def _count(self, shape: str, name: str, records: int, done: Pass, before: Probed, during: Probed) -> None:
        add = self._figures.add
        add(f"{shape}: bytes cleaned", name, done.bytes_read / 1e6 / done.seconds)
        if shape == _ONE_RECORD:
            add(f"{shape}: batches cleaned", name, records * done.share / done.seconds)
        if done.storage_mb:
            add(f"{shape}: Redis memory, peak over before", name, done.storage_mb["peak"] - done.storage_mb["before"])
            add(f"{shape}: Redis memory, after to before", name, done.storage_mb["after"] / done.storage_mb["before"])
        for when, probed in (("without", before), ("during", during)):
            add(f"{shape}: Produce p99 {when} a pass", name, probed.produce.p99)
            add(f"{shape}: ApiVersions p99 {when} a pass", name, probed.ping.p99)
            add(f"{shape}: ApiVersions longest {when} a pass", name, probed.ping.longest)
            if probed.xadd is not None:
                add(f"{shape}: XADD p99 {when} a pass", name, probed.xadd.p99)

    def rows(self, shape: str, records: int) -> list[list[Cell]]:
        """Of the table of this shape."""
        row, share = self._figures.row, self._figures.share
        map_mb = 24 * (records // _RECORDS_A_KEY) / 1e6 + 16 * 1.048576
        found = [row(f"{shape}: bytes cleaned", "MB/s", ">= 60, >= Kafka's" if shape != _ONE_RECORD else "")]
        if shape == _ONE_RECORD:
            found.append(row(f"{shape}: batches cleaned", "batches/s", ">= 150,000"))
        found += [
            row(f"{shape}: CPU", "s/GB"),
            row(f"{shape}: server memory, peak over before", "MB", f"<= {map_mb:.1f}"),
            row(f"{shape}: Redis memory, peak over before", "MB", "<= 67.1"),
            row(f"{shape}: Redis memory, after to before", "ratio"),
        ]
        if shape == _ONE_RECORD:
            return found
        for name in ("XADD p99", "Produce p99", "ApiVersions p99", "ApiVersions longest"):
            without, during = (f"{shape}: {name} {when} a pass" for when in ("without", "during"))
            limit = "<= 10 ms" if name == "ApiVersions longest" else ""
            found += [row(without, "ms"), row(during, "ms", limit)]
            if name in ("XADD p99", "Produce p99"):
                found.append(share(f"{shape}: {name} during to without", during, without, "<= 2"))
        return found

    @contextlib.contextmanager
    def _topic(self, admin: AdminClient, records: int) -> Iterator[str]:
        """A topic for a round, which is not compacted, and one for the probes."""
        name = f"bench-{next(self._numbers)}"
        segment = max(_LEAST_SEGMENT_BYTES, records * RECORD_BYTES // _SEGMENTS)
        config = {
            "cleanup.policy": "delete", "segment.bytes": str(segment), "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(_LONG_MS), "compression.type": "producer",
        }  # fmt: skip
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
        if _PROBES not in admin.list_topics(timeout=30).topics:
            admin.create_topics([NewTopic(_PROBES, 1, 1)])[_PROBES].result(30)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(30)


def _compact(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
