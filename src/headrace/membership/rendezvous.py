"""Rendezvous hashing: every broker finds the same owner; who comes or goes moves only what becomes, or was, its own.

Highest random weight (Thaler and Ravishankar, 1998): each (key, node) pair has a weight, and the heaviest node owns
the key.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from heapq import nsmallest

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
