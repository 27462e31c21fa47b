"""The numbered view of the live brokers: one document in Redis, changed by compare-and-set only.

Brokers report which logs they lead (`Leader`), and hold locks (`Lock`). Ownership follows from the view by rendezvous
hashing (highest random weight, Thaler and Ravishankar, 1998): the node with the largest weight for a key owns it. A
node that joins or leaves moves only its own keys.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from heapq import nsmallest
from typing import Final, NamedTuple, Self

import msgspec

TRANSACTIONS: Final = "transactions"
"""Feature of a broker that ends transactions, and answers questions about them, for other brokers."""
FEATURES: Final = (TRANSACTIONS,)
"""What this version supports, in ascending order. Brokers use a feature only while all of them have it."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, as published to the others."""

    node_id: int
    """Kafka's `node.id`."""
    incarnation: str
    """Distinguishes processes with the same `node.id`."""
    process: str
    """Pid and host, for people."""
    host: str
    """Host that is advertised to Kafka clients."""
    port: int
    """Its port."""
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """With several listeners: name, host and port of each."""

    http: str = ""
    """URL of its HTTP listener for the other brokers, without a path."""
    features: tuple[str, ...] = ()
    """What its version supports, of `FEATURES`."""

    def at(self, listener: str) -> tuple[str, int] | None:
        """Return host and port of a listener, if it exists."""
        if not self.endpoints:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.endpoints if name == listener), None)


class View(msgspec.Struct, frozen=True):
    """Cluster membership. No two views have the same number."""

    number: int
    members: tuple[Member, ...] = ()
    """In ascending order of `node_id`."""
    before: int = 0
    """Number of the replaced view. 0: none, or Redis has lost some."""

    def follows(self, known: "View | None") -> bool:
        """Whether no view can have existed between a known one and this one."""
        return known is not None and self.before == known.number

    def member(self, node_id: int) -> Member | None:
        """Return the broker with this id, if any."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def has(self, wanted: Member) -> bool:
        """Whether it has this process."""
        found = self.member(wanted.node_id)
        return found is not None and found.incarnation == wanted.incarnation


def joined(members: Iterable[Member], newcomer: Member) -> tuple[Member, ...]:
    """Return the members with one more, which replaces an earlier process of the same `node.id`."""
    return _sorted([newcomer, *(each for each in members if each.node_id != newcomer.node_id)])


def without(members: Iterable[Member], gone: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members without some of them."""
    leaving = {(each.node_id, each.incarnation) for each in gone}
    return _sorted(each for each in members if (each.node_id, each.incarnation) not in leaving)


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda each: each.node_id))


class Leader(NamedTuple):
    """The broker that leads a log, as it has published. A later leader has a higher epoch."""

    epoch: int
    """Leader epoch, unique. -1: unknown."""
    node_id: int
    """-1: unknown, or gone."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse `text`. The node id may be missing."""
        epoch, _, node = text.partition(":")
        return cls(int(epoch), int(node or -1))

    @property
    def text(self) -> str:
        """The stored form."""
        return f"{self.epoch}:{self.node_id}"


def leader_pairs(leaders: Mapping[str, Leader]) -> list[str]:
    """Return streams and leaders alternately."""
    return [part for stream, leader in leaders.items() for part in (stream, leader.text)]


def leaders(told: str) -> dict[str, Leader]:
    """Parse `leader_pairs` that were joined by spaces."""
    parts = told.split(" ")
    return {stream: Leader.of(text) for stream, text in zip(parts[::2], parts[1::2], strict=True)}


class Lock(NamedTuple):
    """A lock that a broker holds."""

    key: str
    """Its Redis key. Empty: a single broker needs none."""
    token: str
    """Value of the key while it is held."""
    revisions: Mapping[str, int]
    """Kind of documents -> its revision when the lock was acquired, for kinds that other brokers change."""


ALONE = Lock("", "", {})
"""The lock of a single broker."""


_MASK = (1 << 64) - 1
MOST_KEPT = 200_000
"""Maximum owners cached until the next set of nodes. Deleted topics count until then."""


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """Mix as the finalizer of splitmix64: each input bit changes about half of the output bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Rendezvous:
    """Chooses the owners of keys."""

    def __init__(self, nodes: Iterable[int], before: "Rendezvous | None" = None) -> None:
        """Prepare for these node ids. The cached choices of `before` are reused by `choose_again`."""
        self._seeds = {node: _hashed(f"node {node}") for node in sorted(set(nodes))}
        self.kept: dict[str, int] = {}
        """Key -> cached result of `choose_again`."""
        self._before = {} if before is None else before.kept
        self._new = [] if before is None else [node for node in self._seeds if not before.has(node)]

    def has(self, node: int) -> bool:
        """Whether a node is among them."""
        return node in self._seeds

    def choose(self, key: str) -> int | None:
        """Return the owner of a key. None: no nodes."""
        return self._heaviest(key, self._seeds)

    def ranking(self, key: str, count: int) -> list[int]:
        """Return at most `count` nodes, each the owner of the key if those before it were gone."""
        hashed, seeds = _hashed(key), self._seeds
        # As in `_heaviest`, the smallest node of equal weight is first.
        return nsmallest(count, seeds, key=lambda node: (-_mixed(hashed ^ seeds[node]), node))

    def choose_again(self, key: str) -> int | None:
        """Return `choose(key)`, cached for keys that are requested again with each set of nodes.

        Only newcomers can beat a previous owner that remains, so few nodes are weighed. Use `choose` for names that
        clients make up: it caches nothing.
        """
        chosen = self.kept.get(key)
        if chosen is not None:
            return chosen
        was = self._before.get(key)
        found = self._heaviest(key, sorted((was, *self._new)) if was in self._seeds else self._seeds)
        if found is not None and len(self.kept) < MOST_KEPT:
            self.kept[key] = found
        return found

    def _heaviest(self, key: str, nodes: Collection[int]) -> int | None:
        """`nodes` are in ascending order: the first of equal weight wins."""
        if len(nodes) < 2:
            return next(iter(nodes), None)
        hashed, seeds = _hashed(key), self._seeds
        return max(nodes, key=lambda node: _mixed(hashed ^ seeds[node]))
