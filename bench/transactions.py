"""Transactions: their throughput, what one alone takes, and many producers at once; with `--kafka`, Apache Kafka's too.

All rounds of a server are on one that runs throughout, each with topics of its own, after a round that does not count.
Servers take turns. The load comes from confluent-kafka.
"""

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import HEADRACE, KAFKA, Figures, figures_table
from bench.load import Consume, Produce, Worker
from bench.machine import client_library, describe
from bench.options import numbers, some_of
from bench.processes import cpu_s
from bench.table import Cell
from bench.targets import Run, Target, headrace, kafka, load
from bench.transactional_load import Transact, Transacted

PARTITIONS = 4
TRANSACTION_MS = 100
PRODUCERS = 8
PARTS = ("throughput", "single", "producers")
_WIDE = 16
_SETTINGS = {"enable.idempotence": "true", "linger.ms": "5", "batch.size": "1000000", "batch.num.messages": "100000"}
_PLAIN, _TRANSACTIONAL = "produce without transactions", f"produce, transactions of {TRANSACTION_MS} ms"
_UNCOMMITTED, _COMMITTED = "consume read_uncommitted", "consume read_committed"


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """How much a round moves."""

    total_bytes: int
    """Of values, in each throughput load."""
    single: int
    """Transactions of one producer."""
    each: int
    """Transactions of each of several producers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too: needs Java and Maven")
    parser.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--sizes", type=numbers, default=[100, 1024], help="bytes of a value in throughput (100,1024)")
    parser.add_argument("--megabytes", type=float, help="payload of a throughput load (100; quick: 10)")
    parser.add_argument("--transactions", type=int, help="of one producer in a round (1 000; quick: 100)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (5; quick: 1)")


def run(options: argparse.Namespace) -> int:
    quick = options.quick
    rounds = options.rounds or (1 if quick else 5)
    transactions = options.transactions or (100 if quick else 1_000)
    volume = Volume(
        total_bytes=int(1e6 * (options.megabytes or (10 if quick else 100))),
        single=transactions,
        each=max(2, transactions // 2),
    )
    print(
        describe(
            client=client_library(), acks="all", fsync="no", median_of=f"{rounds} rounds",
            megabytes_a_load=f"{volume.total_bytes / 1e6:g}",
        ),
        flush=True,
    )  # fmt: skip
    figures = Figures()
    with contextlib.ExitStack() as stack:
        targets = {HEADRACE: stack.enter_context(headrace("warm-up", 1))[0]}
        if options.kafka:
            targets[KAFKA] = stack.enter_context(kafka())[0]
        bench = Bench(figures, targets, volume, rounds)
        for part in options.parts:
            rows = bench.throughput(options.sizes) if part == "throughput" else getattr(bench, part)()
            print("\n" + figures_table(rows), flush=True)
    return int(figures.failed)


class Bench:
    """The parts of this bench, each a table."""

    def __init__(self, figures: Figures, targets: dict[str, Target], volume: Volume, rounds: int) -> None:
        self._figures = figures
        self._targets = targets
        self._volume = volume
        self._rounds = rounds
        self._numbers = itertools.count()

    # Throughput

    def throughput(self, sizes: list[int]) -> list[list[Cell]]:
        """Values of each size, as fast as it goes."""
        rows: list[list[Cell]] = []
        for size in sizes:
            self._in_turns(partial(self._throughput, size))
            row, share = self._figures.row, self._figures.share
            plain, transactional, uncommitted, committed = (
                f"{name}, {size} B" for name in (_PLAIN, _TRANSACTIONAL, _UNCOMMITTED, _COMMITTED)
            )
            rows += [
                row(plain, "MB/s"),
                row(transactional, "MB/s", ">= Kafka's"),
                share(f"produce with to without, {size} B", transactional, plain, ">= 0.9"),
                row(_cpu(plain), "s/GB"),
                row(_cpu(transactional), "s/GB"),
                row(uncommitted, "MB/s"),
                row(committed, "MB/s"),
                row(_cpu(uncommitted), "s/GB"),
                row(_cpu(committed), "s/GB"),
                share(f"committed to uncommitted, {size} B", committed, uncommitted, ">= 0.95"),
            ]
        return rows

    def _throughput(self, size: int, server: str, number: int) -> None:
        target = self._targets[server]
        records = max(PARTITIONS, self._volume.total_bytes // size // PARTITIONS * PARTITIONS)
        # What comes first has the colder server: they take turns.
        turn = -1 if number % 2 else 1
        with contextlib.ExitStack() as stack:
            topics = {name: stack.enter_context(self._topic(target, PARTITIONS)) for name in (_PLAIN, _TRANSACTIONAL)}
            for name in (_PLAIN, _TRANSACTIONAL)[::turn]:
                task = Produce(
                    servers=target.address, topic=topics[name], partitions=PARTITIONS, records=records, size=size,
                    settings=_SETTINGS, transaction_ms=TRANSACTION_MS if name == _TRANSACTIONAL else None,
                )  # fmt: skip
                self._moved(f"{name}, {size} B", server, number, load(target, [task]), size)
            for name in (_UNCOMMITTED, _COMMITTED)[::turn]:
                consume = Consume(
                    servers=target.address, topic=topics[_TRANSACTIONAL], partitions=list(range(PARTITIONS)),
                    isolation=name.rpartition(" ")[2], records=records,
                )  # fmt: skip
                self._moved(f"{name}, {size} B", server, number, load(target, [consume]), size)

    def _moved(self, figure: str, server: str, number: int, done: Run, size: int) -> None:
        self._count(figure, server, number, done.rate * size / 1e6)
        self._count(_cpu(figure), server, number, sum(done.cpu_s.values()) / (done.records * size / 1e9))

    # Small transactions

    def single(self) -> list[list[Cell]]:
        """One producer, whose transactions have a record in one partition, or in each of several."""
        for partitions in (1, _WIDE):
            self._in_turns(partial(self._single, partitions))
        row = self._figures.row
        whole, commit = ("from begin to committed, {} {}", "commit alone, {} {}")
        return [
            row(whole.format("1 partition", "p50"), "ms", "<= Kafka's"),
            row(whole.format("1 partition", "p99"), "ms", "<= Kafka's"),
            row(commit.format("1 partition", "p50"), "ms", "<= 1.5 ms"),
            row(commit.format("1 partition", "p99"), "ms", "<= 10 ms, <= Kafka's"),
            row(whole.format(f"{_WIDE} partitions", "p50"), "ms", "<= Kafka's"),
            row(whole.format(f"{_WIDE} partitions", "p99"), "ms"),
            row(_cpu("1 partition"), "ms each"),
            row(_cpu(f"{_WIDE} partitions"), "ms each"),
        ]

    def _single(self, partitions: int, server: str, number: int) -> None:
        words = f"{partitions} partition{'s' if partitions > 1 else ''}"
        places = [list(range(partitions))]
        found = self._transact(server, number, _cpu(words), partitions, places, self._volume.single)
        for name, delays in (("from begin to committed", found.whole), ("commit alone", found.commit)):
            for percentile, value in (("p50", delays.p50), ("p99", delays.p99)):
                self._count(f"{name}, {words} {percentile}", server, number, value)

    def producers(self) -> list[list[Cell]]:
        """Several producers at once, each with transactions of one record."""
        figures = rate, p50, p99 = [
            f"{PRODUCERS} producers, {name}" for name in ("one-record transactions", "p50", "p99")
        ]

        def turn(server: str, number: int) -> None:
            places = [[partition] for partition in range(PRODUCERS)]
            found = self._transact(server, number, _cpu(rate), PRODUCERS, places, self._volume.each)
            for figure, value in zip(figures, (found.rate, found.whole.p50, found.whole.p99), strict=True):
                self._count(figure, server, number, value)

        self._in_turns(turn)
        row = self._figures.row
        return [
            row(rate, "transactions/s", ">= 1.5 of Kafka"), row(p50, "ms"), row(p99, "ms"), row(_cpu(rate), "ms each"),
        ]  # fmt: skip

    def _transact(
        self, server: str, number: int, cpu: str, partitions: int, places: list[list[int]], transactions: int
    ) -> Transacted:
        target = self._targets[server]
        with self._topic(target, partitions) as topic:
            task = Transact(
                servers=target.address, topic=topic, places=places, transactions=transactions,
                warm_up=min(50, transactions // 2),
            )  # fmt: skip
            with Worker(task) as worker:
                before = _cpu_s(target)
                worker.start()
                found: Transacted = worker.result(Transacted)
                spent_ms = 1e3 * (_cpu_s(target) - before)
                self._count(cpu, server, number, spent_ms / (transactions * len(places)))
                return found

    # Rounds

    def _in_turns(self, turn: Callable[[str, int], None]) -> None:
        self._figures.in_turns({name: partial(turn, name) for name in self._targets}, self._rounds)

    def _count(self, figure: str, server: str, number: int, value: float) -> None:
        if number >= 0:
            self._figures.add(figure, server, value)

    @contextlib.contextmanager
    def _topic(self, target: Target, partitions: int) -> Iterator[str]:
        """A topic for a round."""
        admin = AdminClient({"bootstrap.servers": target.address, "log_level": 3})
        name = f"bench-{next(self._numbers)}"
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(30)


def _cpu(figure: str) -> str:
    return f"{figure}: CPU"


def _cpu_s(target: Target) -> float:
    return sum(cpu_s(pid) for pid in target.processes().values())
