"""Consumer groups: how long it takes from joining until every member has its share.

A group of two is made of confluent-kafka's consumers, as an application would. A large one is made of connections
that speak the protocol themselves, each waiting for nothing but the server: first all members join at once, then one
more joins the group they have formed. The same on the pure machine, without network and storage, is the yardstick.
"""

import argparse
import asyncio
import resource
import statistics
import time
from typing import Any, Self

import msgspec
import uvloop
from tests.harness.groups import GroupContext, subscription

from bench.connection import Connection
from bench.machine import client_library, describe
from bench.processes import cpu_s
from bench.table import Cell, ratio, table
from bench.targets import SERVER, VALKEY, Target, headrace
from headrace.protocol.messages import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

TOPIC = "bench"
PARTITIONS = 4
LIMIT_S = 60.0
_JOIN, _SYNC, _HEARTBEAT = 7, 5, 4
_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS = 79, 27
_HEARTBEAT_S = 0.1
_POLL_S = 0.002
_TWO_S, _LARGE_S = 0.5, 5.0
"""What the design asks for."""


class GroupFailed(Exception):
    """The group did not come to what it should."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, help="members of the large group (1 000; quick: 200)")
    parser.add_argument("--rounds", type=int, help="groups of two whose median counts (7; quick: 2)")


def run(options: argparse.Namespace) -> None:
    members = options.members or (200 if options.quick else 1_000)
    rounds = options.rounds or (2 if options.quick else 7)
    # A descriptor each here, and one each in the server, which inherits the limit.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * members + 500)), hard))
    print(describe(client=client_library(), initial_rebalance_delay="100 ms", fsync="no"), end="\n\n", flush=True)
    pure = _pure(members)
    with headrace(TOPIC, PARTITIONS) as (target, _):
        two = statistics.median(_two(target, f"two-{number}") for number in range(rounds))
        large = uvloop.run(_large(target, members))
    rows: list[list[Cell]] = [["two consumers join, confluent-kafka", 2, two, _TWO_S, two / _TWO_S, None, None, None]]
    for what, size, phase, pure_s in zip(
        ("all join at once", "one more joins"), (members, members + 1), large, pure, strict=True
    ):
        rows.append([
            f"{what}, raw connections", size, phase.seconds, _LARGE_S, phase.seconds / _LARGE_S,
            ratio(phase.seconds, pure_s), phase.server_cpu_s, phase.valkey_cpu_s,
        ])  # fmt: skip
        rows.append([f"{what}, pure machine", size, pure_s, None, None, 1.0, None, None])
    head = ["group", "members", "seconds", "asked for", "of that", "of pure", "server CPU s", "Valkey CPU s"]
    print(table(head, rows))


def _two(target: Target, group: str) -> float:
    """Seconds from two subscribe() until all partitions are assigned and each consumer has some."""
    from confluent_kafka import Consumer  # noqa: PLC0415  # takes a while to load

    consumers = [
        Consumer({"bootstrap.servers": target.address, "group.id": group, "enable.auto.commit": False, "log_level": 3})
        for _ in range(2)
    ]
    try:
        for consumer in consumers:
            consumer.list_topics(TOPIC, timeout=60)
        began = time.monotonic()
        for consumer in consumers:
            consumer.subscribe([TOPIC])
        while True:
            for consumer in consumers:
                consumer.poll(_POLL_S)
            taken = time.monotonic() - began
            shares = [len(consumer.assignment()) for consumer in consumers]
            if min(shares) and sum(shares) == PARTITIONS:
                return taken
            if taken > LIMIT_S:
                raise GroupFailed(f"the consumers have {shares} of {PARTITIONS} partitions after {LIMIT_S:.0f} s")
    finally:
        for consumer in consumers:
            consumer.close()


class Phase(msgspec.Struct, frozen=True):
    """One change of the large group, from the first request to the last answer."""

    seconds: float
    server_cpu_s: float
    valkey_cpu_s: float


async def _large(target: Target, size: int) -> list[Phase]:
    async with asyncio.timeout(LIMIT_S):
        group = _Group(target.address)
        members = [await _Member.connect(group) for _ in range(size + 1)]
        phases = []
        for joined in (size, size + 1):
            pids = target.processes()
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            group.wanted = joined
            began = time.monotonic()
            # The newcomer's request leaves first: the others learn of it by their heartbeats.
            await asyncio.gather(*(member.until_assigned() for member in reversed(members[:joined])))
            seconds = time.monotonic() - began
            spent = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
            phases.append(Phase(seconds, spent[SERVER], spent[VALKEY]))
        for member in members:
            member.close()
        return phases


class _Group:
    """What the members of the large group know of each other."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.wanted = 0
        self.sizes: dict[int, int] = {}
        """Members by generation, as its leader received them."""


class _Member:
    """One connection that joins, syncs and sends heartbeats."""

    def __init__(self, group: _Group, connection: Connection) -> None:
        self._group = group
        self._connection = connection
        self._ask = connection.ask
        self._id = ""
        self._generation = -1

    @classmethod
    async def connect(cls, group: _Group) -> Self:
        return cls(group, await Connection.connect(group.address))

    def close(self) -> None:
        self._connection.close()

    async def until_assigned(self) -> None:
        """Until it has its share in a generation of all members that are wanted."""
        while self._group.sizes.get(self._generation) != self._group.wanted:
            if self._id:
                request = HeartbeatRequest(group_id=TOPIC, generation_id=self._generation, member_id=self._id)
                if (await self._ask(request, _HEARTBEAT)).error_code != _REBALANCE_IN_PROGRESS:
                    await asyncio.sleep(_HEARTBEAT_S)
                    continue
            while not await self._join_and_sync():
                pass

    async def _join_and_sync(self) -> bool:
        """False when the group had moved on before the assignment came."""
        joined = await self._join()
        if joined.error_code == _MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            joined = await self._join()
        _expect_none(joined)
        self._generation = joined.generation_id
        share = SyncGroupRequest.SyncGroupRequestAssignment
        assignments = [share(member_id=each.member_id, assignment=each.member_id.encode()) for each in joined.members]
        synced = await self._ask(
            SyncGroupRequest(
                group_id=TOPIC,
                generation_id=joined.generation_id,
                member_id=self._id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            ),
            _SYNC,
        )
        if synced.error_code == _REBALANCE_IN_PROGRESS:
            return False
        _expect_none(synced)
        if bytes(synced.assignment) != self._id.encode():
            raise GroupFailed(f"{self._id} was assigned {bytes(synced.assignment)!r}")
        if joined.members:
            self._group.sizes[joined.generation_id] = len(joined.members)
        return True

    async def _join(self) -> Any:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))
        request = JoinGroupRequest(
            group_id=TOPIC,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return await self._ask(request, _JOIN)


def _expect_none(answer: Any) -> None:
    if answer.error_code:
        raise GroupFailed(f"{type(answer).__name__} with error {answer.error_code}")


def _pure(size: int) -> list[float]:
    """CPU seconds of the same two changes on the machine alone, its storage a dictionary and its clock a number."""
    context = GroupContext()
    context.checking = False
    began = time.process_time()
    members = context.form(*(context.join(version=3) for _ in range(size)))
    formed = time.process_time()
    newcomer = context.join(version=3)
    for member in members:
        context.heartbeat(member)
    members = context.form(newcomer, *(context.join(member, version=3) for member in members))
    if len(members) != size + 1:
        raise GroupFailed(f"the pure machine has {len(members)} members, expected {size + 1}")
    return [formed - began, time.process_time() - formed]
