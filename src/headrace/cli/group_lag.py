"""Compute a group's committed offsets and lag."""

from collections.abc import Iterable
from typing import Any

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from headrace.cli.client import Client
from headrace.groups.offsets import native_record_lag, record_lag
from headrace.text.escaping import quoted

Partition = tuple[str, int]


class Member(msgspec.Struct, frozen=True, order=True):
    """A member of a group."""

    member: str
    client: str
    host: str
    partitions: tuple[Partition, ...]


class CommittedOffset(msgspec.Struct, frozen=True):
    """A group's committed offset in one partition."""

    topic: str
    partition: int
    position: int | None
    """Offset of the next record; None: nothing was committed."""
    log_end: int | None
    """None: the partition is gone."""
    lag: int | None
    """Records to come, from the log start offset if nothing was committed; None if unknown."""
    member: str | None
    pending: int | None = None
    """Native topics: records delivered but not committed, which `lag` includes."""


def members(found: ConsumerGroupDescription) -> list[Member]:
    """Return a group's members, sorted by ID."""
    return sorted(
        Member(
            member.member_id,
            member.client_id,
            member.host.lstrip("/"),
            tuple(sorted((part.topic, part.partition) for part in member.assignment.topic_partitions)),
        )
        for member in found.members
    )


def positions(client: Client, group: str) -> dict[Partition, int]:
    """Return a group's committed offsets. Raise CommandFailed for an empty name."""
    if not group:
        raise client.no_group(group)
    asked = client.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    found = client.result(asked, f"read the positions of group {quoted(group)}")
    return {(part.topic, part.partition): part.offset for part in found.topic_partitions or [] if part.offset >= 0}


def group_offsets(
    client: Client, group: str, committed: dict[Partition, int], present: Iterable[Member]
) -> list[CommittedOffset]:
    """Return the group's offsets in all partitions of topics with committed offsets or members."""
    owners = {partition: member.member for member in present for partition in member.partitions}
    topics = {topic for topic, _ in committed.keys() | owners.keys()}
    partitions = sorted(committed.keys() | owners.keys() | _of_topics(client, topics))
    starts = client.offsets(partitions, OffsetSpec.earliest)
    ends = client.offsets(partitions, OffsetSpec.latest)
    natives = client.natives(topic for topic in sorted(topics) if topic in client.metadata.topics)
    found = []
    for topic, number in partitions:
        place = (topic, number)
        start, end, pending = starts.get(place), ends.get(place), None
        lag = None if start is None or end is None else record_lag(committed.get(place), start, end)
        if topic in natives and place in ends:
            lag, pending = _native_lag(natives[topic], group, number)
        found.append(
            CommittedOffset(topic, number, committed.get(place), ends.get(place), lag, owners.get(place), pending)
        )
    return found


def _of_topics(client: Client, topics: Iterable[str]) -> set[Partition]:
    there = client.metadata.topics
    return {(topic, number) for topic in topics if topic in there for number in there[topic].partitions}


def records_from(native: dict[str, Any], partition: int, offset: int, start: int, end: int) -> int | None:
    """Return a native partition's records from an offset, known only for its ends."""
    if offset >= end:
        return 0
    return native["records"][partition] if offset <= start and native["records"] else None


def _native_lag(native: dict[str, Any], group: str, partition: int) -> tuple[int | None, int]:
    found = native["groups"].get(group, {}).get(str(partition))
    if not native["records"]:
        return None, 0
    if found is None:
        # The first fetch creates the Redis group.
        return native["records"][partition], 0
    return native_record_lag(found["undelivered"], found["pending"]), found["pending"]
