"""What brokers know of each other while nodes of their Redis Cluster are dead that have nothing of it."""

import pytest
from tests.harness.redis import debian_redis_program
from tests.harness.redis_cluster import RedisCluster

from headrace.membership.participant import Proposal
from headrace.membership.view import Member
from headrace.storage.brokers import RedisMembership
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import asynchronous


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("valkey", marks=pytest.mark.redis_cluster),
        pytest.param("redis", marks=pytest.mark.apt),
    ],
)
async def test_changes_are_read_whichever_other_nodes_are_dead(kind: str) -> None:
    """A topic that one broker makes is to be known by the others."""
    program = debian_redis_program() if kind == "redis" else None
    with RedisCluster(program, replicas=0, calm=True) as cluster:
        client = asynchronous(cluster.url)
        try:
            membership = RedisMembership(client, Fence(0))
            assert await membership.changes("0-0", 1) == []
            has_them = cluster.primary_of(Keyspace().changes)
            for node in cluster.nodes:
                if node is not has_them:
                    node.kill()
            view = await membership.change(
                Proposal(0, 0, (Member(node_id=1, incarnation="a", process="pid 1", host="here", port=9092),))
            )
            found = [change for _, change in await membership.changes("0-0", 1)]
        finally:
            await client.aclose()
    assert [(change.kind, change.name) for change in found] == [("view", str(view.number))]
