"""How many bytes partitions hold, asked a few at a time so that ten thousand of them keep nobody else waiting."""

import asyncio
from collections.abc import Iterable

from headrace.broker.partition.partition import Partition
from headrace.broker.runtime.scheduler import TimeSlice

_AT_ONCE = 64


async def of(partitions: Iterable[Partition], pace: TimeSlice) -> list[int]:
    """Bytes of each partition: of the record batches in a log, of a native topic what Redis says of its stream."""
    chosen = list(partitions)
    sizes: list[int] = []
    for first in range(0, len(chosen), _AT_ONCE):
        if first:
            # Redis answers many who ask in one turn of the loop.
            await pace.rest()
        sizes += await asyncio.gather(*(each.size() for each in chosen[first : first + _AT_ONCE]))
    return sizes
