"""Offsets of the archive: what is in it, and what is not yet (reference: KIP-1005, KIP-1023)."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.batches import batch
from tests.harness.memory import MemoryStorage

from headrace.broker.partition import offset_lookup
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.remote_log import RemotePartition
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.broker.runtime.decompression import Decompression
from headrace.topics.archive import Archived


def archived(extent: Archived | None, start: int = 0) -> RemotePartition:
    """Return the archive of a partition after its table has been reloaded."""

    async def refresh() -> None:
        archive.extents = {} if extent is None else {0: extent}

    archive: Any = SimpleNamespace(extents={}, refresh=refresh)
    return RemotePartition(archive, 0, start)


@pytest.mark.parametrize(
    ("cold", "latest_tiered", "earliest_pending"),
    [
        (None, NOT_FOUND, NOT_FOUND),
        (archived(None), NOT_FOUND, FoundOffset(0)),
        (archived(Archived(0, 0)), NOT_FOUND, FoundOffset(0)),
        (archived(Archived(0, 2)), FoundOffset(1), FoundOffset(2)),
        (archived(Archived(0, 3)), FoundOffset(2), FoundOffset(3)),
    ],
)
async def test_the_end_of_the_archive(
    partition: LeaderPartition,
    storage: MemoryStorage,
    cold: RemotePartition | None,
    latest_tiered: FoundOffset,
    earliest_pending: FoundOffset,
) -> None:
    partition.append(batch(3, timestamp=1_000), lambda _: None)
    storage.logs.answer()
    searcher = Searcher(Decompression())
    for special, wanted in (
        (Special.LATEST_TIERED, latest_tiered),
        (Special.EARLIEST_PENDING_UPLOAD, earliest_pending),
    ):
        assert await offset_lookup.find(storage.logs, partition, special, searcher, cold) == wanted
