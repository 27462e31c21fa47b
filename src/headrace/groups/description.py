"""A group as shown to tools."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headrace.groups.classic.states import GroupState
from headrace.groups.consumer_subscription import CONSUMER_PROTOCOL, assignment, subscription
from headrace.groups.model import GroupKind

BALANCED_PROTOCOL = "balanced"
"""Shown as the assignor of a group with instances."""
SHARE_PROTOCOL = "share"
"""Kafka's protocol type of share groups."""


class Client(NamedTuple):
    """The client of a member, and its timeouts in milliseconds."""

    client_id: str
    host: str
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0


class Moved(NamedTuple):
    """Members by id, with their clients."""

    came: dict[str, Client]
    went: dict[str, Client]


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member. Metadata and assignment are empty until a protocol is chosen and assignments are made."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group. `protocol` and `protocol_type` may be empty, as in Kafka."""

    name: str
    state: GroupState
    generation: int
    protocol_type: str
    protocol: str
    leader: str | None
    members: tuple[MemberDescription, ...]
    kind: GroupKind = GroupKind.CLASSIC


def described_as_balanced(
    name: str, generation: int, shares: Mapping[str, Mapping[str, Sequence[int]]]
) -> GroupDescription:
    """Describe a group with instances for Kafka's tools: stable consumers of one topic each.

    `shares`: topic -> instance -> partitions.
    """
    members = tuple(
        MemberDescription(
            # An instance in several sections is shown as several members.
            member_id=f"{topic}/{instance}",
            instance_id=None,
            client_id=instance,
            client_host="",
            metadata=subscription((topic,)),
            assignment=assignment({topic: partitions}),
        )
        for topic, instances in shares.items()
        for instance, partitions in instances.items()
    )
    return GroupDescription(
        name=name,
        state=GroupState.STABLE,
        generation=generation,
        protocol_type=CONSUMER_PROTOCOL,
        protocol=BALANCED_PROTOCOL,
        leader=None,
        members=members,
    )


def described_as_share(name: str, epoch: int, *, has_members: bool) -> GroupDescription:
    """Describe a share group in lists. ShareGroupDescribe has its members."""
    return GroupDescription(
        name=name,
        state=GroupState.STABLE if has_members else GroupState.EMPTY,
        generation=epoch,
        protocol_type=SHARE_PROTOCOL,
        protocol="",
        leader=None,
        members=(),
        kind=GroupKind.SHARE,
    )
