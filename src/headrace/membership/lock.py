"""A lock that one broker of several holds for a while."""

from typing import NamedTuple


class Lock(NamedTuple):
    """Held by whoever has it."""

    key: str
    """Where it is in Redis; empty for a broker that is alone and needs none."""
    token: str
    """What is there as long as it is held."""
    revisions: dict[str, int] | None
    """Kind of documents -> how often some of them had been changed when it was taken; None: nobody else changes any."""


ALONE = Lock("", "", None)
"""That of a broker that is alone."""
