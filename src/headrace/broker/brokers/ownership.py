"""Which broker owns what, as the view says: the rendezvous choice among those that are alive."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.broker.partition.partition import Partition
from headrace.membership.view import Member, Rendezvous, View
from headrace.topics.errors import InvalidReplicationFactor


class Ownership:
    """Who leads each partition and coordinates each group. Without a view this server owns everything."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.view: View | None = None
        self._rendezvous = Rendezvous([node_id])
        self._alive = frozenset([node_id])
        self.inside = True
        """Whether the view has this very server."""
        self.unbroken = True
        """Whether there was no view between this one and the one that this server went by before it."""
        self.told = 0
        """The number of the last view that any broker has told of, as far as this one has heard."""
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self.certain: Callable[[], bool] = lambda: True
        """Whether nobody can have declared this server dead by now."""

    @property
    def number(self) -> int | None:
        """The number of the view; None: there is none."""
        return None if self.view is None else self.view.number

    @property
    def shared(self) -> bool:
        """Whether there may be other brokers."""
        return self.view is not None

    @property
    def is_current(self) -> bool:
        """Whether this server goes by the last view that it has heard of."""
        return (self.number or 0) >= self.told

    @property
    def others(self) -> list[Member]:
        """The other brokers that are alive."""
        return [] if self.view is None else [each for each in self.view.members if each.node_id != self.node_id]

    @property
    def brokers(self) -> int:
        """How many brokers are alive, this one included; 0: the others have declared this one dead."""
        return len(self._alive) if self.inside else 0

    def adopt(self, view: View, *, inside: bool) -> None:
        """Go by a view from now on; `inside`: whether this very server is in it."""
        self.unbroken = view.follows(self.view)
        self.view = view
        self.inside = inside
        self._alive = frozenset(each.node_id for each in view.members)
        self._rendezvous = Rendezvous(self._alive, self._rendezvous)
        for future, happened in tuple(self._waiting.items()):
            if not future.done() and happened():
                future.set_result(None)

    def until(self, happened: Callable[[], bool]) -> "asyncio.Future[None]":
        """Done with the first view, from now on, in which something holds; whoever wants it no more cancels it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = happened
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        return future

    def owner_of(self, key: str) -> int:
        """The node id of the broker that owns what this names; -1 where nobody is alive."""
        owner = self._rendezvous.choose(key)
        return -1 if owner is None else owner

    def ranking(self, stream: str, count: int) -> list[int]:
        """At most `count` node ids of brokers that are alive: who leads a partition, then who would take it over."""
        return self._rendezvous.ranking(stream, count)

    def owns(self, key: str) -> bool:
        """Whether that is this server."""
        return self._is_own(self.owner_of(key))

    def leader_of(self, stream: str) -> int | None:
        """The node id of the broker that leads a partition there is, -1 where nobody is alive; None: this server."""
        leader = self._rendezvous.choose_again(stream)
        if leader is None:
            return -1
        return None if self._is_own(leader) else leader

    def _is_own(self, node_id: int) -> bool:
        return self.inside and node_id == self.node_id

    def is_alive(self, node_id: int) -> bool:
        """Whether a broker of this id is in the view."""
        return node_id in self._alive

    def group_key(self, cluster: str, group: str) -> str:
        """What names a group of a virtual cluster."""
        return f"group {cluster}/{group}"

    def member(self, node_id: int) -> Member | None:
        """A broker that is alive, by its node id."""
        return None if self.view is None else self.view.member(node_id)


class InvalidAssignment(Exception):
    """A list of brokers that cannot be the replicas of a partition."""


def replicas(ownership: Ownership, partition: Partition, factor: int) -> list[int]:
    """Node ids, the leader first; none while there is no leader."""
    leader = partition.named.node_id
    if leader < 0:
        return []
    if factor == 1:
        return [leader]
    ranked = ownership.ranking(partition.stream, factor)
    return [leader, *(node for node in ranked if node != leader)][:factor]


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
