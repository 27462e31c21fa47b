"""Groups of KIP-848 and share groups: joins, heartbeats, shared records; with `--kafka`, Apache Kafka's too.

Groups of two and three are made of confluent-kafka's consumers. A large one is made of members that speak the protocol
themselves, on a few connections, each as often as the server asks. Servers take turns.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import uvloop
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.harness.consumers import FLIGHTS, ConsumerContext

from bench.connection import Connection
from bench.figures import HEADRACE, KAFKA, Figures, figures_table
from bench.load import LoadFailed, Produce, Worker, seconds
from bench.machine import client_library, describe
from bench.options import some_of
from bench.processes import cpu_s
from bench.share_load import Share, Shared
from bench.table import Cell
from bench.targets import Target, headrace, kafka, load
from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.model import TopicFacts
from headrace.protocol.messages import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest

T = TypeVar("T")

PARTS = ("join", "large", "heartbeats", "share")
_WIDE = 6
"""Partitions of small groups: shares of two and of three members are even."""
_SHARED_PARTITIONS = 4
_SHARES = ((100, 1, 500), (100, 4, 500), (100, 1, 5_000), (1_024, 1, 500), (1_024, 4, 500))
"""Bytes of a value, members, and records of a poll."""
_LIMIT_S = 60.0
_POLL_S = 0.002
_HEARTBEAT, _FIND = 1, 4
_CONNECTIONS = 8
_RETRIABLE = {14, 15, 16}
"""The coordinator loads, is not available, or is another one."""
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
    def _topic(self, target: Target, partitions: int) -> Iterator[str]:
        admin = AdminClient({"bootstrap.servers": target.address})
        name = f"newer-{next(self._numbers)}"
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_LIMIT_S)
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
            phase = _run(_form(target, topic, self._volume))
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
            phase = _run(_beat(target, topic, many))
        self._count("heartbeat that changes nothing: CPU", server, number, phase.cpu_s / many * 1e6)
        self._count("heartbeat that changes nothing: time", server, number, phase.seconds / many * 1e6)

    # Share groups

    def share(self) -> list[list[Cell]]:
        """Records of one topic, shared by the members of a new group. Each loads its own group."""
        rows: list[list[Cell]] = []
        for size, members, at_once in _SHARES:
            self._in_turns(partial(self._share, size, members, at_once))
            name = _shared(size, members, at_once)
            rows += [
                self._figures.row(name, "records/s", ">= Kafka's"),
                self._figures.row(f"{name}: CPU", "s per million", "<= Kafka's"),
            ]
        return [self._figures.row(_FIRST, "s", "< 1 s"), *rows]

    def _share(self, size: int, members: int, at_once: int, server: str, number: int) -> None:
        target, name = self._targets[server], _shared(size, members, at_once)
        records = max(_SHARED_PARTITIONS, self._volume.share_bytes // size)
        with self._topic(target, _SHARED_PARTITIONS) as topic:
            load(target, [Produce(
                servers=target.address, topic=topic, partitions=_SHARED_PARTITIONS, records=records, size=size,
                settings={"linger.ms": "5", "batch.size": "100000"},
            )])  # fmt: skip
            admin = AdminClient({"bootstrap.servers": target.address})
            earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
            group = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[earliest])
            admin.incremental_alter_configs([group])[group].result(_LIMIT_S)
            task = Share(servers=target.address, topic=topic, members=members, records=records, at_once=at_once)
            with Worker(task) as worker:
                meter = _Meter(target)
                worker.start()
                shared: Shared = worker.result(Shared)
                spent = meter.phase(0).cpu_s
        self._count(_FIRST, server, number, shared.first_s)
        self._count(name, server, number, records / seconds([shared.span]))
        self._count(f"{name}: CPU", server, number, spent / records * 1e6)


def _shared(size: int, members: int, at_once: int) -> str:
    return f"share, {size:,} B, consumers: {members}, {at_once:,} a poll"


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


class Phase(msgspec.Struct, frozen=True):
    """One change of a group, and what it cost the server with its storage."""

    seconds: float
    cpu_s: float
    heartbeats: int


class _Meter:
    def __init__(self, target: Target) -> None:
        self._pids = target.processes().values()
        self._before = sum(map(cpu_s, self._pids))
        self._began = time.monotonic()

    def phase(self, heartbeats: int) -> Phase:
        return Phase(time.monotonic() - self._began, sum(map(cpu_s, self._pids)) - self._before, heartbeats)


class _Group:
    """What the members of a group have."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.members: list[_Member] = []
        self.heartbeats = 0

    def is_shared(self, partitions: int) -> bool:
        """Whether each partition is with one member, shares are even, and all have the same epoch."""
        if len({member.epoch for member in self.members}) > 1:
            return False
        shares = [member.partitions for member in self.members]
        sizes = {len(share) for share in shares}
        return (
            sum(map(len, shares)) == partitions
            and len(frozenset().union(*shares)) == partitions
            and max(sizes) - min(sizes) <= 1
        )


