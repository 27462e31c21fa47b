"""The cost of membership and metadata by the number of brokers.

Two methods. The first runs the scripts of brokers against a Valkey with that many members: it measures the cost of a
heartbeat for Redis and the broker, and the bytes moved. The second runs the deterministic simulation of membership
(tests/simulation/test_membership.py): that many brokers start at once, and one of them dies, on a manual clock. It
counts the changes of membership, and the time until all brokers have adopted the last one.
"""

import argparse
import asyncio
import time
from typing import Any

import msgspec
from tests.harness.redis import RedisServer
from tests.simulation.test_membership import INTERVAL_MS, SESSION_MS, Broker, Redis, World

from bench.machine import describe
from bench.processes import cpu_s
from bench.table import Cell, table
from headrace.kafka.apis.metadata import PartitionsEncoder
from headrace.membership.participant import Proposal
from headrace.membership.view import Leader, Member, Rendezvous, View, joined
from headrace.protocol.encoder import EncodedArray
from headrace.protocol.messages import MetadataResponse
from headrace.storage.brokers import RedisMembership
from headrace.storage.fence import Fence
from headrace.storage.redis.clients import asynchronous

_TOPICS = 100
_BEATS_A_S = 1_000 / INTERVAL_MS
_LONGEST_MS = 600_000
_MOST_AT_ONCE = 100
"""More do not join at once: they are there when the simulation begins."""
_METADATA_VERSION = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", type=lambda text: [int(word) for word in text.split(",")], help="10,100,1000")
    parser.add_argument("--partitions", type=int, help="of all topics together (10 000; quick: 1 000)")


def run(options: argparse.Namespace) -> None:
    counts = options.brokers or ([3, 10] if options.quick else [10, 100, 1_000])
    partitions = options.partitions or (1_000 if options.quick else 10_000)
    print(describe(heartbeat=f"every {INTERVAL_MS} ms", missed_after=f"{SESSION_MS} ms", partitions=partitions))
    beats = [asyncio.run(_beating(count, 200 if options.quick else 1_000)) for count in counts]
    rows: list[list[Cell]] = [
        [
            count, beat.answer_bytes / 1e3, beat.redis_us, beat.broker_us,
            count * _BEATS_A_S * beat.redis_us / 1e4, _BEATS_A_S * beat.broker_us / 1e4,
            count * _BEATS_A_S * beat.answer_bytes / 1e6,
        ]
        for count, beat in zip(counts, beats, strict=True)
    ]  # fmt: skip
    head = [
        "brokers", "kB an answer", "us of Redis a heartbeat", "us of the broker", "% of Redis' core in all",
        "% of each broker's core", "MB/s from Redis in all",
    ]  # fmt: skip
    print("\nheartbeats, measured\n\n" + table(head, rows), flush=True)
    head = [
        "brokers", "views until all have joined", "s until then", "views after a death", "s until all go by the last",
        "heartbeats a s",
    ]  # fmt: skip
    print(
        "\njoining at once, and a death, simulated\n\n" + table(head, [_simulated(count) for count in counts]),
        flush=True,
    )
    head = [
        "brokers", "CPU ms to find all owners", "after a death", "partitions that it moves", "kB of Metadata",
        "CPU ms to encode it",
    ]  # fmt: skip
    print(f"\na view of {partitions} partitions\n\n" + table(head, [_viewed(count, partitions) for count in counts]))


def _member(number: int) -> Member:
    return Member(
        node_id=number,
        incarnation=f"{number:032x}",
        process=f"pid {number} on broker-{number}.headrace.internal",
        host=f"broker-{number}.headrace.internal",
        port=9092,
        http=f"http://broker-{number}.headrace.internal:8080",
    )


# Measured


class Beat(msgspec.Struct, frozen=True):
    """What a heartbeat costs."""

    redis_us: float
    broker_us: float
    answer_bytes: float


