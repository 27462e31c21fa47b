"""Group lag and assignments of a running server, as plain data for displays."""

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import Isolation
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.groups.consumer_subscription import partitions_of
from headrace.groups.description import GroupDescription
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.groups.offsets import Move, Target, destination, record_lag
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.sharing.state import ShareState

ISOLATION = Isolation.READ_UNCOMMITTED
"""Lag and resets end at the high watermark, as in Kafka's tools."""
_AT_ONCE = 500
"""Partitions of one member read per turn of the event loop."""


class Share(msgspec.Struct, frozen=True):
    """A member of a group with its partitions."""

    member: str
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Planned(Move, frozen=True):
    """A planned reset, valid for this topic id only."""

    topic_id: UUID


class CommittedOffset(msgspec.Struct, frozen=True):
    """State of a group in one partition."""

    place: TopicPartition
    position: int | None
    """None: no commit."""
    log_end: int | None
    """None: the partition was deleted, or another broker leads it."""
    lag: int | None
    """Unread records, from the log start offset without commits. None: unknown."""
    member: str | None


async def shares(found: GroupDescription, pace: TimeSlice) -> list[Share]:
    """Return a group's members by id. Yields to the event loop: there may be thousands."""
    present = []
    for each in found.members:
        places: list[TopicPartition] = []
        for topic, indexes in sorted((partitions_of(each.assignment) or {}).items()):
            indexes.sort()
            for start in range(0, len(indexes), _AT_ONCE):
                if pace.over:
                    await pace.rest()
                places += [TopicPartition(topic, index) for index in indexes[start : start + _AT_ONCE]]
        present.append(Share(each.member_id, each.client_id, each.client_host.lstrip("/"), tuple(places)))
        if pace.over:
            await pace.rest()
    return sorted(present, key=lambda share: share.member)


async def group_offsets(broker: Broker, group: str, present: Iterable[Share]) -> list[CommittedOffset]:
    """Return every partition's state in topics of the group's offsets or members.

    Raises StorageUnavailable: it reads native topics.
    """
    positions = await broker.positions(group, None)
    pace = broker.lane.pace()
    owners: dict[TopicPartition, str] = {}
    places: dict[str, set[int]] = {}
    async for place, member in pace.each(_held(list(positions), present)):
        places.setdefault(place.topic, set()).add(place.partition)
        if member is not None:
            owners[place] = member
    for topic, indexes in places.items():
        if broker.topics.has(topic):
            indexes.update(range(len(broker.topics.get(topic).partitions)))
    natives = {place: lag for topic in places for place, lag in (await broker.native_groups.lags(topic, group)).items()}
    in_order = (TopicPartition(topic, index) for topic in sorted(places) for index in sorted(places[topic]))
    return [
        _committed_offset(broker, place, positions.get(place), owners.get(place), natives)
        async for place in pace.each(in_order)
    ]


def _held(positions: Iterable[TopicPartition], present: Iterable[Share]) -> Iterator[tuple[TopicPartition, str | None]]:
    for place in positions:
        yield place, None
    for share in present:
        for place in share.partitions:
            yield place, share.member


def _committed_offset(
    broker: Broker,
    place: TopicPartition,
    position: OffsetAndMetadata | None,
    member: str | None,
    natives: Mapping[TopicPartition, int | None],
) -> CommittedOffset:
    offset = None if position is None else position.offset
    if not broker.topics.has(place.topic):
        return CommittedOffset(place, offset, None, None, member)
    live = broker.topics.get(place.topic)
    if place.partition >= len(live.partitions):
        return CommittedOffset(place, offset, None, None, member)
    partition = live.partitions[place.partition]
    if partition.leader is not None:
        return CommittedOffset(place, offset, None, None, member)
    end = partition.visible_end(ISOLATION)
    lag = natives.get(place) if partition.has_gaps else record_lag(offset, partition.log_start, end)
    return CommittedOffset(place, offset, end, lag, member)


