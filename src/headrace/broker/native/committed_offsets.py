"""Carries groups' positions over where a topic's offsets change: `headrace.broker.native.conversion`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.runtime.retry import retry_while_unavailable
from headrace.groups.consumer_subscription import topics_of
from headrace.groups.description import GroupDescription
from headrace.groups.effects import CommitResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.topics.errors import InvalidConfig, StorageUnavailable

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topics.live import LiveTopic


_AWAY = GroupError.COORDINATOR_NOT_AVAILABLE


class NativeGroupOffsets:
    """The positions of all groups of a broker in one topic."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._stand: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    async def wanted(self, live: "LiveTopic") -> dict[int, set[int]]:
        """Offsets by partition at which groups stand.

        Raises:
            InvalidConfig: a group has members.
            StorageUnavailable: not all groups are loaded: whose broker has just gone, say.
        """
        name = live.topic.name
        if self._broker.instances.groups_of(live):
            raise InvalidConfig(f"topic {name!r} has groups of OCI instances: delete them first")
        await self._load_all()
        offsets: dict[int, set[int]] = {}
        self._stand.clear()
        known = {group.name: group for group in self._broker.groups.describe_all()}
        for group in sorted(known.keys() | await _groups_of_redis(live)):
            found = await self._broker.positions(group, [TopicPartition(name, each.index) for each in live.partitions])
            described = known.get(group)
            if described is not None and described.members and (found or _reads(described, name)):
                raise InvalidConfig(f"group {group!r} reads topic {name!r}: stop its consumers first")
            if found:
                self._stand[group] = found
            for partition, position in found.items():
                offsets.setdefault(partition.partition, set()).add(position.offset)
        return offsets

    async def _load_all(self) -> None:
        groups = self._broker.groups
        if groups.coordination.shared:
            for name in await groups.storage.names():
                refused = await groups.ready(name)
                if refused is not None:
                    raise StorageUnavailable(f"group {name!r} is not known here yet: {refused.name}")

    async def carry(self, live: "LiveTopic", moved: Mapping[tuple[int, int], int]) -> None:
        """Commit the new offsets for all of them, as many as can be. Raises StorageUnavailable: not all were taken."""
        left = dict(self._stand)
        refused: dict[str, CommitResult] = {}

        async def commit_left() -> None:
            refused.clear()
            for group, positions in tuple(left.items()):
                result = await self._commit(group, positions, moved)
                if any(error is not None for error in result.partitions.values()):
                    refused[group] = result
                else:
                    # Not once more: it may have moved on by the time that others are taken.
                    del left[group]
            if any(_AWAY in result.partitions.values() for result in refused.values()):
                raise StorageUnavailable(_untaken(refused))

        await retry_while_unavailable(commit_left)
        if refused:
            raise StorageUnavailable(_untaken(refused))

    async def _commit(
        self, group: str, positions: Mapping[TopicPartition, OffsetAndMetadata], moved: Mapping[tuple[int, int], int]
    ) -> CommitResult:
        new = {
            partition: OffsetAndMetadata(offset=moved[partition.partition, position.offset], metadata=position.metadata)
            for partition, position in positions.items()
        }
        commit = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=new)
        result = await self._broker.groups.request(group, commit)
        assert isinstance(result, CommitResult)
        return result


def _untaken(refused: Mapping[str, CommitResult]) -> str:
    return "; ".join(
        f"positions of group {group!r} were not taken: {result.partitions}" for group, result in refused.items()
    )


async def _groups_of_redis(live: "LiveTopic") -> set[str]:
    """Names of the Redis groups of a native topic's streams: some have had no member but Redis programs."""
    return {each.name for native in live.natives for each in await native.storage.group_lags(native.place)}


def _reads(group: GroupDescription, topic: str) -> bool:
    """Whether a member has subscribed to a topic: it goes on where it is, also where nothing was committed yet."""
    return any(topic in (topics_of(member.metadata) or ()) for member in group.members)
