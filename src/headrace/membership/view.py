"""The numbered view: which brokers are alive. One document in Redis, changed by compare-and-set only.

Brokers of a view report which logs they lead (`Leader`), and hold locks (`Lock`). What a broker owns follows from the
view by rendezvous hashing (highest random weight, Thaler and Ravishankar, 1998): each (key, node) pair has a weight,
and the heaviest node owns the key. A node that comes or goes moves only what becomes, or was, its own.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from heapq import nsmallest
from typing import NamedTuple, Self

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as the others know it."""

    node_id: int
    """Kafka's `node.id`."""
    incarnation: str
    """Tells this process from every other that had the same `node.id`."""
    process: str
    """Which process it is, for people: its pid and host."""
    host: str
    """Where Kafka's clients reach it, and ..."""
    port: int
    """... at which port."""
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """Where it has several listeners: the name, the host and the port of each."""

    http: str = ""
    """Where the other brokers reach its HTTP listener: a URL without a path."""

    def at(self, listener: str) -> tuple[str, int] | None:
        """Host and port of its listener of that name; None: it has none."""
        if not self.endpoints:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.endpoints if name == listener), None)


class View(msgspec.Struct, frozen=True):
    """Who is alive, as of a number that no other view ever has."""

    number: int
    members: tuple[Member, ...] = ()
    """By `node_id`, rising."""
    before: int = 0
    """The number of the view that it took the place of; 0: there was none, or Redis has lost some."""

    def follows(self, known: "View | None") -> bool:
        """Whether nobody can have owned anything by a view between this one and one that is known."""
        return known is not None and self.before == known.number

    def member(self, node_id: int) -> Member | None:
        """The broker with this id; None: there is none."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def has(self, wanted: Member) -> bool:
        """Whether this very process is in it."""
        found = self.member(wanted.node_id)
        return found is not None and found.incarnation == wanted.incarnation


def joined(members: Iterable[Member], newcomer: Member) -> tuple[Member, ...]:
    """The members with one more, which replaces an earlier process of the same `node.id`."""
    return _sorted([newcomer, *(each for each in members if each.node_id != newcomer.node_id)])


def without(members: Iterable[Member], gone: Iterable[Member]) -> tuple[Member, ...]:
    """The members without some of them."""
    leaving = {(each.node_id, each.incarnation) for each in gone}
    return _sorted(each for each in members if (each.node_id, each.incarnation) not in leaving)


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda each: each.node_id))


class Leader(NamedTuple):
    """Who has opened a log, as that broker itself has told. A later one has a higher epoch."""

    epoch: int
    """Leader epoch, which no other opening ever has; -1: nobody has told."""
    node_id: int
    """-1: it is not known, or gone."""

    @classmethod
    def of(cls, text: str) -> Self:
        """The leader that `text` was; of one that was told without its node id only the epoch is known."""
        epoch, _, node = text.partition(":")
        return cls(int(epoch), int(node or -1))

    @property
    def text(self) -> str:
        """As it is stored and told."""
        return f"{self.epoch}:{self.node_id}"


def leader_pairs(leaders: Mapping[str, Leader]) -> list[str]:
    """Streams and leaders, in turn."""
    return [part for stream, leader in leaders.items() for part in (stream, leader.text)]


def leaders(told: str) -> dict[str, Leader]:
    """By stream, of what `leader_pairs` made, with spaces between."""
    parts = told.split(" ")
    return {stream: Leader.of(text) for stream, text in zip(parts[::2], parts[1::2], strict=True)}


class Lock(NamedTuple):
    """Held by whoever has it."""

    key: str
    """Where it is in Redis; empty for a broker that is alone and needs none."""
    token: str
    """What is there as long as it is held."""
    revisions: Mapping[str, int]
    """Kind of documents -> how often some of them had been changed when it was taken, where others change any."""


ALONE = Lock("", "", {})
"""That of a broker that is alone: nobody else changes anything."""


_MASK = (1 << 64) - 1
MOST_KEPT = 200_000
"""Answers that are kept for the next set of nodes; those of deleted topics are among them until then."""


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: each bit of the value changes about half of those of the result."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Rendezvous:
    """Chooses among a set of nodes."""

    def __init__(self, nodes: Iterable[int], before: "Rendezvous | None" = None) -> None:
        """Prepare for these node ids.

        Args:
            nodes: of all of them.
            before: the choice among the nodes there were until now, whose last answers of `choose_again` are used.
        """
        self._seeds = {node: _hashed(f"node {node}") for node in sorted(set(nodes))}
        self.kept: dict[str, int] = {}
        """Key -> what `choose_again` has answered."""
        self._before = {} if before is None else before.kept
        self._new = [] if before is None else [node for node in self._seeds if not before.has(node)]

    def has(self, node: int) -> bool:
        """Whether it is among the nodes."""
        return node in self._seeds

    def choose(self, key: str) -> int | None:
        """The node that owns a key; None where there are no nodes."""
        return self._heaviest(key, self._seeds)

    def ranking(self, key: str, count: int) -> list[int]:
        """At most `count` nodes, each the one that would own a key without those before it."""
        hashed, seeds = _hashed(key), self._seeds
        # As in `_heaviest` the smallest of those that weigh the same is first.
        return nsmallest(count, seeds, key=lambda node: (-_mixed(hashed ^ seeds[node]), node))

    def choose_again(self, key: str) -> int | None:
        """As `choose`, for keys that are asked for with each set of nodes: few nodes are weighed then.

        Who was the heaviest and is still there can be beaten by newcomers only. Names that strangers make up are for
        `choose`: nothing is kept of them.
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
        """`nodes` in ascending order: the first of those that weigh the same."""
        if len(nodes) < 2:
            return next(iter(nodes), None)
        hashed, seeds = _hashed(key), self._seeds
        return max(nodes, key=lambda node: _mixed(hashed ^ seeds[node]))
