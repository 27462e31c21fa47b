"""Rejected batches of producers expire, in every kind of partition and with every leader."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.batches import sent

from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.topics.retention import Retention
from headrace.testing.clock import ManualClock
from headrace.topics.errors import NotLeader, StorageUnavailable
from headrace.topics.native import Extent, NativeStream
from headrace.topics.rejected_batches import RejectedBatches


class _Native:
    """A plain stream in which nothing is."""

    def watch(self, *_: object) -> None:
        pass

    async def trim(self, *_: object, **__: object) -> Extent:
        return Extent()


@pytest.mark.parametrize("leader", [None, 2])
@pytest.mark.parametrize("kind", ["log", "native"])
async def test_refusals_expire_with_silent_producers(
    partition: LeaderPartition, clock: ManualClock, kind: str, leader: int | None
) -> None:
    """No producer state exists: their first batches were rejected, and the producers have given up."""
    native: Any = _Native()
    refusing: Any = partition
    if kind == "native":
        refusing = NativePartition("t", 0, NativeStream("s", 16), Extent(), native, RejectedBatches(clock.ticks_ms))
    refusing.paused = True
    with pytest.raises(StorageUnavailable):
        refusing.append(sent(0), lambda _: None)
    refusing.paused = False
    if leader is not None and kind == "log":
        partition.release(leader)
        with pytest.raises(NotLeader):
            partition.check_led()
    refusing.leader = leader
    config = SimpleNamespace(remote=False, retention_ms=-1, retention_bytes=-1)
    topics: Any = [SimpleNamespace(config=config, partitions=[refusing])]
    clock.advance(100)
    await Retention(topics, clock, 100, None).enforce(0)
    assert len(refusing.refusals.first) == 1
    clock.advance(1)
    await Retention(topics, clock, 100, None).enforce(0)
    assert refusing.refusals.first == {}
