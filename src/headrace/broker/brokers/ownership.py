"""Ownership by rendezvous hashing among the live brokers."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.broker.partition.partition import Partition
from headrace.membership.view import Member, Rendezvous, View
from headrace.topics.errors import InvalidReplicationFactor


class Ownership:
    """Leaders of partitions and coordinators of groups. Without a view, this server owns everything."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.view: View | None = None
        self._rendezvous = Rendezvous([node_id])
        self._alive = frozenset([node_id])
        self.inside = True
        """Whether the view has this server."""
        self.unbroken = True
        """Whether the view directly follows the previously adopted one."""
        self.told = 0
        """Number of the latest published view."""
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self.certain: Callable[[], bool] = lambda: True
        """Whether no broker can have declared this server dead."""

    @property
    def number(self) -> int | None:
        """Number of the view, if any."""
        return None if self.view is None else self.view.number

    @property
    def shared(self) -> bool:
        """Whether other brokers are possible."""
        return self.view is not None

    @property
    def is_current(self) -> bool:
        """Whether this server has adopted the latest published view."""
        return (self.number or 0) >= self.told

    @property
    def others(self) -> list[Member]:
        """Other live brokers."""
        return [] if self.view is None else [each for each in self.view.members if each.node_id != self.node_id]

    @property
    def brokers(self) -> int:
        """Number of live brokers. 0: this one was declared dead."""
        return len(self._alive) if self.inside else 0

    def adopt(self, view: View, *, inside: bool) -> None:
        """Adopt a view. `inside`: whether it has this server."""
        self.unbroken = view.follows(self.view)
        self.view = view
        self.inside = inside
        self._alive = frozenset(each.node_id for each in view.members)
        self._rendezvous = Rendezvous(self._alive, self._rendezvous)
        for future, happened in tuple(self._waiting.items()):
            if not future.done() and happened():
                future.set_result(None)

    def until(self, happened: Callable[[], bool]) -> "asyncio.Future[None]":
        """Return a future, done with the first later view in which a condition holds. Cancel it when not needed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = happened
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        return future

    def owner_of(self, key: str) -> int:
        """Return the node id of a key's owner. -1: none."""
        owner = self._rendezvous.choose(key)
        return -1 if owner is None else owner

    def ranking(self, stream: str, count: int) -> list[int]:
        """Return at most `count` live node ids: the leader, then its successors."""
        return self._rendezvous.ranking(stream, count)

    def owns(self, key: str) -> bool:
        """Whether this server owns a key."""
        return self._is_own(self.owner_of(key))

    def leader_of(self, stream: str) -> int | None:
        """Return the leader's node id of an existing partition. -1: none; None: this server."""
        leader = self._rendezvous.choose_again(stream)
        if leader is None:
            return -1
        return None if self._is_own(leader) else leader

    def _is_own(self, node_id: int) -> bool:
        return self.inside and node_id == self.node_id

    def is_alive(self, node_id: int) -> bool:
        """Whether a broker of this id is alive."""
        return node_id in self._alive

    def group_key(self, cluster: str, group: str) -> str:
        """Return the key of a group."""
        return f"group {cluster}/{group}"

    def transaction_key(self, cluster: str, transactional_id: str) -> str:
        """Return the key of a transactional ID."""
        return f"transaction {cluster}/{transactional_id}"

    def member(self, node_id: int) -> Member | None:
        """Return a live broker, if any."""
        return None if self.view is None else self.view.member(node_id)


class KeyedOwnership:
    """Ownership of one kind of machine in a virtual cluster. `key` returns a machine's key for the rendezvous."""

    def __init__(self, ownership: Ownership, key: Callable[[str], str]) -> None:
        self._ownership = ownership
        self._key = key

    @property
    def shared(self) -> bool:
        """See `broker.coordinator.coordinator.Ownership`."""
        return self._ownership.shared

    @property
    def number(self) -> int | None:
        """See `broker.coordinator.coordinator.Ownership`."""
        return self._ownership.number

    @property
    def unbroken(self) -> bool:
        """See `broker.coordinator.coordinator.Ownership`."""
        return self._ownership.unbroken

    def owns(self, name: str) -> bool:
        """See `broker.coordinator.coordinator.Ownership`."""
        return self._ownership.owns(self._key(name))

    @property
    def certain(self) -> bool:
        """See `broker.coordinator.coordinator.Ownership`."""
        return self._ownership.certain()


class InvalidAssignment(Exception):
    """Brokers that cannot be the replicas of a partition."""


def replicas(ownership: Ownership, partition: Partition, factor: int) -> list[int]:
    """Return node ids, the leader first. Empty without a leader."""
    leader = partition.named.node_id
    if leader < 0:
        return []
    if factor == 1:
        return [leader]
    ranked = ownership.ranking(partition.stream, factor)
    return [leader, *(node for node in ranked if node != leader)][:factor]


def check_factor(ownership: Ownership, factor: int) -> None:
    """Raise InvalidReplicationFactor, in Kafka's words, for too many replicas."""
    if factor < 1:
        raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
    alive = max(1, ownership.brokers)
    if factor > alive:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            f"reached because only {alive} broker(s) are registered."
        )


def check_brokers(ownership: Ownership, assigned: Sequence[int]) -> None:
    """Raise InvalidAssignment, in Kafka's words, unless these are different live brokers."""
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
