"""Several brokers: their cost, and the delays of clients when a broker or a shard fails.

`cost` produces and consumes at 1, 2 and 4 brokers over one Redis and over a Redis Cluster of three shards, next to a
single server with its embedded Valkey. The main figure is the cost per broker with the *same load and the same number
of partitions for each*, since brokers are added for more work. A second measurement shares one load among all brokers
at full speed. A broker at its limit finds many requests at each wake-up and is cheapest per GB. Four brokers with a
quarter of that load find fewer requests, and wake up four times as often. Everything is idle before a measurement, and
no Redis rewrites its file during it.

`broker` kills one of three under a steady load, and stops one in order; `shard` kills a primary of the cluster;
`groups` moves a broker's share of many groups; `metadata` requests all metadata. All processes share this machine: with
more processes than cores, CPU s/GB is meaningful, MB/s is not.
"""

import argparse
import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import msgspec
from tests.harness.brokers import KEPT, Brokers, brokers_at
from tests.harness.redis import RedisServer
from tests.harness.redis_cluster import RedisCluster
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from bench.kafka import Shape
from bench.load import Consume, Produce
from bench.machine import client_library, describe
from bench.processes import age_s, cpu_s
from bench.table import Cell, table
from bench.targets import Run, Target, headrace, load
from headrace.protocol.messages import MetadataRequest, OffsetCommitRequest, OffsetFetchRequest

