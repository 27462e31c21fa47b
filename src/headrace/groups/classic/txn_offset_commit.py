"""Pending offsets of a classic group: transactional commits, and the ends of transactions."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from headrace.groups.classic.membership import Membership
from headrace.groups.classic.offset_commit import exists, is_nothing, schedule_retention
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import CommitResult, EndOffsetsResult
from headrace.groups.errors import GroupError
from headrace.groups.events import EndOffsets, TransactionLost, TxnOffsetCommit
from headrace.groups.model import DropGroup, GroupSettings, TopicPartition
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.turn import GROUP_BYTES, Turn


def store(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, request: TxnOffsetCommit, turn: Turn
) -> None:
    """Store pending offsets per partition, or reject all of them."""
    error = _check_member(group, positions, request)
    if error is not None and _check_producer(positions, request) is None:
        turn.refuse(request, error)
    else:
        apply(positions, settings, request, turn)


def apply(
    positions: CommittedOffsets,
    settings: GroupSettings,
    request: TxnOffsetCommit,
    turn: Turn,
    refused: Mapping[TopicPartition, GroupError] = MappingProxyType({}),
) -> None:
    """Store pending offsets except for the partitions in `refused`, unless the producer is an earlier one."""
    error = _check_producer(positions, request)
    if error is not None:
        turn.refuse(request, error)
        return
    accepted = {place: each for place, each in request.positions.items() if place not in refused}
    room = turn.room.offsets - (0 if len(positions) else GROUP_BYTES)
    changes, outcome = positions.store_pending(msgspec.structs.replace(request, positions=accepted), settings, room)
    turn.save(*changes)
    turn.reply(request.token, CommitResult(partitions={**outcome, **refused}))


def _check_producer(positions: CommittedOffsets, request: TxnOffsetCommit) -> GroupError | None:
    if not positions.pending.admits(request.producer_id, request.guard):
        # The client repeats the request, and the coordinator of its transaction decides.
        return GroupError.COORDINATOR_NOT_AVAILABLE
    known = positions.pending.last_of_producer(request.producer_id)
    if known is not None and (known.producer_epoch > request.producer_epoch or known.number > request.number):
        return GroupError.INVALID_PRODUCER_EPOCH
    return None


def _check_member(group: Membership, positions: CommittedOffsets, request: TxnOffsetCommit) -> GroupError | None:
    """Check the member as Kafka does, which accepts it before the next assignment, and none below version 3."""
    named = request.generation >= 0 or bool(request.member_id) or request.instance_id is not None
    if request.generation < 0 and (not named or group.state is GroupState.EMPTY) and not group.others.any_read:
        return None
    if not exists(group, positions):
        return GroupError.ILLEGAL_GENERATION
    error = group.check(request.member_id, request.instance_id)
    if error is not None:
        return error
    return GroupError.ILLEGAL_GENERATION if request.generation != group.generation else None


def end(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, request: EndOffsets, turn: Turn
) -> bool:
    """End a transaction. Return True if nothing is left and the group must end."""
    pending = positions.pending.of_producer(request.producer_id).values()
    if any(each.producer_epoch > request.producer_epoch and each.number <= request.number for each in pending):
        turn.refuse(request, GroupError.INVALID_PRODUCER_EPOCH)
        return False
    positions.pending.invalidate(request.producer_id)
    changes = positions.end_pending(request, settings, turn.now_ms)
    turn.save(*changes)
    turn.reply(request.token, EndOffsetsResult())
    return bool(changes) and _settle(group, positions, settings, turn)


def lose(
    group: Membership, positions: CommittedOffsets, settings: GroupSettings, event: TransactionLost, turn: Turn
) -> bool:
    """Drop a lost transaction's offsets. Return True if nothing is left and the group must end."""
    changes = positions.lose_pending(event.producer_id, event.number)
    turn.save(*changes)
    return bool(changes) and _settle(group, positions, settings, turn)


def _settle(group: Membership, positions: CommittedOffsets, settings: GroupSettings, turn: Turn) -> bool:
    if is_nothing(group, positions) and not group.is_stored:
        turn.save(DropGroup())
        return True
    schedule_retention(group, positions, settings, turn)
    return False
