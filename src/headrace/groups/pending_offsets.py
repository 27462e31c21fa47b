"""Pending offsets of one group: offsets of transactions that have not ended here.

A request that waits for the verification of its transaction holds a guard. The end of a transaction invalidates it, so
that a late request cannot leave offsets that no end follows (KAFKA-14402).
"""

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from headrace.groups.model import OffsetAndMetadata, PendingKey, PendingOffset, TopicPartition

K = TypeVar("K", bound=Hashable)
_PENDING_BYTES = 700
"""Charged for each pending offset in addition to its metadata."""


def size_of(pending: PendingOffset) -> int:
    """Return the bytes charged for a pending offset."""
    metadata = pending.position.metadata
    return _PENDING_BYTES + (len(metadata) if metadata.isascii() else 4 * len(metadata))


class Guard:
    """Permission to store pending offsets of one producer. It ends with its last reference, or with a transaction."""

    __slots__ = ("__weakref__",)


class OpenTransaction(NamedTuple):
    """A transaction with pending offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int


class PendingOffsets:
    """Pending offsets by producer and partition."""

    def __init__(self, stored: Mapping[PendingKey, PendingOffset] = MappingProxyType({})) -> None:
        self._pending: dict[PendingKey, PendingOffset] = {}
        self._by_producer: dict[int, dict[PendingKey, None]] = {}
        self._by_partition: dict[TopicPartition, dict[PendingKey, None]] = {}
        self._guards: WeakValueDictionary[int, Guard] = WeakValueDictionary()
        self.size = 0
        """Approximate bytes of all of them."""
        self.put(stored)

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._by_partition

    def all(self) -> Mapping[PendingKey, PendingOffset]:
        """Return a view of all pending offsets."""
        return MappingProxyType(self._pending)

    def get(self, key: PendingKey) -> PendingOffset | None:
        """Return a pending offset, if it exists."""
        return self._pending.get(key)

    def of_producer(self, producer_id: int) -> dict[PendingKey, PendingOffset]:
        """Return the pending offsets of a producer."""
        return {key: self._pending[key] for key in self._by_producer.get(producer_id, ())}

    def last_of_producer(self, producer_id: int) -> PendingOffset | None:
        """Return one of the producer's newest pending offsets: all are of one transaction."""
        keys = self._by_producer.get(producer_id)
        return None if keys is None else self._pending[next(reversed(keys))]

    def of_partition(self, partition: TopicPartition) -> tuple[PendingKey, ...]:
        """Return the keys of all pending offsets in a partition."""
        return tuple(self._by_partition.get(partition, ()))

    def partitions(self) -> Mapping[TopicPartition, Iterable[PendingKey]]:
        """Return a view of the partitions with pending offsets."""
        return MappingProxyType(self._by_partition)

    def positions(self, partition: TopicPartition) -> list[OffsetAndMetadata]:
        """Return the pending offsets in a partition."""
        return [self._pending[key].position for key in self._by_partition.get(partition, ())]

    def transactions(self) -> set[OpenTransaction]:
        """Return the transactions with pending offsets."""
        return {
            OpenTransaction(each.transactional_id, key.producer_id, each.producer_epoch, each.number)
            for key, each in self._pending.items()
        }

    def put(self, pending: Mapping[PendingKey, PendingOffset]) -> None:
        """Add or replace pending offsets."""
        for key, each in pending.items():
            before = self._pending.get(key)
            self.size += size_of(each) - (0 if before is None else size_of(before))
            self._pending[key] = each
            self._by_producer.setdefault(key.producer_id, {})[key] = None
            self._by_partition.setdefault(key.partition, {})[key] = None

    def remove(self, keys: Iterable[PendingKey]) -> tuple[PendingKey, ...]:
        """Remove pending offsets. Return the keys of those that existed."""
        gone = []
        for key in keys:
            before = self._pending.pop(key, None)
            if before is None:
                continue
            self.size -= size_of(before)
            gone.append(key)
            _discard(self._by_producer, key.producer_id, key)
            _discard(self._by_partition, key.partition, key)
        return tuple(gone)

    def clear(self) -> None:
        """Forget all pending offsets and guards."""
        self._pending.clear()
        self._by_producer.clear()
        self._by_partition.clear()
        self._guards.clear()
        self.size = 0

    def guard(self, producer_id: int) -> Guard:
        """Return the producer's guard. Keep it until the event that stores its offsets is handled."""
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = Guard()
        return guard

    def admits(self, producer_id: int, guard: Guard | None) -> bool:
        """Return whether no transaction of the producer has ended since it got the guard."""
        return guard is not None and self._guards.get(producer_id) is guard

    def invalidate(self, producer_id: int) -> None:
        """Invalidate the producer's guard."""
        self._guards.pop(producer_id, None)

    @property
    def guarded(self) -> bool:
        """Whether any request holds a guard."""
        return bool(self._guards)


def _discard(index: dict[K, dict[PendingKey, None]], at: K, key: PendingKey) -> None:
    keys = index[at]
    del keys[key]
    if not keys:
        del index[at]
