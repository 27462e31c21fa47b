"""Producer ids: unique for ever, taken from storage in blocks."""

import asyncio

from headrace.broker.ports import TopicStorage

BLOCK = 1_000
"""Ids taken at once, as in Kafka; what a server does not use before it stops is lost, and there are 2^63."""


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, storage: TopicStorage) -> None:
        self._storage = storage
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id nobody was given before. Raises StorageUnavailable, StorageFull, Fenced."""
        async with self._refill:
            if self._next == self._end:
                self._next = await self._storage.allocate_producer_ids(BLOCK)
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1
