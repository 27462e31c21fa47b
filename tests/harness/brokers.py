"""Several brokers over one Redis or a Redis Cluster, each a process of its own."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.kafka.errors import Code
from headrace.protocol.messages import FindCoordinatorRequest
from headrace.testing import Server, server
from tests.harness.redis import RedisServer
from tests.harness.redis_cluster import RedisCluster
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

KEPT = {"appendonly": "yes", "appendfsync": "no", "maxmemory-policy": "noeviction"}


class Brokers:
    """They are all there when this is made; which of them run is the test's business."""

    def __init__(self, servers: dict[int, Server]) -> None:
        self.servers = servers
        self.addresses = {node: each.kafka for node, each in servers.items()}

    @property
    def kafka(self) -> str:
        """Where clients begin."""
        return ",".join(self.addresses.values())

    @property
    def running(self) -> list[int]:
        """The node ids of those that run."""
        return [node for node, each in self.servers.items() if each.running]

    def asked(self, node: int, ask: Callable[[Wire], Any]) -> Any:
        """What one of them answers."""
        with Wire(self.addresses[node]) as wire:
            return ask(wire)

    def leaders(self, node: int, topic: str) -> dict[int, int]:
        """Partition -> node id of its leader, as one broker returns it; empty where it does not know the topic.

        -1 if the leader is dead and no other broker has announced itself.
        """
        found = self.asked(node, lambda wire: wire.metadata(topic)).topics[0]
        return {each.partition_index: each.leader_id for each in found.partitions}

    def nodes(self, node: int) -> list[int]:
        """The live brokers, as one of them lists them."""
        return [each.node_id for each in self.asked(node, lambda wire: wire.metadata()).brokers]

    def coordinator(self, node: int, group: str) -> int:
        """The node id of a group's coordinator, as one broker returns it."""
        request = FindCoordinatorRequest(coordinator_keys=[group])
        (found,) = self.asked(node, lambda wire: wire.ask(request, 4)).coordinators
        assert found.error_code == Code.NONE, found
        node_id: int = found.node_id
        return node_id

    def new_topic(self, partitions: int) -> str:
        """The name of a topic that nothing else has, and whose leaders all of them know."""
        name = f"topic-{uuid4().hex[:8]}"
        self.asked(self.running[0], lambda wire: wire.create(name, partitions))
        self.led(name, partitions)
        return name

    def led(self, topic: str, partitions: int) -> dict[int, int]:
        """Wait until all of them name the same leader of each partition, one that runs; partition -> its node id."""
        found: dict[int, int] = {}

        def agreed() -> bool:
            nonlocal found
            running = self.running
            found, *others = (self.leaders(node, topic) for node in running)
            whole = len(found) == partitions and {*found.values()} <= {*running}
            return whole and all(each == found for each in others)

        wait_for(agreed, f"the leaders of {topic}")
        return found

    def start(self, node: int) -> None:
        """Start one that does not run, on the ports it had."""
        self.servers[node].start()

    def agree(self, nodes: list[int]) -> None:
        """Wait until each of these names these, and no other."""
        wait_for(lambda: all(self.nodes(node) == nodes for node in nodes), f"the view {nodes}")


class OverOneRedis(Brokers):
    """Those of `brokers`."""

    def __init__(self, redis: RedisServer, servers: dict[int, Server]) -> None:
        super().__init__(servers)
        self.redis = redis


@contextlib.contextmanager
def brokers(count: int = 3, program: Path | None = None, **settings: Any) -> Iterator[OverOneRedis]:
    """Brokers 1 to `count` over a Redis of their own, which keeps what it acknowledges."""
    with RedisServer(program, KEPT) as redis, brokers_at(redis.url, count, **settings) as found:
        yield OverOneRedis(redis, found.servers)


@contextlib.contextmanager
def brokers_at(url: str, count: int = 3, **settings: Any) -> Iterator[Brokers]:
    """Brokers 1 to `count` over what is at a storage URL."""
    with contextlib.ExitStack() as stack:
        servers = {
            node: stack.enter_context(server(redis=url, node_id=node, **settings)) for node in range(1, count + 1)
        }
        found = Brokers(servers)
        found.agree(list(servers))
        yield found


STORAGES = ("redis", "cluster")
"""What `brokers_over` takes."""


@contextlib.contextmanager
def brokers_over(storage: str, count: int = 3, **settings: Any) -> Iterator[Brokers]:
    """Brokers 1 to `count` over a storage of their own, one of `STORAGES`."""
    kept = RedisCluster(calm=True) if storage == "cluster" else RedisServer(options=KEPT)
    with kept as running, brokers_at(running.url, count, **settings) as found:
        yield found
