"""Brokers over a Redis Cluster whose nodes speak TLS only, to each other too, and know the user of the guide."""

from uuid import uuid4

import pytest
from tests.cluster.history import History
from tests.cluster.members import KafkaGroup
from tests.cluster.test_redis_cluster import PARTITIONS, created
from tests.harness.brokers import brokers_at
from tests.harness.ledger import Ledger, placed
from tests.harness.redis import debian_redis_program
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_tls import PASSWORD
from tests.harness.waiting import wait_for

from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.testing import ServerFailed, server


@pytest.mark.apt
@pytest.mark.timeout(300)
def test_a_primary_that_speaks_tls_only_is_killed() -> None:
    with RedisCluster(debian_redis_program(), tls=True, calm=True) as cluster:
        tls = cluster.tls
        assert tls is not None
        url, history, name = tls.url(cluster.url), History(), f"topic-{uuid4().hex[:8]}"
        with brokers_at(
            url, 2, arguments=tls.arguments, broker_session_timeout_ms=1_500, broker_heartbeat_interval_ms=200
        ) as two:
            # Copies are counted by the same user over the same connections.
            topic = created(two, name, min_insync_replicas="2")
            with LogReader(tls.whole(cluster.url)) as log:
                stream = log.topics(Subscription((topic,)))[topic].streams[0]
            with (
                Ledger(two.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger,
                KafkaGroup(two.kafka, topic, topic, history.audience("group")),
            ):
                with ledger.writing():
                    wait_for(lambda: ledger.acknowledged_count > 1_000, "records")
                    cluster.kill(cluster.primary_of(stream))
                    before = ledger.acknowledged_count
                    wait_for(lambda: ledger.acknowledged_count > before + 1_000, "records after it")
                ledger.settle()
                assert ledger.refused == {}
                wait_for(lambda: history.unseen(ledger.acknowledged) == 0, "the group to have been given everything")
                history.check(ledger.acknowledged, placed(two.kafka, topic, PARTITIONS))
            for broker in two.servers.values():
                assert PASSWORD not in broker.storage + broker.log()
        with pytest.raises(ServerFailed, match="certificate verify failed"):
            server(redis=url, arguments=tls.arguments[:2]).__enter__()
