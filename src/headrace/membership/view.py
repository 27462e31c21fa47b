"""The numbered view: which brokers are alive. One document in Redis, changed by compare-and-set only.

Brokers of a view report which logs they lead (`Leader`), and hold locks (`Lock`).
"""

from collections.abc import Iterable, Mapping
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
