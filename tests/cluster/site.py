"""Three brokers and a Redis Cluster of six, each on a host of its own that can be cut off. Needs root on Linux."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness.brokers import Brokers
from tests.harness.network import Host, Network
from tests.harness.redis_cluster import Node, RedisCluster

from headrace.testing import Server, server


class OnHosts(Brokers):
    """Brokers that are started again where they were."""

    def __init__(self, servers: dict[int, Server], hosts: dict[int, Host]) -> None:
        super().__init__(servers)
        self._hosts = hosts

    def start(self, node: int) -> None:
        """See `Brokers`."""
        with self._hosts[node].entered():
            super().start(node)


class Site:
    """All of it."""

    def __init__(self, network: Network, cluster: RedisCluster, brokers: Brokers, hosts: dict[int, Host]) -> None:
        self.network = network
        self.cluster = cluster
        self.brokers = brokers
        self.hosts = hosts
        """Of the brokers, by node id."""

    def host_of(self, node: Node) -> Host:
        """Where a node of the cluster runs."""
        return next(host for host in self.network.hosts if host.address == node.host)

    @property
    def storage_hosts(self) -> list[Host]:
        """Where the cluster runs."""
        return [self.host_of(node) for node in self.cluster.nodes]

    def cut_from_the_cluster(self, node: Node) -> None:
        """Brokers and clients reach a node, and no other node does."""
        others = [self.host_of(each) for each in self.cluster.nodes if each is not node]
        self.network.cut([self.host_of(node)], others)

    def cut_from_all(self, node: Node) -> None:
        """No host reaches it. Only programs outside of all hosts do."""
        others = [host for host in self.network.hosts if host.address != node.host]
        self.network.cut([self.host_of(node)], others)

    def heal(self) -> None:
        """Remove all partitions, and wait until the nodes of the cluster agree."""
        self.network.heal()
        self.cluster.agree()


@contextlib.contextmanager
def site(program: Path | None = None, **settings: Any) -> Iterator[Site]:
    """All of it, in being; a produce with acks=all waits for two copies."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        cluster = stack.enter_context(RedisCluster(program, hosts=[network.host() for _ in range(6)]))
        hosts = {node: network.host() for node in (1, 2, 3)}
        servers = {}
        for node, host in hosts.items():
            listening = ("--kafka", f"{host.address}:9092", "--http", f"{host.address}:8080")
            with host.entered():
                servers[node] = stack.enter_context(
                    server(
                        redis=cluster.url,
                        arguments=listening,
                        node_id=node,
                        headrace_insecure=True,
                        min_insync_replicas=2,
                        **settings,
                    )
                )
        brokers = OnHosts(servers, hosts)
        brokers.agree([1, 2, 3])
        yield Site(network, cluster, brokers, hosts)
