"""Throughput, request rate and latency of the Kafka listener.

The load comes from confluent-kafka in separate processes. Two baselines of the same run accompany each figure: the same
load against a broker that does nothing (the ceiling of client and loopback), and the embedded Valkey with the same
batches without a server.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import uvloop

from bench.load import Consume, Delays, LoadFailed, Produce, Receive, Send, Task, Worker
from bench.machine import client_library, describe
from bench.options import numbers, some_of
from bench.payloads import batch
from bench.store import alone
from bench.table import Cell, ratio, table
from bench.targets import SERVER, VALKEY, Run, Target, headrace, load, null
from headrace.records.compression import CODECS

PARTITIONS = 4
TOPIC = "bench"
BATCHES = {"1MB": 1_000_000, "16KB": 16_384}
PARTS = ("throughput", "requests", "latency")
_RECORD_OVERHEAD = 10
_REQUEST_BYTES = 100
_MOST_PROCESSES = 8
_WARM_UP_S = 1.0


class Shape(msgspec.Struct, frozen=True):
    """Of what records and batches a throughput row is."""

    size: int
    batch: str
    codec: str

    @property
    def per_batch(self) -> int:
        """Records in a full batch."""
        return max(1, BATCHES[self.batch] // (self.size + _RECORD_OVERHEAD))

    @property
    def settings(self) -> dict[str, str]:
        """For librdkafka, whose producer is idempotent here."""
        return {
            "enable.idempotence": "true",
            "linger.ms": "5",
            "batch.size": str(BATCHES[self.batch]),
            "batch.num.messages": "100000",
            "compression.codec": self.codec,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--sizes", type=numbers, default=[100, 1024], help="bytes of a value (100,1024)")
    parser.add_argument("--batches", type=some_of(*BATCHES), default=list(BATCHES), help="1MB,16KB")
    parser.add_argument("--codecs", type=some_of(*CODECS), default=["none"], help=f"some of {','.join(CODECS)} (none)")
    parser.add_argument("--rates", type=numbers, default=[1_000, 10_000], help="records/s of latency (1000,10000)")
    parser.add_argument("--lingers", type=numbers, default=[0, 1], help="linger.ms of latency (0,1)")
    parser.add_argument("--megabytes", type=float, help="payload of a throughput row (200; quick: 20)")
    parser.add_argument("--requests", type=int, help="requests of one record (50 000; quick: 5 000)")
    parser.add_argument("--seconds", type=float, help="of a latency row, after 1 s of warm-up (5; quick: 1)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (3; quick: 1)")
    parser.add_argument(
        "--processes", type=int, default=1, help=f"load generators at once (1; at most {_MOST_PROCESSES})"
    )
    parser.add_argument("--fsync", choices=("no", "always"), default="no", help="what an acknowledged record survives")


def run(options: argparse.Namespace) -> int:
    quick = options.quick
    rounds = options.rounds or (1 if quick else 3)
    bench = Bench(
        rounds=rounds,
        total_bytes=int(1e6 * (options.megabytes or (20 if quick else 200))),
        requests=options.requests or (5_000 if quick else 50_000),
        seconds=options.seconds or (1 if quick else 5),
        processes=min(options.processes, _MOST_PROCESSES),
        fsync=options.fsync,
    )
    print(
        describe(
            client=client_library(),
            fsync=options.fsync,
            acks="all",
            partitions=PARTITIONS,
            median_of=f"{rounds} rounds",
            megabytes_a_row=f"{bench.total_bytes / 1e6:g}",
        ),
        flush=True,
    )
    if "throughput" in options.parts:
        shapes = [
            Shape(size, name, codec) for size in options.sizes for codec in options.codecs for name in options.batches
        ]
        print("\n" + bench.throughput(shapes), flush=True)
    if "requests" in options.parts:
        print("\n" + bench.one_record_requests(), flush=True)
    if "latency" in options.parts:
        print(
            "\n" + bench.latency([(rate, linger) for rate in options.rates for linger in options.lingers]), flush=True
        )
    return int(bench.failed)


class Bench(msgspec.Struct, kw_only=True):
    """The parts of this bench, each a table."""

    rounds: int
    total_bytes: int
    requests: int
    seconds: float
    processes: int
    fsync: str
    failed: bool = False
    """Whether a load failed: its cells stay empty, the others count."""

    # Throughput

    def throughput(self, shapes: Iterable[Shape]) -> str:
        """Produce, consume, and consume again from Valkey alone, after a restart."""
        rows = [row for shape in shapes for row in self._rows(shape)]
        head = [
            "", "value", "batch", "codec", "MB/s", "records/s", "null MB/s", "of null", "Valkey MB/s", "of Valkey",
            "server CPU s/GB", "Valkey CPU s/GB", "server peak MB", "Valkey peak MB", "records/batch",
        ]  # fmt: skip
        return table(head, rows)

    def _rows(self, shape: Shape) -> Iterator[list[Cell]]:
        records = max(PARTITIONS, self.total_bytes // shape.size)
        sample = batch(shape.size, shape.per_batch, CODECS[shape.codec])
        batches = max(1, records // shape.per_batch)
        appending, reading = uvloop.run(alone(bytearray(sample), batches))
        payload_mb = batches * shape.per_batch * shape.size / 1e6
        found: dict[str, list[Run]] = {}
        ceilings: dict[str, list[Run]] = {}
        for number in range(self.rounds):
            for turn, runs in ((self._server_turn, found), (self._null_turn, ceilings))[:: -1 if number % 2 else 1]:
                with self._counted(f"{shape.size} B, {shape.batch}, {shape.codec}"):
                    for name, each in turn(shape, records):
                        runs.setdefault(name, []).append(each)
        for name in ("produce", "consume", "catch up"):
            null_rate = _median(ceilings.get("produce" if name == "produce" else "consume", ()), _rate)
            bare_mb_s = payload_mb / (appending if name == "produce" else reading).clock_s
            yield [
                name, f"{shape.size} B", shape.batch, shape.codec,
                *_throughput_cells(found.get(name, []), null_rate, shape.size, bare_mb_s),
            ]  # fmt: skip

    def _server_turn(self, shape: Shape, records: int) -> Iterator[tuple[str, Run]]:
        with headrace(TOPIC, PARTITIONS, self.fsync) as (target, server):
            produced = load(target, self._producers(target, shape, records))
            yield "produce", produced
            for name in ("consume", "catch up"):
                consumed = load(target, self._consumers(target))
                if consumed.records != produced.records:
                    raise LoadFailed(f"{produced.records} records were produced, {consumed.records} consumed")
                yield name, consumed
                if name == "consume":
                    server.restart()

    def _null_turn(self, shape: Shape, records: int) -> Iterator[tuple[str, Run]]:
        with null("--partitions", str(PARTITIONS)) as target:
            yield "produce", load(target, self._producers(target, shape, records))
        whole = max(1, records // PARTITIONS // shape.per_batch) * shape.per_batch
        log = ["--log", *map(str, (whole, shape.size, shape.per_batch, CODECS[shape.codec]))]
        with null("--partitions", str(PARTITIONS), *log) as target:
            yield "consume", load(target, self._consumers(target))

    def _producers(self, target: Target, shape: Shape, records: int) -> list[Task]:
        return [
            Produce(
                servers=target.address,
                topic=TOPIC,
                partitions=PARTITIONS,
                records=records // self.processes,
                size=shape.size,
                settings=shape.settings,
            )
            for _ in range(self.processes)
        ]

    def _consumers(self, target: Target) -> list[Task]:
        shares = [list(range(PARTITIONS))[number :: self.processes] for number in range(self.processes)]
        return [Consume(servers=target.address, topic=TOPIC, partitions=share) for share in shares if share]

    # Requests

    def one_record_requests(self) -> str:
        """One connection, one partition, one record a request, as many under way as librdkafka sends ahead."""
        settings = {
            "enable.idempotence": "false",
            "linger.ms": "0",
            "batch.num.messages": "1",
            "max.in.flight.requests.per.connection": "1000",
        }

        def turn(target: Target) -> Run:
            task = Produce(
                servers=target.address,
                topic=TOPIC,
                partitions=1,
                records=self.requests,
                size=_REQUEST_BYTES,
                settings=settings,
            )
            return load(target, [task])

        found, ceilings = self._in_turns("one-record requests", turn)
        rate, null_rate = (_median(runs, _rate) for runs in (found, ceilings))
        cpu_us = [_median(found, partial(_cpu_per_record, name)) for name in (SERVER, VALKEY)]
        head = ["one-record requests", "requests/s", "null requests/s", "of null", "server CPU us", "Valkey CPU us"]
        return table(head, [[f"{_REQUEST_BYTES} B", rate, null_rate, ratio(rate, null_rate), *_scaled(cpu_us, 1e6)]])

    # Latency

    def latency(self, cells: Iterable[tuple[int, int]]) -> str:
        """From when a record was due to its arrival in a consumer, at a fixed rate."""
        rows: list[list[Cell]] = []
        for rate, linger_ms in cells:
            found, ceilings = self._in_turns(
                f"latency at {rate} records/s",
                partial(self._delays, rate, linger_ms),
            )
            ours, least = (
                [_median(runs, attrgetter(name)) for name in ("p50", "p99", "longest")] for runs in (found, ceilings)
            )
            ratios = [ratio(value, yardstick) for value, yardstick in zip(ours[:2], least[:2], strict=True)]
            rows.append([f"{rate:,} records/s", f"{linger_ms} ms", *ours, *least[:2], *ratios])
        head = [
            "latency",
            "linger",
            "p50 ms",
            "p99 ms",
            "max ms",
            "null p50 ms",
            "null p99 ms",
            "p50 of null",
            "p99 of null",
        ]
        return table(head, rows)

    def _delays(self, rate: int, linger_ms: int, target: Target) -> Delays:
        warm_up = int(rate * min(_WARM_UP_S, self.seconds))
        records = warm_up + max(2, int(rate * self.seconds))
        receive = Receive(servers=target.address, topic=TOPIC, records=records, warm_up=warm_up)
        settings = {"linger.ms": str(linger_ms), "enable.idempotence": "false"}
        send = Send(
            servers=target.address, topic=TOPIC, rate=rate, records=records, size=_REQUEST_BYTES, settings=settings
        )
        with Worker(receive) as receiver, Worker(send) as sender:
            receiver.start()
            sender.start()
            delays: Delays = receiver.result(Delays)
            return delays

    # Rounds

    def _in_turns(self, what: str, turn: Callable[[Target], Any]) -> tuple[list[Any], list[Any]]:
        """What a load gives on a fresh server and on the broker that relays and does nothing else, in turns."""
        found: list[Any] = []
        ceilings: list[Any] = []
        for number in range(self.rounds):
            for real in (True, False)[:: -1 if number % 2 else 1]:
                with self._counted(what):
                    if real:
                        with headrace(TOPIC, 1, self.fsync) as (target, _):
                            found.append(turn(target))
                    else:
                        with null("--relay") as target:
                            ceilings.append(turn(target))
        return found, ceilings

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        """Report a failed load, and keep the other rows."""
        try:
            yield
        except LoadFailed as error:
            self.failed = True
            print(f"failed: {what}: {error}", file=sys.stderr, flush=True)


def _throughput_cells(runs: list[Run], null_rate: float | None, size: int, bare_mb_s: float) -> list[Cell]:
    rate = _median(runs, _rate)
    megabytes, null_megabytes = _scaled([rate, null_rate], size / 1e6)
    cpu_s = [_median(runs, partial(_cpu_per_record, name)) for name in (SERVER, VALKEY)]
    return [
        megabytes,
        rate,
        null_megabytes,
        ratio(rate, null_rate),
        bare_mb_s,
        ratio(megabytes, bare_mb_s),
        *_scaled(cpu_s, 1e9 / size),
        *(_median(runs, partial(_peak_mb, name)) for name in (SERVER, VALKEY)),
        _median([each for each in runs if each.batches], lambda each: each.records / each.batches),
    ]


def _scaled(values: list[float | None], factor: float) -> list[float | None]:
    return [None if value is None else value * factor for value in values]


def _rate(each: Run) -> float:
    return each.rate


def _cpu_per_record(name: str, each: Run) -> float:
    return each.cpu_s[name] / each.records


def _peak_mb(name: str, each: Run) -> float:
    return each.peak_mb[name]


def _median(runs: Iterable[Any], value: Callable[[Any], float]) -> float | None:
    values = [value(each) for each in runs]
    return statistics.median(values) if values else None
