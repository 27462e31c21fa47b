"""How many bytes partitions hold, asked a few at a time so that ten thousand of them keep nobody else waiting."""

from collections.abc import Iterable

from headrace.aio.concurrency import in_slices
from headrace.broker.partition.partition import Partition
from headrace.broker.runtime.scheduler import TimeSlice

_AT_ONCE = 64


async def of(partitions: Iterable[Partition], pace: TimeSlice) -> list[int]:
    """Bytes of each partition: of the record batches in a log, of a native topic what Redis says of its stream."""
    chosen = list(partitions)
    sizes: list[int] = []
    # Redis answers many who ask in one turn of the loop.
    async for part in in_slices(chosen, lambda each: each.size(), _AT_ONCE, pace.rest):
        sizes += [size for _, size in part]
    return sizes
