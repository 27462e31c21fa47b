"""Positions of groups, shown in the Redis consumer groups of the streams."""

import asyncio
from collections.abc import Callable

import structlog

from headrace.broker.partition import Partition
from headrace.groups.model import Position, TopicPartition
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.groups")

PartitionOf = Callable[[TopicPartition], Partition | None]


class Mirror:
    """Shows positions in the Redis consumer groups of the streams, after the commit and without holding it up."""

    def __init__(self, partition_of: PartitionOf) -> None:
        self._partition_of = partition_of
        self._pending: dict[tuple[str, TopicPartition], int] = {}
        self._task: asyncio.Task[None] | None = None

    def show(self, group: str, positions: dict[TopicPartition, Position]) -> None:
        """Mirror these soon; a newer position of the same partition replaces one that has not been shown yet."""
        for partition, position in positions.items():
            self._pending[group, partition] = position.offset
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                (group, place), offset = self._pending.popitem()
                partition = self._partition_of(place)
                if partition is None:
                    # Its topic was deleted; there may be as many of them as a topic has partitions, in every group.
                    await asyncio.sleep(0)
                    continue
                try:
                    await partition.mirror_position(group, offset)
                except TopicError as error:
                    _log.warning("position not mirrored", group=group, stream=partition.stream, reason=str(error))
        finally:
            self._task = None

    async def settle(self) -> None:
        """Wait until everything asked so far is shown."""
        if self._task is not None:
            await asyncio.wait([self._task])
