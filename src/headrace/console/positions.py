"""Write the offsets at which several partitions continue as text for a URL: `0:120,1:87`."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

MOST: Final = 50
"""Maximum partitions in a text."""
_TEXT: Final = re.compile(r"\d{1,9}:\d{1,19}(?:,\d{1,9}:\d{1,19})*", re.ASCII)


def written(positions: Mapping[int, int] | Iterable[tuple[int, int]]) -> str:
    """Return the text of offsets by partition, of the first `MOST`."""
    pairs = positions.items() if isinstance(positions, Mapping) else positions
    return ",".join(f"{partition}:{offset}" for partition, offset in list(pairs)[:MOST])


def read(text: str) -> dict[int, int]:
    """Return the offsets of a text by partition; empty: it has another form."""
    if len(text) > MOST * 30 or _TEXT.fullmatch(text) is None:
        return {}
    pairs = (pair.split(":") for pair in text.split(",")[:MOST])
    return {int(partition): int(offset) for partition, offset in pairs}
