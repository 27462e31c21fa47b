"""Leaders in responses of Produce and Fetch, so that clients need not ask for them (KIP-951).

A response names the leader of a partition that this broker does not lead, with its address. Clients use it if its
leader epoch is above the one that they know.
"""

from typing import Any

from headrace.broker.topics.live import LiveTopic
from headrace.kafka.errors import Code
from headrace.kafka.server.request_context import RequestContext

MOVED = frozenset({Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH})
"""Errors after which a client needs another leader."""


class CurrentLeaders:
    """The leaders that one response names."""

    def __init__(self, context: RequestContext, response: type[Any]) -> None:
        """Take the request, and the class of its response."""
        self._context = context
        self._response = response
        self._nodes: set[int] = set()

    def find(self, live: LiveTopic | None, index: int) -> Any:
        """Return the published leader of a partition, or None if it is unknown or this broker."""
        if live is None or not 0 <= index < len(live.partitions):
            return None
        leader = live.partitions[index].named
        # This broker may be about to lead, or may not know yet that it does no more.
        if leader.epoch < 0 or leader.node_id in {-1, self._context.broker.node_id}:
            return None
        self._nodes.add(leader.node_id)
        return self._response.LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)

    def endpoints(self) -> list[Any]:
        """Return the addresses of these leaders."""
        node = self._response.NodeEndpoint
        return [
            node(node_id=node_id, host=host, port=port)
            for node_id, host, port in self._context.nodes
            if node_id in self._nodes
        ]
