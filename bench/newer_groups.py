"""Groups of KIP-848 and share groups: joins, heartbeats, shared records; with `--kafka`, Apache Kafka's too.

Groups of two and three are made of confluent-kafka's consumers. A large one is made of members that speak the protocol
themselves, on a few connections, each as often as the server asks. Servers take turns.
"""

import argparse
import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.harness.consumers import FLIGHTS, ConsumerContext

from bench.figures import HEADRACE, KAFKA, Figures, figures_table
from bench.group_members import beat, form, run_members
from bench.load import LoadFailed, Produce, Worker, seconds
from bench.machine import client_library, describe
from bench.options import some_of
from bench.share_load import Share, Shared
from bench.table import Cell
from bench.targets import Meter, Target, headrace, kafka, load
from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.model import TopicFacts

PARTS = ("join", "large", "heartbeats", "share")
_WIDE = 6
"""Partitions of small groups: shares of two and of three members are even."""
_SHARED_PARTITIONS = 4
_NATIVE_SHARE = 3
"""A native topic, which is slower, has one of this many records of a log topic."""
_LIMIT_S = 60.0
_POLL_S = 0.002
_TWO, _THIRD = "two consumers: both have partitions", "third consumer: it has its share"
_ALL = "{} members, {} partitions: first join to all assigned"
_FIRST = "first share record after subscribing, group new"
_PURE = "heartbeat that changes nothing: pure machine"


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """How much a round does."""

    members: int
    partitions: int
    heartbeats: int
    share_bytes: int
    """Of values, for each share group."""


class Sharing(msgspec.Struct, frozen=True):
    """Members that share a topic."""

    size: int
    """Bytes of a value."""
    members: int
    at_once: int
    """Records of a poll."""
    native: bool = False

    @property
    def name(self) -> str:
        """Name of its figures."""
        kind = "share, native topic" if self.native else "share"
        return f"{kind}, {self.size:,} B, consumers: {self.members}, {self.at_once:,} a poll"


