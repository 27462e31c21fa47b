"""Rendezvous hashing: every broker finds the same owner; who comes or goes moves only what becomes, or was, its own.

Highest random weight (Thaler and Ravishankar, 1998): each (key, node) pair has a weight, and the heaviest node owns
the key.
"""

from collections.abc import Iterable
from hashlib import blake2b

_MASK = (1 << 64) - 1


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: each bit of the value changes about half of those of the result."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Rendezvous:
    """Chooses among a set of nodes."""

    def __init__(self, nodes: Iterable[int]) -> None:
        """Prepare for these node ids."""
        self._seeds = [(_hashed(f"node {node}"), node) for node in sorted(set(nodes))]

    def choose(self, key: str) -> int | None:
        """The node that owns a key; None where there are no nodes."""
        if len(self._seeds) < 2:
            return self._seeds[0][1] if self._seeds else None
        hashed = _hashed(key)
        return max(self._seeds, key=lambda seed: _mixed(hashed ^ seed[0]))[1]
