"""Leaders in responses of Produce and Fetch, so that clients need not ask for them (KIP-951).

A response names the leader of a partition that this broker does not lead, with its address. Clients use it if its
leader epoch is above the one that they know.
"""

from collections.abc import Iterable
from typing import Any

from headrace.broker.topics.live import LiveTopic
from headrace.kafka.errors import Code
from headrace.kafka.server.request_context import RequestContext
from headrace.membership.view import Leader

MOVED = frozenset({Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH})
"""Errors after which a client needs another leader."""


def leader_of(live: LiveTopic | None, index: int, node_id: int) -> Leader | None:
    """Return the published leader of a partition, or None if it is unknown or this broker (`node_id`)."""
    if live is None or not 0 <= index < len(live.partitions):
        return None
    leader = live.partitions[index].named
    # This broker may be about to lead, or may not know yet that it does no more.
    return None if leader.epoch < 0 or leader.node_id in {-1, node_id} else leader


def endpoints(node: Any, node_ids: Iterable[int], context: RequestContext) -> list[Any]:
    """Return the addresses of brokers, in the response's class `node`."""
    wanted = set(node_ids)
    if not wanted:
        return []
    return [node(node_id=node_id, host=host, port=port) for node_id, host, port in context.nodes if node_id in wanted]