async def _beating(count: int, beats: int) -> Beat:
    with RedisServer() as redis:
        client = asynchronous(redis.url)
        storage = RedisMembership(client, Fence(1))
        members: tuple[Member, ...] = ()
        for number in range(1, count + 1):
            members = joined(members, _member(number))
        view = await storage.change(Proposal(expected=0, before=0, members=members))
        for member in members:
            await storage.beat(member, 1, view)
        sent = (await client.info("stats"))["total_net_output_bytes"]
        before, own = cpu_s(redis.pid), time.process_time()
        for number in range(beats):
            await storage.beat(members[number % count], 2 + number // count, view)
        took, own = cpu_s(redis.pid) - before, time.process_time() - own
        answered = (await client.info("stats"))["total_net_output_bytes"] - sent
        await client.aclose()
        return Beat(took / beats * 1e6, own / beats * 1e6, answered / beats)


# Simulated


def _simulated(count: int) -> list[Cell]:
    world = World(count)
    redis = Redis(world)
    if count > _MOST_AT_ONCE:
        redis.view = View(1, tuple(_simulated_member(number) for number in range(1, count + 1)))
    brokers = [Counted(world, redis, number, number) for number in range(1, count + 1)]

    def settled(alive: list[Counted]) -> bool:
        view = redis.view
        names = {broker.name for broker in alive}
        return (
            view is not None
            and {each.incarnation for each in view.members} == names
            and all(broker.mind.view == view for broker in alive)
        )

    def until_settled(alive: list[Counted]) -> float:
        began = world.now_ms
        while not settled(alive):
            world.run_until(world.now_ms + 20)
            if world.now_ms - began > _LONGEST_MS:
                raise RuntimeError(f"{count} brokers did not come to rest")
        return (world.now_ms - began) / 1e3

    joined_s = until_settled(brokers)
    views = redis.changes
    # A broker is watched for a session before it can be removed.
    world.run_until(world.now_ms + SESSION_MS)
    beats = sum(broker.beats for broker in brokers)
    world.run_until(world.now_ms + 1_000)
    rate = sum(broker.beats for broker in brokers) - beats
    brokers[0].running = False
    died_s = until_settled(brokers[1:])
    joining: list[Cell] = [views, joined_s] if count <= _MOST_AT_ONCE else [None, None]
    return [count, *joining, redis.changes - views, died_s, rate]


def _simulated_member(number: int) -> Member:
    name = f"{number}.{number}"
    return Member(node_id=number, incarnation=name, process=name, host="here", port=9092 + number)


class Counted(Broker):
    """It counts its heartbeats."""

    beats = 0

    def _beat(self) -> None:
        self.beats += 1
        super()._beat()


# Computed


def _viewed(count: int, partitions: int) -> list[Cell]:
    keys = [f"headrace:many-{number % _TOPICS}:{number // _TOPICS}" for number in range(partitions)]
    members = tuple(_member(number) for number in range(1, count + 1))
    began = time.process_time()
    chosen = Rendezvous(each.node_id for each in members)
    owners = [chosen.choose_again(key) for key in keys]
    took_ms = (time.process_time() - began) * 1e3
    began = time.process_time()
    left = Rendezvous((each.node_id for each in members[1:]), chosen)
    moved = sum(left.choose_again(key) != owner for key, owner in zip(keys, owners, strict=True))
    died_ms = (time.process_time() - began) * 1e3
    _metadata(members[:1], owners[:1])  # codecs are compiled at their first use
    began = time.process_time()
    size = _metadata(members, owners)
    return [count, took_ms, died_ms, moved, size / 1e3, (time.process_time() - began) * 1e3]


def _metadata(members: tuple[Member, ...], owners: list[int | None]) -> int:
    """Return the bytes of a response that a broker has to encode again."""
    each = len(owners) // _TOPICS or 1
    partitions = PartitionsEncoder(_METADATA_VERSION)
    topics = []
    for number in range(_TOPICS):
        led = [Leader(1, owner or 0) for owner in owners[number * each : (number + 1) * each]]
        array: Any = EncodedArray(len(led), partitions.encode(led, 0))
        topics.append(MetadataResponse.MetadataResponseTopic(name=f"many-{number}", partitions=array))
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=member.node_id, host=member.host, port=member.port)
        for member in members
    ]
    answer = MetadataResponse(brokers=brokers, cluster_id="bench", controller_id=1, topics=topics)
    return sum(map(len, answer.encode(_METADATA_VERSION)))