_SHARED = (
    Sharing(100, 1, 500),
    Sharing(100, 4, 500),
    Sharing(100, 1, 5_000),
    Sharing(1_024, 1, 500),
    Sharing(1_024, 4, 500),
)
_NATIVE = Sharing(100, 2, 500, native=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too: needs Java and Maven")
    parser.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--members", type=int, help="members and partitions of the large group (1 000; quick: 50)")
    parser.add_argument("--heartbeats", type=int, help="heartbeats of a round that change nothing (10 000; quick: 500)")
    parser.add_argument("--megabytes", type=float, help="payload that a share group reads (30; quick: 1)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (3; quick: 1)")


def run(options: argparse.Namespace) -> int:
    quick = options.quick
    rounds = options.rounds or (1 if quick else 3)
    members = options.members or (50 if quick else 1_000)
    volume = Volume(
        members=members,
        partitions=members,
        heartbeats=options.heartbeats or (500 if quick else 10_000),
        share_bytes=int(1e6 * (options.megabytes or (1 if quick else 30))),
    )
    print(describe(client=client_library(), fsync="no", median_of=f"{rounds} rounds"), flush=True)
    figures = Figures()
    with contextlib.ExitStack() as stack:
        targets = {HEADRACE: stack.enter_context(headrace("warm-up", 1))[0]}
        if options.kafka:
            targets[KAFKA] = stack.enter_context(kafka())[0]
        bench = Bench(figures, targets, volume, rounds)
        for part in options.parts:
            print("\n" + figures_table(getattr(bench, part)()), flush=True)
    return int(figures.failed)


class Bench:
    """The parts of this bench, each a table."""

    def __init__(self, figures: Figures, targets: dict[str, Target], volume: Volume, rounds: int) -> None:
        self._figures = figures
        self._targets = targets
        self._volume = volume
        self._rounds = rounds
        self._numbers = itertools.count()

    def _in_turns(self, measure: Any, *, warm_up: bool = True) -> None:
        turns = {server: partial(measure, server) for server in self._targets}
        self._figures.in_turns(turns, self._rounds, warm_up=warm_up)

    def _count(self, figure: str, server: str, number: int, value: float) -> None:
        if number >= 0:
            self._figures.add(figure, server, value)

    @contextlib.contextmanager
    def _topic(self, target: Target, partitions: int, config: dict[str, str] | None = None) -> Iterator[str]:
        admin = AdminClient({"bootstrap.servers": target.address})
        name = f"newer-{next(self._numbers)}"
        admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(_LIMIT_S)
        deadline = time.monotonic() + _LIMIT_S
        # Kafka says that a topic is there before all of it is.
        while len(admin.list_topics(name, timeout=60).topics[name].partitions) < partitions:
            if time.monotonic() > deadline:
                raise LoadFailed(f"topic {name} has not all partitions")
            time.sleep(0.05)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(_LIMIT_S)

    # Small groups

    def join(self) -> list[list[Cell]]:
        """Consumers of a client library: from subscribing to records."""
        self._in_turns(self._join, warm_up=False)
        return [self._figures.row(_TWO, "s", "< 0.7 s"), self._figures.row(_THIRD, "s", "< 0.6 s")]

    def _join(self, server: str, number: int) -> None:
        target = self._targets[server]
        with self._topic(target, _WIDE) as topic, contextlib.ExitStack() as stack:
            consumers = [stack.enter_context(_consumer(target, topic)) for _ in range(3)]
            two = consumers[:2]
            began = time.monotonic()
            for consumer in two:
                consumer.subscribe([topic])
            self._count(_TWO, server, number, _until_shared(two, began))
            began = time.monotonic()
            consumers[2].subscribe([topic])
            self._count(_THIRD, server, number, _until_shared(consumers, began))

    # The large group

    def large(self) -> list[list[Cell]]:
        """Members of one group that begin at once."""
        self._in_turns(self._large, warm_up=False)
        row, figure = self._figures.row, self._of_large()
        required = ("< 3 s", "<= 2.5 s") if self._volume.members == 1_000 else ("", "")
        return [
            row(figure, "s", required[0]),
            row(f"{figure}: CPU", "s", required[1]),
            row(f"{figure}: heartbeats", "each"),
        ]

    def _of_large(self) -> str:
        return _ALL.format(f"{self._volume.members:,}", f"{self._volume.partitions:,}")

    def _large(self, server: str, number: int) -> None:
        target, figure = self._targets[server], self._of_large()
        with self._topic(target, self._volume.partitions) as topic:
            phase = run_members(form(target, topic, self._volume.members, self._volume.partitions))
        self._count(figure, server, number, phase.seconds)
        self._count(f"{figure}: CPU", server, number, phase.cpu_s)
        self._count(f"{figure}: heartbeats", server, number, phase.heartbeats)

    # Heartbeats

    def heartbeats(self) -> list[list[Cell]]:
        """Heartbeats that change nothing, one after the other."""
        self._in_turns(self._heartbeats)
        for number in range(self._rounds):
            self._count(_PURE, HEADRACE, number, _pure(self._volume.heartbeats))
        return [
            self._figures.row("heartbeat that changes nothing: CPU", "µs", "<= 100 µs"),
            self._figures.row("heartbeat that changes nothing: time", "µs"),
            self._figures.row(_PURE, "µs", "<= 8 µs"),
        ]

    def _heartbeats(self, server: str, number: int) -> None:
        target, many = self._targets[server], self._volume.heartbeats
        with self._topic(target, 1) as topic:
            phase = run_members(beat(target, topic, many))
        self._count("heartbeat that changes nothing: CPU", server, number, phase.cpu_s / many * 1e6)
        self._count("heartbeat that changes nothing: time", server, number, phase.seconds / many * 1e6)

    # Share groups

    def share(self) -> list[list[Cell]]:
        """Records of one topic, shared by the members of a new group. Each loads its own group."""
        rows: list[list[Cell]] = []
        for one in _SHARED:
            self._in_turns(partial(self._share, one))
            rows += [
                self._figures.row(one.name, "records/s", ">= Kafka's"),
                self._figures.row(f"{one.name}: CPU", "s per million", "<= Kafka's"),
            ]
        self._figures.in_turns({HEADRACE: partial(self._share, _NATIVE, HEADRACE)}, self._rounds)
        rows += [
            self._figures.row(_NATIVE.name, "records/s", ">= 40,000"),
            self._figures.row(f"{_NATIVE.name}: CPU", "s per million"),
        ]
        return [self._figures.row(_FIRST, "s", "< 1 s"), *rows]

    def _share(self, one: Sharing, server: str, number: int) -> None:
        target = self._targets[server]
        records = max(_SHARED_PARTITIONS, self._volume.share_bytes // one.size // (_NATIVE_SHARE if one.native else 1))
        config = {"headrace.storage": "native"} if one.native else {}
        with self._topic(target, _SHARED_PARTITIONS, config) as topic:
            load(target, [Produce(
                servers=target.address, topic=topic, partitions=_SHARED_PARTITIONS, records=records, size=one.size,
                settings={"linger.ms": "5", "batch.size": "100000"},
            )])  # fmt: skip
            admin = AdminClient({"bootstrap.servers": target.address})
            earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
            group = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[earliest])
            admin.incremental_alter_configs([group])[group].result(_LIMIT_S)
            task = Share(servers=target.address, topic=topic, members=one.members, records=records, at_once=one.at_once)
            with Worker(task) as worker:
                meter = Meter(target)
                worker.start()
                shared: Shared = worker.result(Shared)
                spent = meter.phase(0).cpu_s
        if not one.native:
            self._count(_FIRST, server, number, shared.first_s)
        self._count(one.name, server, number, records / seconds([shared.span]))
        self._count(f"{one.name}: CPU", server, number, spent / records * 1e6)


@contextlib.contextmanager
def _consumer(target: Target, group: str) -> Iterator[Any]:
    from confluent_kafka import Consumer  # noqa: PLC0415  # takes a while to load

    consumer = Consumer(
        {
            "bootstrap.servers": target.address,
            "group.id": group,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )
    try:
        consumer.list_topics(group, timeout=60)
        yield consumer
    finally:
        consumer.close()


def _until_shared(consumers: list[Any], began: float) -> float:
    """Seconds until the consumers have equal shares of all partitions."""
    while True:
        for consumer in consumers:
            consumer.poll(_POLL_S)
        shares = [len(consumer.assignment()) for consumer in consumers]
        taken = time.monotonic() - began
        if shares == [_WIDE // len(consumers)] * len(consumers):
            return taken
        if taken > _LIMIT_S:
            raise LoadFailed(f"the consumers have {shares} of {_WIDE} partitions after {_LIMIT_S:.0f} s")


def _pure(many: int) -> float:
    """Microseconds of a heartbeat that changes nothing on the machine alone, one of a thousand members."""
    context = ConsumerContext()
    context.checking = False
    context.facts["flights"] = TopicFacts(FLIGHTS, 1_000)
    members = [f"member-{number}" for number in range(1_000)]
    for member in members:
        context.enter(member)
    context.sleep(1_000)
    context.settle(*members)
    now, size = context.now, len(members)
    requests = [
        ConsumerHeartbeat(
            token=0,
            member_id=members[number % size],
            member_epoch=context.epochs[members[number % size]],
            client_id="client",
            client_host="/127.0.0.1",
        )
        for number in range(many)
    ]
    began = time.process_time()
    for request in requests:
        context.whole.handle(request, now)
    return (time.process_time() - began) / many * 1e6
