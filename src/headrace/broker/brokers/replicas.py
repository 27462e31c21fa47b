"""The replicas of a partition, as clients are told: Redis replicates, and brokers only take turns as leaders.

A topic of replication factor N is on its leader and on the next N - 1 brokers that would take over. All of them reach
every record, so each is in sync. Where fewer brokers are alive there are fewer replicas.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.brokers.ownership import Ownership
from headrace.topics.errors import InvalidReplicationFactor

if TYPE_CHECKING:
    from headrace.broker.partition.partition import Partition
    from headrace.broker.topics.live import LiveTopic


class InvalidAssignment(Exception):
    """A list of brokers that cannot be the replicas of a partition."""


def replicas(ownership: Ownership, partition: "Partition", factor: int) -> list[int]:
    """Node ids, the leader first; none while there is no leader."""
    leader = partition.named.node_id
    if leader < 0:
        return []
    if factor == 1:
        return [leader]
    ranked = ownership.ranking(partition.stream, factor)
    return [leader, *(node for node in ranked if node != leader)][:factor]


def replicas_of(ownership: Ownership, live: "LiveTopic", index: int) -> list[int]:
    """The same of a topic's partition."""
    return replicas(ownership, live.partitions[index], live.topic.replication_factor)


def check_factor(ownership: Ownership, factor: int) -> None:
    """Raise InvalidReplicationFactor, in Kafka's words, where a new topic cannot have so many replicas."""
    if factor < 1:
        raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
    alive = max(1, ownership.brokers)
    if factor > alive:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            f"reached because only {alive} broker(s) are registered."
        )


def check_brokers(ownership: Ownership, assigned: Sequence[int]) -> None:
    """Raise InvalidAssignment, in Kafka's words, unless these are different brokers that are alive."""
    if not assigned:
        raise InvalidAssignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for node in sorted(assigned):
        if not ownership.is_alive(node):
            raise InvalidAssignment(
                f"The manual partition assignment includes broker {node}, but no such broker is registered."
            )
        if node in seen:
            raise InvalidAssignment(f"The manual partition assignment includes the broker {node} more than once.")
        seen.add(node)
