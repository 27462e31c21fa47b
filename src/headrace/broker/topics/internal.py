"""Kafka's topic `__consumer_offsets`, which always exists and is empty.

Groups are stored elsewhere. Lag exporters and tools look up, describe and read the topic.
"""

from typing import cast
from uuid import NAMESPACE_URL, uuid5

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import (
    UNCOMMITTED,
    AlwaysStable,
    Isolation,
    Watcher,
    outside,
)
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.broker.topics.live import LiveTopic, not_for_clients
from headrace.membership.view import Leader
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.errors import NotLeader
from headrace.topics.model import CONSUMER_OFFSETS, Append, AppendDone, StoredBatch, Topic
from headrace.topics.rejected_batches import RejectedBatches

_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
"""As in Kafka; only shown."""


class InternalPartition(AlwaysStable):
    """A `Partition` without records."""

    log = None
    log_start = log_end = local_start = leader_epoch = 0
    deleted = paused = has_gaps = entry_per_record = False
    offline: str | None = None

    def __init__(self, topic: str, index: int, stream: str, ownership: Ownership, refusals: RejectedBatches) -> None:
        """`stream` is its key for ownership, without data."""
        self.topic = topic
        self.index = index
        self.stream = stream
        self.refusals = refusals
        self._ownership = ownership

    @property
    def leader(self) -> int | None:
        """Node id of the leader. None: this server."""
        owner = self._ownership.owner_of(self.stream)
        return None if owner == self._ownership.node_id else owner

    @property
    def named(self) -> Leader:
        """The advertised leader."""
        return Leader(0, self._ownership.owner_of(self.stream))

    async def try_again(self) -> None:
        """Do nothing: it is never offline."""

    def check_led(self) -> None:
        """Raise NotLeader unless this server leads it."""
        leader = self.leader
        if leader is not None:
            raise NotLeader(f"{self.topic}-{self.index} is led by broker {leader}")

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Raise InvalidTopicName."""
        raise not_for_clients(self.topic)

    async def delete_before(self, offset: int) -> None:
        """Raise InvalidTopicName."""
        raise not_for_clients(self.topic)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange except at 0."""
        if offset:
            raise outside(self, offset, 0, 0)

    def visible_end(self, isolation: Isolation) -> int:
        """Return 0."""
        return 0

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Return True."""
        return True

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Return True: it is known to be empty."""
        return True

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Return nothing."""
        return [], 0

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """Return nothing."""
        return [], 0

    async def read_range(self, offset: int, limit: int) -> list[StoredBatch]:
        """Return nothing."""
        return []

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """Do nothing: no records are added."""

    def unwatch(self, watcher: Watcher) -> None:
        """Do nothing."""

    def kept(self, offset: int, leader_epoch: int) -> int:
        """Return `offset`."""
        return offset

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is past 0."""
        return offset > 0

    async def ask_end(self) -> None:
        """Do nothing: the end is known."""

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """Return 0 for the bounds, else not found."""
        ends = (Special.LATEST, Special.EARLIEST, Special.EARLIEST_LOCAL)
        return FoundOffset(0) if timestamp in ends else NOT_FOUND

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the end of the only leader epoch."""
        return (0, 0) if epoch == 0 else (-1, -1)

    def want_copies(self, copies: int) -> None:
        """Do nothing."""

    def expire_producers(self, before_ms: int) -> None:
        """Do nothing."""

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Do nothing."""

    async def size(self) -> int:
        """Return 0."""
        return 0

    async def settle(self) -> None:
        """Do nothing."""

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def consumer_offsets(
    ownership: Ownership, cluster: str, cluster_id: str, partitions: int, refusals: RejectedBatches
) -> LiveTopic:
    """Return a virtual cluster's topic.

    Its id derives from `cluster_id`: equal after a restart and on all brokers.
    """
    name = CONSUMER_OFFSETS
    streams = tuple(f"internal {cluster}/{name}-{index}" for index in range(partitions))
    topic_id = uuid5(NAMESPACE_URL, f"{cluster_id}/{cluster}/{name}")
    topic = Topic(name=name, id=topic_id, streams=streams, config=_CONFIG, created_ms=0)
    # Their leaders follow the cluster membership.
    made = [
        cast("Partition", InternalPartition(name, index, stream, ownership, refusals))
        for index, stream in enumerate(streams)
    ]
    return LiveTopic(topic, resolve({}, TopicDefaults({})), made)
