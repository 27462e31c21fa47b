"""Positions of groups, shown in the Redis consumer groups of the streams."""

import asyncio
from collections.abc import Callable

import structlog

from headrace.aio.tasks import end
from headrace.broker.partition.partition import Partition
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.broker.coordinator")

PartitionOf = Callable[[TopicPartition], Partition | None]

_AT_ONCE = 64
"""Positions that are shown in one round trip: what is asked in one turn of the loop leaves in one write.

Redis takes a millisecond or two for as many, for which others' requests wait behind them.
"""
_STOP_S = 3.0
"""How long a server that ends waits for what is not shown yet."""


class OffsetMirror:
    """Shows positions in the Redis consumer groups of the streams, after the commit and without holding it up."""

    def __init__(self, partition_of: PartitionOf) -> None:
        self._partition_of = partition_of
        self._pending: dict[tuple[str, TopicPartition], int] = {}
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def show(self, group: str, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Mirror these soon; a newer position of the same partition replaces one that has not been shown yet."""
        if self._stopped:
            return
        for partition, position in positions.items():
            self._pending[group, partition] = position.offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                # Those of one partition and group are never under way together, so the newest is shown last.
                taken = [self._pending.popitem() for _ in range(min(_AT_ONCE, len(self._pending)))]
                found = [(group, self._partition_of(place), offset) for (group, place), offset in taken]
                # Topics may have been deleted; there may be as many positions as partitions, in every group.
                there = [(group, partition, offset) for group, partition, offset in found if partition is not None]
                self._under_way = len(there)
                refused = await asyncio.gather(*(_show(*each) for each in there))
                self._under_way = 0
                why = [
                    (partition.stream, error) for (_, partition, _), error in zip(there, refused, strict=True) if error
                ]
                if why:
                    stream, error = why[0]
                    _log.warning("positions not mirrored", positions=len(why), first=stream, reason=str(error))
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def settle(self) -> None:
        """Wait until everything asked so far is shown."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Show what was asked so far, but wait no longer than so many seconds; show no more after that.

        Positions are stored elsewhere: one that is not shown is shown by the partition's next commit.
        """
        self._stopped = True
        task = self._task
        if task is None:
            return
        await asyncio.wait([task], timeout=within_s)
        missing = len(self._pending) + self._under_way
        if not task.done():
            await end(task)
            _log.warning(
                "the server ends before all positions are shown in Redis' consumer groups: "
                "what is missing there is shown by the next commits",
                positions=missing,
            )


async def _show(group: str, partition: Partition, offset: int) -> TopicError | None:
    """Show one; why that could not be."""
    try:
        await partition.mirror_position(group, offset)
    except TopicError as error:
        return error
    return None