PARTS = ("cost", "broker", "shard", "groups", "metadata")
PARTITIONS = 12
TOPIC, EACH = "bench", "bench-each"
"""Of so many partitions altogether, and for each broker."""
_BROKERS, _STORAGE = "broker", "storage"
_SHAPE = Shape(1_024, "16KB", "none")
_EACH_BYTES_S = 5e6
"""What each broker gets where all get the same: little enough for four, six Redis and a client on two cores."""
_EACH_PART = 4
"""Of the payload of a row, so much less for each broker there."""
_STARTED_S = 5.0
_AT_REST = 0.03
"""Of a core: what a process at rest takes less than."""
_NO_REWRITING = {"auto-aof-rewrite-percentage": "0"}
_TOPICS = 100
_METADATA_VERSIONS = (9, 10, 11)
"""Flexible versions that no other client uses here."""
_PAUSE_S, _SERVED_S, _SHARD_S, _METADATA_MS, _WITHIN = 1.0, 5.0, 1.0, 20.0, 0.15
"""What is asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--counts", type=lambda text: [int(word) for word in text.split(",")], help="brokers (1,2,4)")
    parser.add_argument("--megabytes", type=float, help="payload of cost as fast as it goes (200; quick: 2)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (3; quick: 1)")
    parser.add_argument("--groups", type=int, help="groups that have committed (1 000; quick: 30)")
    parser.add_argument("--partitions", type=int, help="of all topics together, for Metadata (10 000; quick: 300)")


def run(options: argparse.Namespace) -> None:
    quick = options.quick
    rounds = options.rounds or (1 if quick else 3)
    megabytes = options.megabytes or (2 if quick else 200)
    counts = options.counts or ([1, 2] if quick else [1, 2, 4])
    print(
        describe(
            client=client_library(), acks="all", partitions=PARTITIONS, values="1 KiB", batches=_SHAPE.batch,
            median_of=f"{rounds} rounds", megabytes_a_row=f"{megabytes:g}",
        ),
        flush=True,
    )  # fmt: skip
    parts: dict[str, Callable[[], str]] = {
        "cost": lambda: _cost(counts, int(megabytes * 1e6), rounds, _at_once if quick else _rest),
        "broker": lambda: _broker_goes(rounds),
        "shard": lambda: _shard_goes(rounds),
        "groups": lambda: _groups_move(options.groups or (30 if quick else 1_000)),
        "metadata": lambda: _metadata(options.partitions or (300 if quick else 10_000)),
    }
    for name in options.parts:
        print("\n" + parts[name](), flush=True)


# Cost


class Storage(msgspec.Struct, frozen=True):
    """What brokers are started over."""

    url: str
    pids: Callable[[], list[int]]


@contextlib.contextmanager
def _one_redis() -> Iterator[Storage]:
    with RedisServer(None, KEPT | _NO_REWRITING) as redis:
        yield Storage(redis.url, lambda: [redis.pid])


@contextlib.contextmanager
def _cluster() -> Iterator[Storage]:
    with RedisCluster() as cluster:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", *next(iter(_NO_REWRITING.items())))
        yield Storage(cluster.url, lambda: [node.pid for node in cluster.nodes])


@contextlib.contextmanager
def _over(storage: Storage, count: int) -> Iterator[Target]:
    with brokers_at(storage.url, count) as over:
        _create(over, TOPIC, PARTITIONS)
        _create(over, EACH, PARTITIONS * count)
        pids = {f"{_BROKERS} {node}": each.pid for node, each in over.servers.items()}
        yield Target(over.kafka, lambda: pids | {f"{_STORAGE} {pid}": pid for pid in storage.pids()})


@contextlib.contextmanager
def _embedded() -> Iterator[Target]:
    with headrace(TOPIC, PARTITIONS) as (target, server):
        with Wire(server.kafka) as client:
            client.create(EACH, PARTITIONS)
        yield Target(
            target.address,
            lambda: {f"{_BROKERS} 1": server.pid, f"{_STORAGE} {server.storage_pid}": server.storage_pid},
        )


def _cost(counts: list[int], total_bytes: int, rounds: int, rest: Callable[[Target], None]) -> str:
    ways: dict[tuple[str, int], list[dict[str, Run]]] = {("embedded", 1): []}
    ways |= {(storage, count): [] for storage in ("one Redis", "cluster of 3 + 3") for count in counts}
    for number in range(rounds):
        # In alternating order, so that other work of the machine affects each of them.
        for (storage, count), found in list(ways.items())[:: -1 if number % 2 else 1]:
            with contextlib.ExitStack() as stack:
                if storage == "embedded":
                    target = stack.enter_context(_embedded())
                else:
                    kept = stack.enter_context(_one_redis() if storage == "one Redis" else _cluster())
                    target = stack.enter_context(_over(kept, count))
                found.append(_moved(target, count, total_bytes, rest))
    rows: list[list[Cell]] = []
    for what in next(iter(ways.values()))[0]:
        for (storage, count), turns in ways.items():
            runs = [each[what] for each in turns]
            gigabytes = statistics.median(each.records for each in runs) * _SHAPE.size / 1e9
            brokers_s, storage_s = (_median_cpu(runs, name) / gigabytes for name in (_BROKERS, _STORAGE))
            mb_s = statistics.median(each.rate for each in runs) * _SHAPE.size / 1e6
            alone = next((row for row in rows if row[:2] == [what, storage]), None)
            first = sum(cell for cell in alone[4:6] if isinstance(cell, float)) if alone else brokers_s + storage_s
            both = brokers_s + storage_s
            rows.append([what, storage, count, mb_s, brokers_s, storage_s, both, both / first if first else None])
    head = ["", "storage", "brokers", "MB/s", "brokers CPU s/GB", "storage CPU s/GB", "both", "of one broker"]
    asked = f"Asked for: 2 and 4 brokers within {_WITHIN:.0%} of one, at the same load for each."
    return table(head, rows) + "\n\n" + asked


def _moved(target: Target, count: int, total_bytes: int, rest: Callable[[Target], None]) -> dict[str, Run]:
    """What is measured -> what was."""
    each, each_bytes = PARTITIONS * count, total_bytes // _EACH_PART * count
    loads: dict[str, Produce | Consume] = {
        f"produce, {_EACH_BYTES_S / 1e6:g} MB/s each": _produce(target, EACH, each, each_bytes, _EACH_BYTES_S * count),
        "produce, all there is": _produce(target, TOPIC, PARTITIONS, total_bytes),
        "consume": Consume(servers=target.address, topic=EACH, partitions=list(range(each))),
    }
    found = {}
    for what, task in loads.items():
        rest(target)
        found[what] = load(target, [task])
    return found


def _produce(target: Target, topic: str, partitions: int, total_bytes: int, bytes_s: float | None = None) -> Produce:
    return Produce(
        servers=target.address,
        topic=topic,
        partitions=partitions,
        records=total_bytes // _SHAPE.size,
        size=_SHAPE.size,
        settings=_SHAPE.settings,
        bytes_s=bytes_s,
    )


def _at_once(_: Target) -> None:
    """Skip the wait for idle brokers, for runs whose figures are not used."""


def _rest(target: Target) -> None:
    """Wait until all processes have finished their start and are idle."""
    while True:
        before = {pid: cpu_s(pid) for pid in target.processes().values()}
        time.sleep(1)
        started = min(age_s(pid) for pid in before) > _STARTED_S
        if started and all(cpu_s(pid) - was <= _AT_REST for pid, was in before.items()):
            return


def _median_cpu(runs: list[Run], prefix: str) -> float:
    return statistics.median(sum(s for name, s in each.cpu_s.items() if name.startswith(prefix)) for each in runs)


# Waiting


class Steady:
    """An idempotent producer: a record to each partition every 5 ms, and when each was answered."""

    _EVERY_S = 0.005

    def __init__(self, kafka: str, topic: str) -> None:
        """It begins at once."""
        from confluent_kafka import Producer  # noqa: PLC0415  # takes a while to load

        settings: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "linger.ms": 0,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 0,
        }
        self._producer = Producer(settings)
        self._topic = topic
        self._stop = threading.Event()
        self.answered: list[tuple[int, float, float]] = []
        """Partition, when the record was sent, and when its answer came, in s of the monotonic clock."""
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._EVERY_S):
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self._topic, b"x" * 100, partition=partition, on_delivery=self._report(partition, time.monotonic())
                )
            self._producer.poll(0)
        self._producer.flush(60)

    def _report(self, partition: int, sent: float) -> Callable[[Any, Any], None]:
        def report(error: Any, _message: Any) -> None:
            if error is not None:
                self.refused.append(str(error))
            self.answered.append((partition, sent, time.monotonic()))

        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.refused:
            raise RuntimeError(f"{len(self.refused)} records were refused: {self.refused[0]}")

    def waits(self, since: float, until: float) -> list[float]:
        """How long the records that were sent in a time waited for their answers, in s, sorted."""
        return sorted(answered - sent for _, sent, answered in self.answered if since <= sent < until)

    def longest_by_partition(self, since: float) -> dict[int, float]:
        """The longest time without an answer, in s."""
        last: dict[int, float] = {}
        longest: dict[int, float] = {}
        for partition, _, answered in self.answered:
            if answered >= since:
                gap = answered - last.get(partition, since)
                longest[partition] = max(longest.get(partition, 0.0), gap)
                last[partition] = answered
        return longest

    def quiet_again(self, since: float) -> bool:
        """Whether every partition has answered records that were sent a second after `since`, or later."""
        found = {partition for partition, sent, _ in list(self.answered) if sent > since + 1}
        return len(found) == PARTITIONS


_WATCHED_S = 30.0
"""Records sent in this time after the fault are checked: about as long as an operator watches a dashboard."""


def _broker_goes(rounds: int) -> str:
    rows: list[list[Cell]] = []
    with _one_redis() as storage, brokers_at(storage.url, 3) as over:
        _create(over, TOPIC, PARTITIONS)
        for what, how in (("killed", "kill"), ("ended in order", "stop")):
            found: list[list[float]] = []
            for _ in range(rounds):
                with Steady(over.kafka, TOPIC) as steady:
                    wait_for(lambda: steady.quiet_again(0), "answers")
                    began = time.monotonic()
                    getattr(over.servers[3], how)()
                    wait_for(lambda: steady.quiet_again(began), "answers for every partition")  # noqa: B023
                    time.sleep(max(0.0, began + _WATCHED_S - time.monotonic()))
                waits = steady.waits(began, began + _WATCHED_S)
                gaps = sorted(steady.longest_by_partition(began).values())
                found.append([_at(waits, 0.5), _at(waits, 0.99), waits[-1], statistics.median(gaps)])
                over.start(3)
                over.agree([1, 2, 3])
            middle = [statistics.median(each) for each in zip(*found, strict=True)]
            rows.append([f"a broker of three is {what}", middle[0] * 1e3, middle[1], middle[2], middle[3]])
    head = ["accident", "p50 ms", "p99 s", "longest s", "longest pause of the median partition, s"]
    return (
        table(head, rows)
        + f"\n\nOf all records sent in {_WATCHED_S:.0f} s from it on. Asked for: p99 <= {_PAUSE_S:g} s."
    )


def _shard_goes(rounds: int) -> str:
    rows: list[list[Cell]] = []
    with RedisCluster() as cluster, brokers_at(cluster.url, 3) as over:
        _create(over, TOPIC, PARTITIONS)
        for what in ("killed", "CLUSTER FAILOVER"):
            found = []
            for _ in range(rounds):
                with Steady(over.kafka, TOPIC) as steady:
                    wait_for(lambda: steady.quiet_again(0), "answers")
                    primary = next(node for node in cluster.running if node.is_primary)
                    replica = cluster.drain(primary) if what == "killed" else cluster.replica_of(primary)
                    began = time.monotonic()
                    if what == "killed":
                        primary.kill()
                        wait_for(lambda: replica.is_primary, "the replica to take over")  # noqa: B023
                    else:
                        cluster.fail_over(primary)
                    redis_s = time.monotonic() - began
                    wait_for(lambda: steady.quiet_again(began + redis_s), "answers for every partition")  # noqa: B023
                pause_s = max(steady.longest_by_partition(began).values())
                found.append((redis_s, pause_s, pause_s - redis_s))
                if what == "killed":
                    primary.start()
                    wait_for(lambda: primary.is_replica_of(replica), "it to follow")  # noqa: B023
                cluster.agree()
            rows.append([f"primary: {what}", *(statistics.median(each) for each in zip(*found, strict=True))])
    head = ["accident", "Redis' own failover s", "longest pause of a partition s", "more than Redis' s"]
    return table(head, rows) + f"\n\nAsked for: at most {_SHARD_S:g} s more."


# Groups, Metadata


def _groups_move(count: int) -> str:
    rows: list[list[Cell]] = []
    with _one_redis() as storage, brokers_at(storage.url, 3) as over:
        _create(over, "committed", 1)
        names = [f"group-{number}" for number in range(count)]
        _commit(over, names)
        for what, how in (("ends in order", "stop"), ("is killed", "kill")):
            before = {node: cpu_s(over.servers[node].pid) for node in (1, 2)}
            getattr(over.servers[3], how)()
            began = time.monotonic()
            _until_answered(over, names, [1, 2])
            took = time.monotonic() - began
            spent = sum(cpu_s(over.servers[node].pid) - before[node] for node in (1, 2))
            rows.append([f"{count} groups, one broker of three {what}", took, spent, _SERVED_S])
            over.start(3)
            over.agree([1, 2, 3])
            began = time.monotonic()
            _until_answered(over, names, [1, 2, 3])
            rows.append([f"{count} groups, it comes back", time.monotonic() - began, None, _SERVED_S])
    return table(["until every group is answered for", "s", "CPU s of the others", "asked for"], rows)


def _commit(over: Brokers, names: list[str]) -> None:
    place = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="committed", partitions=[place])
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(address)) for address in over.addresses.values()]
        for name in names:
            request = OffsetCommitRequest(group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=[topic])

            def taken(request: OffsetCommitRequest = request) -> bool:
                return any(wire.ask(request, 8).topics[0].partitions[0].error_code == 0 for wire in wires)

            wait_for(taken, f"{name} to have committed")


def _until_answered(over: Brokers, names: list[str], nodes: list[int]) -> None:
    """Ask every broker for all groups, again and again, until each was answered for by one of them."""
    left = set(names)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(over.addresses[node])) for node in nodes]

        def all_answered() -> bool:
            asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in sorted(left)]
            for wire in wires:
                for found in wire.ask(OffsetFetchRequest(groups=asked), 8).groups:
                    if found.error_code == 0 and found.topics:
                        left.discard(found.group_id)
            return not left

        wait_for(all_answered, "every group")


def _metadata(partitions: int) -> str:
    each = max(1, partitions // _TOPICS)
    rows: list[list[Cell]] = []
    with _one_redis() as storage, brokers_at(storage.url, 3) as over:
        for number in range(_TOPICS):
            _create(over, f"many-{number}", each)
        # What was answered in a version is kept until leaders change: a first answer is what one is after that.
        for what, versions in (("first answers", _METADATA_VERSIONS), ("answers", _METADATA_VERSIONS[-1:] * 50)):
            found = [_asked_ms(address, version) for address in over.addresses.values() for version in versions]
            took, size = sorted(ms for ms, _ in found), max(size for _, size in found)
            row = f"{each * _TOPICS} partitions in {_TOPICS} topics, {what}"
            rows.append([row, size / 1e3, _at(took, 0.5), _at(took, 0.99), _METADATA_MS])
    return table(["Metadata of all, as bytes", "kB", "p50 ms", "p99 ms", "asked for"], rows)


def _asked_ms(address: str, version: int) -> tuple[float, int]:
    """How long Metadata of all took, and its bytes."""
    with Wire(address, timeout_s=60) as wire:
        frame = wire.head(MetadataRequest.API_KEY, version) + b"".join(MetadataRequest(topics=None).encode(version))
        wire.ask(MetadataRequest(topics=[]), version)
        began = time.monotonic()
        wire.send_frame(frame)
        size = len(wire.receive_frame())
        return (time.monotonic() - began) * 1e3, size


def _create(over: Brokers, name: str, partitions: int) -> None:
    """A topic that every broker knows, all of whose partitions have been opened by their leaders."""
    over.asked(1, lambda wire: wire.create(name, partitions))

    def known() -> bool:
        found: list[Mapping[int, int]] = [over.leaders(node, name) for node in over.running]
        return all(len(leaders) == partitions and -1 not in leaders.values() for leaders in found)

    wait_for(known, f"{name} on every broker")


def _at(ordered: list[float], part: float) -> float:
    """A quantile of what is sorted."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
