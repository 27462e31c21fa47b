"""Hosts that are cut apart: three brokers and a Redis Cluster of six, each on a host of its own.

`make test-network` runs this: it makes network namespaces, so it needs root on Linux.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.test_redis_cluster import healthy, stream_of
from tests.harness.brokers import Brokers
from tests.harness.ledger import Ledger
from tests.harness.network import Host, Network
from tests.harness.redis_cluster import Node, RedisCluster, wait_for

from headrace.testing import server

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]
PARTITIONS = 6


class Site:
    """All of it."""

    def __init__(self, network: Network, cluster: RedisCluster, brokers: Brokers, hosts: dict[int, Host]) -> None:
        self.network = network
        self.cluster = cluster
        self.brokers = brokers
        self.hosts = hosts
        """Of the brokers, by node id."""

    def host_of(self, node: Node) -> Host:
        return next(host for host in self.network.hosts if host.address == node.host)

    @property
    def storage_hosts(self) -> list[Host]:
        return [self.host_of(node) for node in self.cluster.nodes]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        cluster = stack.enter_context(RedisCluster(hosts=[network.host() for _ in range(6)]))
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
                        replica_lag_time_max_ms=2_000,
                        broker_session_timeout_ms=1_500,
                        broker_heartbeat_interval_ms=200,
                    )
                )
        brokers = Brokers(servers)
        brokers.agree([1, 2, 3])
        yield Site(network, cluster, brokers, hosts)


@pytest.fixture
def whole(site: Site) -> Iterator[Site]:
    """Nobody is cut from anybody, and everybody has got over it."""
    yield site
    site.network.heal()
    site.cluster.agree()
    site.brokers.agree([1, 2, 3])
    for each in site.brokers.servers.values():
        wait_for(partial(healthy, each), "a broker with all of its connections")


@contextlib.contextmanager
def written(site: Site) -> Iterator[tuple[Ledger, str]]:
    """A topic that is written to all the while; in the end everything that was acknowledged has to be there once."""
    topic = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": site.brokers.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    with Ledger(site.brokers.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger:
        with ledger.writing():
            wait_for(lambda: ledger.acknowledged_count > 500, "records")
            yield ledger, topic
            site.network.heal()
            site.cluster.agree()
            before = ledger.acknowledged_count
            wait_for(lambda: ledger.acknowledged_count > before + 500, "records after it")
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(site.brokers.kafka)


def test_a_broker_that_is_cut_from_redis_is_missed_and_comes_back(whole: Site) -> None:
    with written(whole) as (ledger, _):
        whole.network.cut([whole.hosts[2]], whole.storage_hosts)
        wait_for(lambda: all(whole.brokers.nodes(node) == [1, 3] for node in (1, 3)), "the broker to be missed")
        before = ledger.acknowledged_count
        wait_for(lambda: ledger.acknowledged_count > before + 500, "its partitions to be served")
        whole.network.heal()
        whole.brokers.agree([1, 2, 3])


def test_brokers_that_are_cut_from_each_other_go_on(whole: Site) -> None:
    """They know of each other through Redis."""
    with written(whole) as (ledger, _):
        whole.network.cut([whole.hosts[1]], [whole.hosts[2], whole.hosts[3]])
        before = ledger.acknowledged_count
        wait_for(lambda: ledger.acknowledged_count > before + 5_000, "records meanwhile")
        whole.brokers.agree([1, 2, 3])


def cut_from_the_cluster(site: Site, primary: Node) -> None:
    """Brokers and clients reach it, and nobody else does."""
    others = [site.host_of(node) for node in site.cluster.nodes if node is not primary]
    site.network.cut([site.host_of(primary)], others)


def cut_from_all(site: Site, primary: Node) -> None:
    others = [host for host in site.network.hosts if host.address != primary.host]
    site.network.cut([site.host_of(primary)], others)


@pytest.mark.parametrize("cut", [cut_from_the_cluster, cut_from_all])
def test_a_primary_that_is_cut_off_is_replaced_and_nothing_it_acknowledged_is_lost(
    whole: Site, cut: Callable[[Site, Node], None]
) -> None:
    with written(whole) as (_, topic):
        primary = whole.cluster.primary_of(stream_of(whole.cluster, topic))
        replica = whole.cluster.replica_of(primary)
        cut(whole, primary)
        wait_for(partial(getattr, replica, "is_primary"), "the replica to be promoted")


def test_a_primary_that_its_brokers_do_not_reach_is_waited_for(whole: Site) -> None:
    """The cluster sees it, so nobody is promoted."""
    with written(whole) as (_, topic):
        primary = whole.cluster.primary_of(stream_of(whole.cluster, topic))
        whole.network.cut([whole.host_of(primary)], list(whole.hosts.values()))
        for each in whole.brokers.servers.values():
            each.logged("connection to Redis")
        assert primary.is_primary
