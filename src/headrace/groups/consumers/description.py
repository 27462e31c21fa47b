"""A consumer group as shown to tools (ConsumerGroupDescribe)."""

from collections.abc import Mapping
from enum import Enum
from uuid import UUID

import msgspec

from headrace.groups.assignment.holdings import InstanceKey, Topic
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import Rules
from headrace.groups.consumer_subscription import CONSUMER_PROTOCOL, assignment, subscription
from headrace.groups.consumers.instances import Instances
from headrace.groups.consumers.member import Member, MemberState
from headrace.groups.consumers.membership import UNIFORM, Membership
from headrace.groups.description import GroupDescription, MemberDescription
from headrace.groups.model import GroupKind


class ConsumerGroupState(Enum):
    """State with Kafka's names."""

    EMPTY = "Empty"
    """It has no members."""
    ASSIGNING = "Assigning"
    """A target assignment is to be computed."""
    RECONCILING = "Reconciling"
    """Members are moving towards the target."""
    STABLE = "Stable"
    """All members have their targets."""


_AS_CLASSIC = {
    ConsumerGroupState.EMPTY: GroupState.EMPTY,
    ConsumerGroupState.ASSIGNING: GroupState.PREPARING_REBALANCE,
    ConsumerGroupState.RECONCILING: GroupState.COMPLETING_REBALANCE,
    ConsumerGroupState.STABLE: GroupState.STABLE,
}


class TopicAssignment(msgspec.Struct, frozen=True):
    """Partitions of one topic."""

    topic: str
    topic_id: UUID
    partitions: tuple[int, ...]


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Names of its subscription."""
    pattern: str
    """Empty: none."""
    is_classic: bool
    """Whether it uses the classic protocol."""
    is_instance: bool = False
    """Whether it is an OCI instance. Then its IDs show its topic and name."""
    assigned: tuple[TopicAssignment, ...]
    """Its partitions, without those that it must give up."""
    target: tuple[TopicAssignment, ...]


class ConsumerGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: str
    state: ConsumerGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerDescription, ...]

    def as_classic(self) -> GroupDescription:
        """Return the description as of a classic group."""
        members = tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=subscription(member.topics),
                assignment=assignment({each.topic: each.partitions for each in member.assigned}),
            )
            for member in self.members
        )
        return GroupDescription(
            name=self.name,
            state=_AS_CLASSIC[self.state],
            generation=self.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=self.assignor if members else "",
            leader=None,
            members=members,
            kind=GroupKind.CONSUMER,
        )


def describe(group: Membership, rules: Rules, instances: Instances) -> ConsumerGroupDescription:
    """Return the description of a group."""
    return ConsumerGroupDescription(
        name=group.name,
        state=state_of(group, instances),
        epoch=group.holdings.epoch,
        target_epoch=group.holdings.target_epoch,
        assignor=UNIFORM if instances.any else group.assignor(rules.limits.consumer_assignors),
        members=(
            *(_described(group, member) for member in group.members.values()),
            *(_instance(group, *each) for each in instances.shares()),
        ),
    )


def state_of(group: Membership, instances: Instances) -> ConsumerGroupState:
    """Return the state of a group."""
    target_epoch = group.holdings.target_epoch
    if not (group.members or instances.any):
        return ConsumerGroupState.EMPTY
    if group.members and group.holdings.outdated:
        return ConsumerGroupState.ASSIGNING
    if not instances.are_settled:
        return ConsumerGroupState.RECONCILING
    for member in group.members.values():
        if member.epoch != target_epoch or member.state is not MemberState.STABLE:
            return ConsumerGroupState.RECONCILING
    return ConsumerGroupState.STABLE


def _described(group: Membership, member: Member) -> ConsumerDescription:
    return ConsumerDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=member.topics,
        pattern=member.pattern,
        is_classic=member.is_classic,
        assigned=_listed(member.assigned(group.holdings)),
        target=_listed(group.holdings.target(member.member_id)),
    )


def _instance(
    group: Membership, key: InstanceKey, topic: Topic, held: set[int], target: set[int]
) -> ConsumerDescription:
    return ConsumerDescription(
        # An instance in several sections is shown as several members.
        member_id=f"{key.topic}/{key.name}",
        instance_id=None,
        rack_id=None,
        epoch=group.holdings.target_epoch,
        client_id=key.name,
        client_host="",
        topics=(key.topic,),
        pattern="",
        is_classic=False,
        is_instance=True,
        assigned=_listed({topic: held} if held else {}),
        target=_listed({topic: target} if target else {}),
    )


def _listed(parts: Mapping[Topic, set[int]]) -> tuple[TopicAssignment, ...]:
    return tuple(
        TopicAssignment(topic.name, topic.id or UUID(int=0), tuple(sorted(partitions)))
        for topic, partitions in sorted(parts.items())
    )
