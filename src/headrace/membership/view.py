"""The numbered view: which brokers are alive. One document in Redis, changed by compare-and-set only."""

from collections.abc import Iterable

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