def topics_read(broker: Broker, runner: GroupRunner) -> Iterator[str]:
    """Yield topics of a group's offsets and members, with repetitions. Of a share group: those with its states."""
    if isinstance(runner.machine.part, ShareGroup):
        yield from list(runner.machine.part.topics)
        return
    for place in list(runner.positions):
        yield place.topic
    described = broker.groups.describe(runner.name)
    for member in () if described is None else described.members:
        yield from partitions_of(member.assignment) or {}


def log_lags(
    broker: Broker, positions: Mapping[TopicPartition, OffsetAndMetadata], topics: Iterable[str]
) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and lag for topics led here whose offsets count records."""
    for topic in topics:
        if not broker.topics.has(topic):
            continue
        offsets = {place.partition: position.offset for place, position in positions.items() if place.topic == topic}
        for partition in broker.topics.get(topic).partitions:
            if partition.leader is None and not partition.has_gaps:
                offset = offsets.get(partition.index)
                yield topic, partition.index, record_lag(offset, partition.log_start, partition.visible_end(ISOLATION))


def known_lags(broker: Broker, runner: GroupRunner, topics: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and lag as `log_lags`, for a group of any type.

    Of a share group, these are partitions from which members fetch at this broker. The others are in storage only.
    """
    if not isinstance(runner.machine.part, ShareGroup):
        yield from log_lags(broker, runner.positions, topics)
        return
    asked = set(topics)
    for share in broker.shares.logs_of(runner.name):
        if share.log.topic in asked:
            yield share.log.topic, share.log.index, share.lag


def share_lag(partition: Partition, state: ShareState) -> int | None:
    """Return the number of records that are not done by a stored state. None: another broker leads the partition."""
    if partition.leader is not None:
        return None
    start = max(state.spso, partition.log_start)
    return max(0, partition.visible_end(ISOLATION) - start - state.done_from(start))


def lag_of(broker: Broker, runner: GroupRunner, topics: Iterable[str]) -> int | None:
    """Return the lag of a group in these topics. None: no offsets count records, or see `known_lags`."""
    lag = None
    for _, _, records in known_lags(broker, runner, topics):
        lag = (lag or 0) + records
    return lag


async def plan_reset(broker: Broker, group: str, target: Target, topic: str | None) -> list[Planned]:
    """Return the effect of a reset on a group's offsets.

    `topic`: None for all. Raises UnknownTopic, StorageUnavailable.
    """
    positions = await broker.positions(group, None)
    if topic is None:
        places = [place for place in sorted(positions) if _is_there(broker, place)]
    else:
        places = [TopicPartition(topic, index) for index in range(len(broker.topics.get(topic).partitions))]
    searcher = broker.searcher()
    moves = []
    for place in places:
        live = broker.topics.get(place.topic)
        partition = live.partition(place.partition)
        at = None
        if target.time_ms is not None:
            at = (await broker.find_offset(partition, target.time_ms, searcher, ISOLATION)).offset
        end = partition.visible_end(ISOLATION)
        to = destination(target, partition.log_start, end, at)
        before = positions.get(place)
        lag = end - to if not partition.has_gaps or to == end else None
        present = None if before is None else before.offset
        moves.append(Planned(place.topic, place.partition, present, to, lag, live.topic.id))
    return moves


async def reset(broker: Broker, group: str, moves: Iterable[Planned]) -> str | None:
    """Commit planned offsets for a group without members. Return the error's name, if any.

    Topics deleted or created again since are rejected individually.
    """
    positions = {
        TopicPartition(move.topic, move.partition): OffsetAndMetadata(
            offset=move.to, leader_epoch=-1, metadata="", topic_id=move.topic_id
        )
        for move in moves
    }
    token = object()
    result = await broker.groups.request(
        group, Commit(token=token, generation=-1, member_id="", instance_id=None, positions=positions)
    )
    errors = getattr(result, "partitions", {})
    refused = next((error for error in errors.values() if error is not None), None)
    return None if refused is None else refused.name


def _is_there(broker: Broker, place: TopicPartition) -> bool:
    topics = broker.topics
    return topics.has(place.topic) and place.partition < len(topics.get(place.topic).partitions)
