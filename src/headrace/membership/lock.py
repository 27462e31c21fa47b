"""A lock that one broker of several holds for a while."""

from collections.abc import Mapping
from typing import NamedTuple


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
