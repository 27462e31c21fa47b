"""Consumer groups (KIP-848) and share groups (KIP-932), as far as the client library does not show them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.cli import requests
from headrace.cli.client import Client, KafkaServer
from headrace.client.errors import Code
from headrace.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    ShareGroupDescribeRequest,
)
from headrace.text.escaping import quoted

Partition = tuple[str, int]
CONSUMER, SHARE = "consumer", "share"
"""Types of groups."""
_UNKNOWN = -1
_KINDS = {_UNKNOWN: "instance", 0: "classic", 1: "consumer"}
"""Member types of ConsumerGroupDescribe. This server reports instances as unknown."""
_LIST = "list the groups of newer types"


class Listed(msgspec.Struct, frozen=True):
    """A consumer or share group of a list."""

    group: str
    state: str
    """Kafka's name. The client library does not know Assigning and Reconciling."""
    kind: str


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group of a newer kind."""

    member: str
    instance: str | None = None
    client: str
    host: str
    epoch: int
    """Member epoch: that of the group after it has followed all changes."""
    partitions: tuple[Partition, ...]
    target: tuple[Partition, ...] | None = None
    """What it should have. None: a share group, whose members follow at once."""
    kind: str = "consumer"
    """How it takes part: `consumer`, `classic` (protocol) or `instance` (of OCI)."""


class NewerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer or share group."""

    state: str
    epoch: int
    target_epoch: int
    """Group epoch of the target assignment."""
    assignor: str
    coordinator: str
    members: tuple[Member, ...]


class ShareOffset(msgspec.Struct, frozen=True):
    """A share group in one partition."""

    topic: str
    partition: int
    start_offset: int | None
    """The first offset that is not done. None: nothing was read yet."""
    lag: int | None
    """Records that are not done. None: unknown."""


def listed(kafka: KafkaServer, client: Client) -> dict[str, Listed]:
    """Return all consumer groups and share groups by name, sorted. Raise CommandFailed."""
    if client.lacks(ShareGroupDescribeRequest.API_KEY):
        return {}
    found: dict[str, Listed] = {}
    request = ListGroupsRequest(states_filter=[], types_filter=[CONSUMER, SHARE])
    for node_id in sorted(client.metadata.brokers):
        answer = requests.ask(kafka, request, 5, _LIST, node_id)
        requests.check(answer.error_code, None, _LIST)
        found |= {each.group_id: _listed(each) for each in answer.groups}
    return dict(sorted(found.items()))


def share_groups(kafka: KafkaServer, client: Client) -> dict[str, Listed]:
    """Return all share groups by name, sorted. Raise CommandFailed."""
    return {name: each for name, each in listed(kafka, client).items() if each.kind == SHARE}


def consumer_group(kafka: KafkaServer, group: str) -> NewerGroup:
    """Describe a consumer group. Raise CommandFailed."""
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    found, coordinator = _described(kafka, group, request, _describe(group))
    requests.check(found.error_code, found.error_message, _describe(group))
    members = (
        _member(
            each,
            instance=each.instance_id,
            target=_partitions(each.target_assignment),
            kind=_KINDS.get(each.member_type, "consumer"),
        )
        for each in found.members
    )
    return _group(found, coordinator, members)


def share_group(kafka: KafkaServer, client: Client, group: str) -> NewerGroup | None:
    """Describe a share group. None: there is none. Raise CommandFailed."""
    if client.lacks(ShareGroupDescribeRequest.API_KEY):
        return None
    found, coordinator = _described(kafka, group, ShareGroupDescribeRequest(group_ids=[group]), _describe(group))
    if found.error_code == Code.GROUP_ID_NOT_FOUND:
        return None
    requests.check(found.error_code, found.error_message, _describe(group))
    return _group(found, coordinator, (_member(each) for each in found.members))


def share_offsets(kafka: KafkaServer, group: str) -> list[ShareOffset]:
    """Return the start offsets of a share group, sorted by partition. Raise CommandFailed."""
    asked = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    what = f"read the start offsets of group {quoted(group)}"
    node_id, _ = _coordinator(kafka, group, what)
    [found] = requests.ask(kafka, DescribeShareGroupOffsetsRequest(groups=[asked]), 1, what, node_id).groups
    requests.check(found.error_code, found.error_message, what)
    return sorted(
        (
            ShareOffset(topic.topic_name, each.partition_index, _known(each.start_offset), _known(each.lag))
            for topic in found.topics
            for each in topic.partitions
            if not each.error_code
        ),
        key=lambda each: (each.topic, each.partition),
    )


def begun(offsets: Iterable[ShareOffset]) -> dict[Partition, int]:
    """Return the start offsets of partitions from which a member has fetched."""
    return {(each.topic, each.partition): each.start_offset for each in offsets if each.start_offset is not None}


def alter_share_offsets(kafka: KafkaServer, group: str, offsets: Mapping[Partition, int]) -> None:
    """Set the start offsets of a share group without members. Raise CommandFailed."""
    request = AlterShareGroupOffsetsRequest
    topics: dict[str, list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        part = request.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
        topics.setdefault(topic, []).append(part)
    asked = [
        request.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=parts) for name, parts in topics.items()
    ]
    what = f"reset the start offsets of group {quoted(group)}"
    node_id, _ = _coordinator(kafka, group, what)
    answer = requests.ask(kafka, request(group_id=group, topics=asked), 0, what, node_id)
    requests.check(answer.error_code, answer.error_message, what)
    for topic in answer.responses:
        for each in topic.partitions:
            place = f"{what} in partition {each.partition_index} of {quoted(topic.topic_name)}"
            requests.check(each.error_code, each.error_message, place)


def _describe(group: str) -> str:
    return f"describe group {quoted(group)}"


def _listed(found: Any) -> Listed:
    return Listed(found.group_id, found.group_state, found.group_type.lower())


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def _coordinator(kafka: KafkaServer, group: str, what: str) -> tuple[int, str]:
    """Return the node ID of a group's coordinator, and its address."""
    [found] = requests.ask(kafka, FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4, what).coordinators
    requests.check(found.error_code, found.error_message, what)
    return found.node_id, f"{found.host}:{found.port}"


def _described(kafka: KafkaServer, group: str, request: Any, what: str) -> tuple[Any, str]:
    node_id, address = _coordinator(kafka, group, what)
    [found] = requests.ask(kafka, request, 1, what, node_id).groups
    return found, address


def _group(found: Any, coordinator: str, members: Iterable[Member]) -> NewerGroup:
    return NewerGroup(
        state=found.group_state,
        epoch=found.group_epoch,
        target_epoch=found.assignment_epoch,
        assignor=found.assignor_name,
        coordinator=coordinator,
        members=tuple(sorted(members, key=lambda member: member.member)),
    )


def _member(
    found: Any,
    *,
    instance: str | None = None,
    target: tuple[Partition, ...] | None = None,
    kind: str = "consumer",
) -> Member:
    return Member(
        member=found.member_id,
        instance=instance,
        client=found.client_id,
        host=found.client_host.lstrip("/"),
        epoch=found.member_epoch,
        partitions=_partitions(found.assignment),
        target=target,
        kind=kind,
    )


def _partitions(assignment: Any) -> tuple[Partition, ...]:
    topics: Sequence[Any] = assignment.topic_partitions
    return tuple(sorted((topic.topic_name, number) for topic in topics for number in topic.partitions))
