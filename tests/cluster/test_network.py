"""Hosts that are cut apart: three brokers and a Redis Cluster of six, each on a host of its own.

`make test LANE=network` runs this: it makes network namespaces, so it needs root on Linux.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.site import Site, site
from tests.cluster.test_redis_cluster import healthy, stream_of
from tests.harness.ledger import Ledger
from tests.harness.redis_cluster import CALM_MS, Node
from tests.harness.waiting import wait_for

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]
PARTITIONS = 6


@pytest.fixture(scope="module")
def standing() -> Iterator[Site]:
    with site(replica_lag_time_max_ms=2_000, broker_session_timeout_ms=1_500, broker_heartbeat_interval_ms=200) as made:
        yield made


@pytest.fixture
def whole(standing: Site) -> Iterator[Site]:
    """A network without partitions, and recovered brokers."""
    yield standing
    standing.heal()
    standing.brokers.agree([1, 2, 3])
    for each in standing.brokers.servers.values():
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
            site.heal()
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


@pytest.mark.parametrize("cut", [Site.cut_from_the_cluster, Site.cut_from_all])
def test_a_primary_that_is_cut_off_is_replaced_and_nothing_it_acknowledged_is_lost(
    whole: Site, cut: Callable[[Site, Node], None]
) -> None:
    with written(whole) as (_, topic):
        primary = whole.cluster.primary_of(stream_of(whole.cluster, topic))
        replica = whole.cluster.replica_of(primary)
        cut(whole, primary)
        wait_for(partial(getattr, replica, "is_primary"), "the replica to be promoted")


def test_a_primary_that_its_brokers_do_not_reach_is_waited_for(whole: Site) -> None:
    """The cluster sees it, so no replica is promoted."""
    with written(whole) as (_, topic):
        primary = whole.cluster.primary_of(stream_of(whole.cluster, topic))
        # A busy machine does not delay a node for that long.
        with whole.cluster.missing_after(CALM_MS):
            whole.network.cut([whole.host_of(primary)], list(whole.hosts.values()))
            for each in whole.brokers.servers.values():
                each.logged("connection to Redis")
            assert primary.is_primary
