"""Conversion of groups with members between classic and consumer (`group.consumer.migration.policy`, decision 0146).

A consumer that joins makes a classic group a consumer group. Classic members stay, with the partitions that their
leader assigned. When the last consumer has left, the group becomes classic and rebalances.
"""

from collections.abc import Iterable

from headrace.groups import timers
from headrace.groups.classic.group import ClassicGroup
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import Configs, MigrationPolicy, NewerGroupSettings
from headrace.groups.consumer_subscription import (
    CONSUMER_PROTOCOL,
    assignment,
    owned_partitions,
    partitions_of,
    topics_of,
)
from headrace.groups.consumers.classic_members import Facts
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.consumers.membership import Membership
from headrace.groups.errors import GroupError
from headrace.groups.model import (
    DropField,
    GroupHeader,
    GroupKind,
    StoredConsumer,
    StoredGrants,
    StoredMember,
    StoredPartitions,
)
from headrace.groups.turn import Turn


def may_upgrade(limits: NewerGroupSettings) -> bool:
    """Return whether a consumer may join a classic group with members."""
    return limits.consumer_migration_policy in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)


def may_downgrade(limits: NewerGroupSettings) -> bool:
    """Return whether a consumer group becomes classic when its last consumer leaves."""
    return limits.consumer_migration_policy in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def may_share(classic: ClassicGroup, limits: NewerGroupSettings) -> bool:
    """Return whether members of another kind may join a classic group with members, once it is stable."""
    if not may_upgrade(limits) or classic.protocol_type != CONSUMER_PROTOCOL:
        return False
    return all(topics_of(_metadata(each, classic.protocol)) is not None for each in classic.stored_members())


def upgrade(
    classic: ClassicGroup, limits: NewerGroupSettings, configs: Configs, facts: Facts, turn: Turn
) -> ConsumerGroup | GroupError:
    """Move the members of a classic group to a new part, or return why they cannot be moved."""
    epoch = max(classic.generation, 1)
    refused = not may_upgrade(limits) or classic.protocol_type != CONSUMER_PROTOCOL
    if refused or classic.size >= limits.consumer_max_size:
        return GroupError.GROUP_ID_NOT_FOUND
    if classic.state is not GroupState.STABLE:
        # The partitions of its members are not known. The client retries.
        return GroupError.COORDINATOR_NOT_AVAILABLE
    members = []
    stored = classic.stored_members()
    taken = {
        (name, partition)
        for each in stored
        for name, partitions in (partitions_of(each.assignment) or {}).items()
        for partition in partitions
    }
    for each in stored:
        member = _as_consumer(each, classic.protocol, epoch, facts, taken)
        if isinstance(member, GroupError):
            return member
        members.append(member)
    header = GroupHeader(
        generation=epoch,
        protocol_type=None,
        protocol=None,
        leader=None,
        empty_since_ms=None,
        kind=GroupKind.CONSUMER,
        epoch=epoch,
        target_epoch=epoch,
    )
    group = Membership(classic.name, epoch, epoch)
    group.restore(header, members)
    # Nothing of it is stored yet.
    group.header = None
    classic.dissolve(turn)
    for moved in group.members.values():
        group.touch(moved)
        turn.set_timer(timers.session(moved.member_id), moved.session_timeout_ms or 0)
        for name in moved.topics:
            found = facts(name)
            if found is not None:
                group.holdings.topic(name, found.topic_id, found.partitions)
    return ConsumerGroup.of(group, limits, configs)


def _as_consumer(
    member: StoredMember, protocol: str | None, epoch: int, facts: Facts, taken: set[tuple[str, int]]
) -> StoredConsumer | GroupError:
    metadata = _metadata(member, protocol)
    topics = topics_of(metadata)
    assigned = partitions_of(member.assignment) if member.assignment else {}
    if topics is None or assigned is None:
        return GroupError.GROUP_ID_NOT_FOUND
    # A cooperative member may still read what it had as it joined.
    kept = {
        name: {each for each in partitions if (name, each) not in taken}
        for name, partitions in owned_partitions(metadata).items()
    }
    taken.update((name, each) for name, partitions in kept.items() for each in partitions)
    held, target = [], []
    for name in sorted(assigned.keys() | {name for name in kept if kept[name]}):
        found = facts(name)
        if found is None:
            # Its partitions must not be granted to others. The client retries.
            return GroupError.COORDINATOR_NOT_AVAILABLE
        count, topic_id = found.partitions, found.topic_id
        due = tuple(sorted(each for each in set(assigned.get(name, ())) if each < count))
        had = tuple(sorted(each for each in kept.get(name, ()) if 0 <= each < count))
        if due or had:
            held.append(StoredGrants(name, topic_id, {epoch: due + had}))
        if due:
            target.append(StoredPartitions(name, topic_id, due))
    return StoredConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=tuple(dict.fromkeys(topics)),
        epoch=epoch,
        previous_epoch=epoch,
        state="STABLE",
        held=tuple(held),
        target=tuple(target),
        session_timeout_ms=member.session_timeout_ms,
        protocols=member.protocols,
    )


def _metadata(member: StoredMember, protocol: str | None) -> bytes:
    return dict(member.protocols).get(protocol or "") or member.protocols[0][1]


def downgrade(part: ConsumerGroup, classic: ClassicGroup, turn: Turn) -> None:
    """Move the members of a consumer group, all of them classic, back to the classic part, which rebalances."""
    stored = part.stored_members()
    # The epoch that members have reached: until they join again, they may commit what they give up.
    generation = max((each.epoch for each in stored), default=part.epoch)
    members = [_as_classic(each) for each in stored]
    fields = part.dissolve(turn)
    classic.adopt(members, generation, turn)
    turn.save(*[DropField(field) for field in fields])


def _as_classic(member: StoredConsumer) -> StoredMember:
    assigned = {grants.topic: sorted(_all(grants.granted.values())) for grants in member.held}
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms or 0,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.protocols,
        assignment=assignment(assigned),
    )


def _all(granted: Iterable[tuple[int, ...]]) -> Iterable[int]:
    return (partition for partitions in granted for partition in partitions)
