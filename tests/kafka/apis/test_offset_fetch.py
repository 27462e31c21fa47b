"""OffsetFetch while its group moves: the previous coordinator has no offsets of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.errors import GroupError
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.kafka.apis.offset_fetch import handle
from headrace.kafka.errors import Code
from headrace.membership.view import View
from headrace.protocol.messages import OffsetFetchRequest

PLACE = TopicPartition("t", 0)


class Groups:
    """One group, with a position in one partition."""

    def __init__(self) -> None:
        self.loaded = False
        self.refused: GroupError | None = None
        self.moved = False
        self.pending: set[TopicPartition] = set()
        self.stored = {PLACE: OffsetAndMetadata(offset=5, metadata="m" * 1_000)}

    async def ready(self, _: str) -> GroupError | None:
        self.loaded = True
        return self.refused

    def moved_lately(self) -> bool:
        return self.moved

    def unstable(self, _: str) -> set[TopicPartition]:
        return self.pending

    def positions(self, _: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.stored if self.loaded else {}


class Site:
    """A broker among others, and a request to it."""

    def __init__(self, version: int) -> None:
        self.groups = Groups()
        self.ownership = Ownership(1)
        self.ownership.adopt(View(1), inside=True)
        self.handed_over = False
        self.reserved: list[int] = []
        broker = SimpleNamespace(groups=self.groups, ownership=self.ownership, positions=self.positions)
        self.context: Any = SimpleNamespace(
            broker=broker,
            version=version,
            pace=CooperativeScheduler().pace,
            reserve=self.reserve,
            reserve_parts=self.reserve_parts,
        )

    async def positions(self, group: str, asked: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        if self.handed_over:
            self.ownership.adopt(View(2), inside=True)
            return {}
        return self.groups.positions(group)

    async def reserve(self, size: int) -> None:
        self.reserved.append(size)

    async def reserve_parts(self, sizes: dict[str, int]) -> set[str]:
        self.reserved += sizes.values()
        return set(sizes)

    async def fetch(self, *, everything: bool = False, stable: bool = False) -> Any:
        request = OffsetFetchRequest(group_id="g", require_stable=stable)
        if self.context.version < 8:
            topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
            request.topics = None if everything else [topic]
            return await self._handled(request)
        topics = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None if everything else [topics])
        request.groups = [asked]
        [group] = (await self._handled(request)).groups
        return group

    async def _handled(self, request: OffsetFetchRequest) -> Any:
        later = handle(request, self.context)
        assert later is not None
        return await later


@pytest.fixture(params=[3, 7, 8])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


async def test_an_offset_is_returned(site: Site) -> None:
    answer = await site.fetch()
    assert (answer.error_code, answer.topics[0].partitions[0].committed_offset) == (Code.NONE, 5)


@pytest.mark.parametrize("everything", [False, True])
async def test_a_partition_with_pending_offsets_is_unstable_on_request(site: Site, everything: bool) -> None:
    site.groups.pending.add(PLACE)
    for stable, expected in ((False, (Code.NONE, 5)), (True, (Code.UNSTABLE_OFFSET_COMMIT, -1))):
        answer = await site.fetch(everything=everything, stable=stable)
        assert answer.error_code == Code.NONE
        partition = answer.topics[0].partitions[0]
        assert (partition.error_code, partition.committed_offset) == expected
    site.groups.pending = {TopicPartition("t", 1)}
    answer = await site.fetch(everything=everything, stable=True)
    assert answer.topics[0].partitions[0].committed_offset == 5


async def test_a_group_in_handover_is_not_one_without_offsets(site: Site) -> None:
    """Its members would begin where `auto.offset.reset` says. All of them ask again for this code."""
    site.handed_over = True
    answer = await site.fetch()
    assert answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert [partition.committed_offset for topic in answer.topics for partition in topic.partitions] in ([], [-1])


@pytest.mark.parametrize("version", [1, 2, 3, 7])
async def test_a_rejected_group_has_an_error_for_each_partition(version: int) -> None:
    """To aiokafka an answer without partitions says that nothing is committed; version 1 has no other error."""
    site = Site(version)
    site.groups.refused = GroupError.NOT_COORDINATOR
    answer = await site.fetch()
    [topic] = answer.topics
    [partition] = topic.partitions
    assert (partition.error_code, partition.committed_offset) == (Code.NOT_COORDINATOR, -1)
    assert answer.error_code == (Code.NOT_COORDINATOR if version >= 2 else Code.NONE)


async def test_a_group_that_has_just_moved_is_asked_for_again(site: Site) -> None:
    """librdkafka reads nothing of its partitions until the next rebalance after NOT_COORDINATOR."""
    site.groups.refused, site.groups.moved = GroupError.NOT_COORDINATOR, True
    assert (await site.fetch()).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_group_in_doubt_is_asked_for_again(site: Site) -> None:
    site.groups.refused = GroupError.COORDINATOR_NOT_AVAILABLE
    assert (await site.fetch()).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS


async def test_memory_is_reserved_for_a_group_that_has_just_been_taken_over(site: Site) -> None:
    await site.fetch(everything=True)
    assert site.reserved[0] > 1_000