class _Member:
    """A member that sends heartbeats as a client does: what it owns after each change, and nothing otherwise."""

    def __init__(self, group: _Group, connection: Connection, number: int) -> None:
        self._group = group
        self._connection = connection
        self._id = f"member-{number:05d}"
        self.epoch = 0
        self.partitions: frozenset[int] = frozenset()
        group.members.append(self)

    async def live(self) -> None:
        """Until it is cancelled."""
        owned: Any = []
        while True:
            response = await self._beat(owned)
            if response.error_code in _RETRIABLE:
                await asyncio.sleep(0.1)
                continue
            owned = None
            if response.assignment is not None:
                # A client gives up at once, and says so.
                owned = _as_owned(response.assignment)
                continue
            await asyncio.sleep(response.heartbeat_interval_ms / 1_000)

    async def _beat(self, owned: Any) -> Any:
        joins = self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group.name,
            member_id=self._id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=300_000 if joins else -1,
            subscribed_topic_names=[self._group.topic] if joins else None,
            topic_partitions=owned,
        )
        response = await self._connection.ask(request, _HEARTBEAT)
        self._group.heartbeats += 1
        if response.error_code == 0:
            if response.assignment is not None:
                parts = [index for each in response.assignment.topic_partitions for index in each.partitions]
                self.partitions = frozenset(parts)
            self.epoch = response.member_epoch
        elif response.error_code not in _RETRIABLE:
            raise LoadFailed(f"heartbeat with error {response.error_code}: {response.error_message}")
        return response

    async def leave(self) -> None:
        """Leave the group."""
        request = ConsumerGroupHeartbeatRequest(group_id=self._group.name, member_id=self._id, member_epoch=-1)
        await self._connection.ask(request, _HEARTBEAT)

    async def beat_alone(self, many: int) -> None:
        """Send heartbeats without content, one after the other."""
        request = ConsumerGroupHeartbeatRequest(group_id=self._group.name, member_id=self._id, member_epoch=self.epoch)
        for _ in range(many):
            response = await self._connection.ask(request, _HEARTBEAT)
            if response.error_code or response.assignment is not None:
                raise LoadFailed(f"a heartbeat that changes nothing was answered with {response}")


def _as_owned(assignment: Any) -> list[Any]:
    owned = ConsumerGroupHeartbeatRequest.TopicPartitions
    return [
        owned(topic_id=UUID(bytes=each.topic_id) if isinstance(each.topic_id, bytes) else each.topic_id,
              partitions=list(each.partitions))
        for each in assignment.topic_partitions
    ]  # fmt: skip


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return uvloop.run(work)
    except (TimeoutError, ConnectionError, ExceptionGroup) as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        raise LoadFailed(str(first) or f"not done after {_LIMIT_S:.0f} s") from error


@contextlib.asynccontextmanager
async def _connected(target: Target, many: int) -> Any:
    connections = [await Connection.connect(target.address) for _ in range(many)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def _find(connection: Connection, group: str) -> None:
    """Ask for the coordinator, as clients do. Kafka creates the topic of its groups at the first such request."""
    request = FindCoordinatorRequest(coordinator_keys=[group], key_type=0)
    while (await connection.ask(request, _FIND)).coordinators[0].error_code:
        await asyncio.sleep(0.1)


async def _form(target: Target, topic: str, volume: Volume) -> Phase:
    async with asyncio.timeout(_LIMIT_S), _connected(target, _CONNECTIONS) as connections:
        await _find(connections[0], topic)
        group = _Group(topic, topic)
        meter = _Meter(target)
        async with asyncio.TaskGroup() as tasks:
            members = [_Member(group, connections[each % _CONNECTIONS], each) for each in range(volume.members)]
            living = [tasks.create_task(member.live()) for member in members]
            while not group.is_shared(volume.partitions):
                await asyncio.sleep(0.02)
            phase = meter.phase(group.heartbeats)
            for task in living:
                task.cancel()
        await asyncio.gather(*(member.leave() for member in members))
        return phase


async def _beat(target: Target, topic: str, many: int) -> Phase:
    async with asyncio.timeout(_LIMIT_S), _connected(target, 1) as [connection]:
        await _find(connection, topic)
        group = _Group(topic, topic)
        member = _Member(group, connection, 0)
        living = asyncio.get_running_loop().create_task(member.live())
        while not group.is_shared(1):
            await asyncio.wait([living], timeout=0.02)
            if living.done():
                living.result()
        living.cancel()
        # Its last heartbeat may not have been answered yet, after which the next is.
        await asyncio.sleep(0.2)
        meter = _Meter(target)
        await member.beat_alone(many)
        phase = meter.phase(many)
        await member.leave()
        return phase


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
