"""Members of KIP-848 groups that speak the protocol themselves, on a few connections.

Each sends heartbeats as often as the server asks, and says what it owns after each change, as clients do.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

import uvloop

from bench.connection import Connection
from bench.load import LoadFailed
from bench.targets import Meter, Phase, Target
from headrace.protocol.messages import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest

T = TypeVar("T")
_LIMIT_S = 60.0
_HEARTBEAT, _FIND = 1, 4
"""Versions of requests."""
_CONNECTIONS = 8
_RETRIABLE = {14, 15, 16}
"""The coordinator loads, is not available, or is another one."""


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


def run_members(work: Coroutine[Any, Any, T]) -> T:
    """Run `form` or `beat`. Raises LoadFailed."""
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


async def form(target: Target, topic: str, many: int, partitions: int) -> Phase:
    """Let members begin at once, until they share the partitions."""
    async with asyncio.timeout(_LIMIT_S), _connected(target, _CONNECTIONS) as connections:
        await _find(connections[0], topic)
        group = _Group(topic, topic)
        meter = Meter(target)
        async with asyncio.TaskGroup() as tasks:
            members = [_Member(group, connections[each % _CONNECTIONS], each) for each in range(many)]
            living = [tasks.create_task(member.live()) for member in members]
            while not group.is_shared(partitions):
                await asyncio.sleep(0.02)
            phase = meter.phase(group.heartbeats)
            for task in living:
                task.cancel()
        await asyncio.gather(*(member.leave() for member in members))
        return phase


async def beat(target: Target, topic: str, many: int) -> Phase:
    """Let one member send heartbeats that change nothing, each after the response to the one before."""
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
        meter = Meter(target)
        await member.beat_alone(many)
        phase = meter.phase(many)
        await member.leave()
        return phase
