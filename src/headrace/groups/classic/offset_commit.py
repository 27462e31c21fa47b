"""Committed offsets of a classic group: commits, deletion and expiry."""

from collections.abc import Mapping
from types import MappingProxyType

from headrace.groups import timers
from headrace.groups.classic.membership import Membership
from headrace.groups.classic.rebalance import watch
from headrace.groups.classic.states import GroupState
from headrace.groups.consumer_subscription import CONSUMER_PROTOCOL
from headrace.groups.effects import CommitResult, DeleteOffsetsResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DeleteOffsets, DropTopic
from headrace.groups.model import DropGroup, GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.turn import GROUP_BYTES, Turn


def commit(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, request: Commit, turn: Turn
) -> None:
    """Apply a commit per partition, or reject all of it."""
    error = _check(group, positions, request)
    if error is not None:
        turn.refuse(request, error)
        return
    member = group.members.get(request.member_id)
    if member is not None:
        watch(member, turn)
    apply(group, positions, settings, request, turn)


def apply(
    group: Membership,
    positions: CommittedOffsets,
    settings: GroupSettings,
    request: Commit,
    turn: Turn,
    refused: Mapping[TopicPartition, GroupError] = MappingProxyType({}),
) -> None:
    """Apply a commit except for the partitions in `refused`."""
    room = turn.room.offsets - (0 if len(positions) else GROUP_BYTES)
    accepted = {place: each for place, each in request.positions.items() if place not in refused}
    changes, outcome = positions.commit(accepted, settings, turn.now_ms, room)
    turn.save(*changes)
    turn.reply(request.token, CommitResult(partitions={**outcome, **refused}))
    if not turn.has_timer(timers.retention()) and any(
        _unused_since(group, partition, position) is not None for partition, position in accepted.items()
    ):
        schedule_retention(group, positions, settings, turn)


def _check(group: Membership, positions: CommittedOffsets, request: Commit) -> GroupError | None:
    if request.generation < 0 and group.state is GroupState.EMPTY and not group.others.any_read:
        return None
    if not exists(group, positions):
        # As in Kafka: clients with earlier versions do not expect the other error.
        return GroupError.GROUP_ID_NOT_FOUND if request.knows_member_epochs else GroupError.ILLEGAL_GENERATION
    error = group.check(request.member_id, request.instance_id)
    if error is not None:
        return error
    if request.generation != group.generation:
        return GroupError.ILLEGAL_GENERATION
    # No member owns partitions before the next assignment. While they rejoin, members may commit what they give up.
    return GroupError.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING_REBALANCE else None


def exists(group: Membership, positions: CommittedOffsets) -> bool:
    """Return whether the group exists for tools."""
    return bool(group.is_stored or group.members or group.pending or len(positions) or group.others.has_sections)


def delete_offsets(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, request: DeleteOffsets, turn: Turn
) -> None:
    """Delete offsets that no member needs."""
    if not exists(group, positions):
        turn.refuse(request, GroupError.GROUP_ID_NOT_FOUND)
        return
    if group.members and group.protocol_type != CONSUMER_PROTOCOL:
        turn.refuse(request, GroupError.NON_EMPTY_GROUP)
        return
    outcome = {
        partition: GroupError.GROUP_SUBSCRIBED_TO_TOPIC if _in_use(group, partition.topic) else None
        for partition in request.partitions
    }
    turn.save(*positions.drop(partition for partition, error in outcome.items() if error is None))
    turn.reply(request.token, DeleteOffsetsResult(partitions=outcome))
    schedule_retention(group, positions, settings, turn)


def _in_use(group: Membership, topic: str) -> bool:
    """Unreadable subscriptions may include any topic."""
    return group.subscribed is None or topic in group.subscribed or group.others.is_read(topic)


def drop_topic(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, drop: DropTopic, turn: Turn
) -> None:
    """Delete the offsets of a deleted topic."""
    changes = positions.drop_topic(drop)
    if changes:
        turn.save(*changes)
        schedule_retention(group, positions, settings, turn)


def schedule_retention(group: Membership, positions: CommittedOffsets, settings: GroupSettings, turn: Turn) -> None:
    """Set the retention timer for the next expiry, or cancel it."""
    due = positions.next_expiry_ms(lambda partition, position: _unused_since(group, partition, position), settings)
    if due is None and group.state is GroupState.EMPTY and group.is_stored:
        due = turn.now_ms + settings.retention_check_interval_ms
    if due is None:
        turn.cancel_timer(timers.retention())
    else:
        turn.set_timer(timers.retention(), min(due - turn.now_ms, timers.LONGEST_MS))


def retention_over(group: Membership, positions: CommittedOffsets, settings: GroupSettings, turn: Turn) -> bool:
    """Delete expired offsets. Return True if nothing is left and the group must end."""
    expired = positions.expire(
        lambda partition, position: _unused_since(group, partition, position), settings, turn.now_ms
    )
    if is_nothing(group, positions):
        turn.save(DropGroup())
        return True
    turn.save(*expired)
    schedule_retention(group, positions, settings, turn)
    return False


def is_nothing(group: Membership, positions: CommittedOffsets) -> bool:
    """Return whether the group has no state left."""
    return group.state is GroupState.EMPTY and not (len(positions) or group.pending or group.others.has_sections)


def _unused_since(group: Membership, partition: TopicPartition, position: OffsetAndMetadata) -> int | None:
    """Return since when an offset is unused (ms), as in Kafka but at least since its commit.

    None if another API keeps offsets of the topic. An empty group counts from when it became empty, or from the commit
    of a simple consumer. In a stable group, topics without subscription are unused.
    """
    if group.others.has_section(partition.topic):
        return None
    if group.state is GroupState.EMPTY:
        return max(group.empty_since_ms or 0, position.committed_ms)
    unused = group.state is GroupState.STABLE and not _in_use(group, partition.topic)
    return position.committed_ms if unused else None
