"""The state hash of a partition, for readers: where its log starts and ends."""

from collections.abc import Sequence

FIELDS = ("b", "n")
"""Log start, next offset. The server-side scripts keep them, and more that only they read."""


def extent(values: Sequence[bytes | None]) -> tuple[int, int]:
    """Log start and next offset from the values of FIELDS; a partition that no server has opened yet is empty."""
    start, end = values
    return int(start or 0), int(end or 0)
