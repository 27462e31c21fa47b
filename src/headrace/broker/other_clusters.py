"""What a broker needs from the other virtual clusters of its server."""

from collections.abc import Iterable, Iterator
from typing import Protocol
from uuid import UUID

from headrace.broker.broker import Broker
from headrace.broker.topics.live import LiveTopic, OtherClusters
from headrace.broker.topics.table import TopicTable
from headrace.topics.model import Topic
from headrace.topics.transactions import OpenTransaction
from headrace.transactions.model import PartitionId


class Clusters(Protocol):
    """All virtual clusters of the server."""

    def __iter__(self) -> Iterator[tuple[str, Broker]]:
        """Return names and brokers."""

    @property
    def changing(self) -> bool:
        """Whether a cluster or a topic may be added, moved or deleted now, or is not known."""

    async def has_moved(self, topic: str, stream: str) -> bool:
        """See `OtherClusters.has_moved`."""

    def find(self, topic_id: UUID) -> LiveTopic | None:
        """See `OtherClusters.find`."""


class ServerClusters(OtherClusters):
    """All virtual clusters of the server but one."""

    def __init__(self, clusters: Clusters, own: str) -> None:
        """`own` is the name of the excluded one."""
        self._clusters = clusters
        self._own = own

    def _brokers(self) -> Iterator[Broker]:
        return (broker for name, broker in self._clusters if name != self._own)

    def _tables(self) -> Iterator[TopicTable]:
        return (broker.topics for broker in self._brokers())

    def topics(self) -> Iterable[Topic]:
        """See `OtherClusters`."""
        return (live.topic for table in self._tables() for live in table)

    def partitions(self) -> int:
        """See `OtherClusters`."""
        return sum(table.partitions for table in self._tables())

    async def has_moved(self, topic: str, stream: str) -> bool:
        """See `OtherClusters`."""
        return await self._clusters.has_moved(topic, stream)

    def find(self, topic_id: UUID) -> LiveTopic | None:
        """See `OtherClusters`."""
        return self._clusters.find(topic_id)

    async def may_end(self, transaction: OpenTransaction, topic_id: UUID, index: int) -> bool:
        """See `OtherClusters`."""
        place = PartitionId(topic_id, index)
        for broker in self._brokers():
            if await broker.transactions.may_end_in(transaction, place):
                return True
        return self._clusters.changing
