"""Compute a group's committed offsets and lag."""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from headrace.cli.client import Client
from headrace.groups.offsets import native_record_lag, record_lag
from headrace.text.escaping import quoted

_MOST_READ = 500
_READING_S = 5.0
"""Maximum partitions whose next record is read, and the time for it."""

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
    seconds_behind: float | None = None
    """Age of the next record; None if unknown."""
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
    unread: dict[Partition, int] = {}
    ends = client.offsets(partitions, OffsetSpec.latest)
    natives = client.natives(topic for topic in sorted(topics) if topic in client.metadata.topics)
    found = []
    for topic, number in partitions:
        place = (topic, number)
        start, end, pending = starts.get(place), ends.get(place), None
        lag = None if start is None or end is None else record_lag(committed.get(place), start, end)
        if topic in natives and place in ends:
            lag, pending = _native_lag(natives[topic], group, number)
        if lag != 0 and place in ends and place in starts:
            unread[place] = max(committed.get(place, 0), starts[place])
        behind = 0.0 if lag == 0 else None
        found.append(
            CommittedOffset(
                topic, number, committed.get(place), ends.get(place), lag, owners.get(place), behind, pending
            )
        )
    ages = _ages(client, unread)
    return [
        msgspec.structs.replace(each, seconds_behind=ages.get((each.topic, each.partition), each.seconds_behind))
        for each in found
    ]


def _ages(client: Client, offsets: dict[Partition, int]) -> dict[Partition, float]:
    """Return the age in seconds of the records at these offsets, as far as they can be read in a few seconds."""
    from headrace.client import errors, fetch  # noqa: PLC0415  # only for groups that are behind
    from headrace.client.cluster import Stale  # noqa: PLC0415
    from headrace.client.offsets import TopicPartition  # noqa: PLC0415
    from headrace.records.errors import BatchError  # noqa: PLC0415

    found: dict[Partition, float] = {}
    refused: set[str] = set()
    until = time.monotonic() + _READING_S
    with contextlib.suppress(errors.ServerUnavailable), client.cluster() as cluster:
        for (topic, number), offset in list(offsets.items())[:_MOST_READ]:
            if time.monotonic() > until:
                break
            if topic in refused:
                continue
            try:
                timestamp = fetch.first_timestamp(cluster, TopicPartition(topic, number), offset)
            except errors.LoginRefused:
                refused.add(topic)
            except (fetch.OutOfRange, errors.UnknownTopic, Stale, BatchError):
                cluster.forget()
            else:
                if timestamp is not None:
                    found[topic, number] = max(0.0, round(time.time() - timestamp / 1000, 3))
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
