"""SyncGroup: members ask for their assignment, and the leader brings it."""

import msgspec

from headrace.groups import timers
from headrace.groups.classic.member import Member
from headrace.groups.classic.membership import Membership
from headrace.groups.classic.rebalance import watch
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Sync
from headrace.groups.turn import Turn


def sync(group: Membership, request: Sync, turn: Turn) -> bool:
    """Take a sync: hold it, answer it at once, or refuse it. True when it has made the group stable."""
    error = _check(group, request)
    if error is not None:
        turn.refuse(request, error)
        return False
    member = group.members[request.member_id]
    if not _has_room(group, request, turn):
        turn.refuse(request, GroupError.GROUP_MAX_SIZE_REACHED)
        return False
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        turn.cancel_timer(timers.sync())
    if group.state is GroupState.STABLE:
        turn.reply(request.token, _assigned(group, member))
        watch(member, turn)
        return False
    _hold(member, request, turn)
    if group.leader != member.member_id:
        return False
    _assign(group, request.assignments, turn)
    return True


def _check(group: Membership, request: Sync) -> GroupError | None:
    if group.state is GroupState.EMPTY:
        return GroupError.UNKNOWN_MEMBER_ID
    error = group.check(request.member_id, request.instance_id)
    if error is not None:
        return error
    if request.generation != group.generation:
        return GroupError.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return GroupError.REBALANCE_IN_PROGRESS
    return None


def _has_room(group: Membership, request: Sync, turn: Turn) -> bool:
    """Return whether the server can keep what the leader assigns; others bring no assignments, or in vain."""
    if group.leader != request.member_id or group.state is GroupState.STABLE:
        return True
    assigned = sum(len(request.assignments.get(member_id, b"")) for member_id in group.members)
    return turn.may_grow(assigned - group.assigned_bytes)


def _hold(member: Member, request: Sync, turn: Turn) -> None:
    # Only the leader's assignments count, and they are taken at once: nothing of them has to be kept.
    previous, member.held_sync = member.held_sync, msgspec.structs.replace(request, assignments={})
    if previous is not None:
        turn.reply(previous.token, SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
    turn.cancel_timer(timers.session(member.member_id))


def _assign(group: Membership, assignments: dict[str, bytes], turn: Turn) -> None:
    """The leader has spoken: make it durable, and answer everyone who waits."""
    group.move_to(GroupState.STABLE)
    group.assign(assignments)
    turn.save(*group.generation_changes())
    for member in group.members.values():
        held, member.held_sync = member.held_sync, None
        if held is not None:
            turn.reply(held.token, _assigned(group, member))
            watch(member, turn)


def _assigned(group: Membership, member: Member) -> SyncResult:
    return SyncResult(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)
