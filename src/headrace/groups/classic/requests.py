"""Requests of classic members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; session timeouts."""

import msgspec

from headrace.groups import timers
from headrace.groups.classic.member import Member
from headrace.groups.classic.membership import MEMBER_BYTES, Membership, size_of
from headrace.groups.classic.rebalance import (
    answer_held,
    dismiss,
    end_if_complete,
    forget_pending,
    joined,
    rebalance,
    watch,
)
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import HeartbeatResult, JoinResult, LeaveResult, LeftMember, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Heartbeat, Join, Leave, Leaving, Sync
from headrace.groups.model import GroupSettings
from headrace.groups.turn import GROUP_BYTES, Turn


def join(group: Membership, settings: GroupSettings, request: Join, turn: Turn) -> None:
    """Hold, answer or reject a join."""
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        turn.refuse(request, GroupError.INVALID_SESSION_TIMEOUT)
    elif not _has_room(group, settings, request) or not _has_bytes(group, settings, request, turn):
        forget_pending(group, request.member_id, turn)
        end_if_complete(group, turn)
        turn.reply(request.token, JoinResult(error=GroupError.GROUP_MAX_SIZE_REACHED))
    elif group.others.any_read or not group.supports(request.protocol_type, request.protocols):
        turn.refuse(request, GroupError.INCONSISTENT_GROUP_PROTOCOL)
    elif request.member_id:
        _join_known(group, settings, request, turn)
    elif request.instance_id is not None:
        _join_static(group, settings, request, turn)
    elif request.member_id_required:
        _give_id(group, request, turn)
    else:
        _add(group, settings, request.new_member_id, request, turn)


def _has_room(group: Membership, settings: GroupSettings, request: Join) -> bool:
    """While preparing, only waiting joins count: a group above its limit rejects the last ones."""
    member = group.members.get(request.member_id or group.instance(request.instance_id) or "")
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return (member is not None and member.held_join is not None) or group.waiting_joins < settings.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group) < settings.max_size
        case _:
            return True


def _has_bytes(group: Membership, settings: GroupSettings, request: Join, turn: Turn) -> bool:
    if not request.member_id and len(group.pending) >= settings.max_size:
        return False
    member = group.members.get(request.member_id or group.instance(request.instance_id) or "")
    if member is None:
        growth = size_of(request)
        # Only the id is kept now, but reject early.
        on_server = growth + MEMBER_BYTES + (0 if group.member_bytes else GROUP_BYTES)
    else:
        growth = on_server = size_of(request) - size_of(member)
    return group.metadata_bytes + growth <= settings.max_metadata_bytes and turn.may_grow(on_server)


def _give_id(group: Membership, request: Join, turn: Turn) -> None:
    """Assign an id first, so that a lost response leaves no stale member (KIP-394)."""
    group.give_out(request.new_member_id)
    # It will join again, so it counts for the initial delay.
    group.newcomer_seen = True
    turn.set_timer(timers.pending(request.new_member_id), request.session_timeout_ms)
    turn.reply(request.token, JoinResult(error=GroupError.MEMBER_ID_REQUIRED, member_id=request.new_member_id))


def _add(group: Membership, settings: GroupSettings, member_id: str, request: Join, turn: Turn) -> None:
    member = Member(member_id, request)
    forget_pending(group, member_id, turn)
    group.add(member, request.protocol_type)
    group.hold_join(member, request)
    group.newcomer_seen = True
    turn.set_timer(timers.session(member_id), settings.new_member_join_timeout_ms)
    rebalance(group, settings, turn)


def _join_known(group: Membership, settings: GroupSettings, request: Join, turn: Turn) -> None:
    if request.member_id in group.pending and request.instance_id is None:
        _add(group, settings, request.member_id, request, turn)
        return
    error = group.check(request.member_id, request.instance_id)
    if error is not None:
        turn.refuse(request, error)
        return
    member = group.members[request.member_id]
    if _needs_rebalance(group, member, request):
        _rejoin(group, settings, member, request, turn)
    else:
        # The first response may be lost.
        turn.reply(request.token, joined(group, member))
        watch(member, turn)


def _needs_rebalance(group: Membership, member: Member, request: Join) -> bool:
    """In Stable, the leader's join always rebalances: it may have seen new partitions."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
        return True
    return group.state is GroupState.STABLE and group.leader == member.member_id


def _rejoin(group: Membership, settings: GroupSettings, member: Member, request: Join, turn: Turn) -> None:
    group.update(member, request)
    previous = group.hold_join(member, request)
    if previous is not None:
        # The client no longer waits for its first join.
        error = GroupError.REBALANCE_IN_PROGRESS
        turn.reply(previous.token, JoinResult(error=error, member_id=member.member_id))
    if member.is_new:
        turn.set_timer(timers.session(member.member_id), settings.new_member_join_timeout_ms)
    else:
        turn.cancel_timer(timers.session(member.member_id))
    rebalance(group, settings, turn)


def _join_static(group: Membership, settings: GroupSettings, request: Join, turn: Turn) -> None:
    """Handle a static member's start or restart (KIP-345)."""
    old_id = group.instance(request.instance_id)
    if old_id is None:
        _add(group, settings, request.new_member_id, request, turn)
        return
    leader_before = group.leader
    old = group.members[old_id]
    answer_held(group, old, turn, GroupError.FENCED_INSTANCE_ID)
    turn.cancel_timer(timers.session(old_id))
    member = Member(request.new_member_id, request)
    group.replace(old_id, member)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
        group.read_subscriptions()
        turn.save(*group.replacement_changes(member))
        turn.reply(request.token, _continued(group, member, request, leader_before))
        watch(member, turn)
    else:
        group.hold_join(member, request)
        rebalance(group, settings, turn)


def _continued(group: Membership, member: Member, request: Join, leader_before: str | None) -> JoinResult:
    """Return the response to a restart that keeps the generation.

    A restarted leader must not assign again. Older versions get the leader's previous id, and act as followers.
    """
    if not request.skip_assignment_supported:
        return msgspec.structs.replace(joined(group, member), leader=leader_before or "", members=())
    return msgspec.structs.replace(joined(group, member), skip_assignment=group.leader == member.member_id)


def sync(group: Membership, request: Sync, turn: Turn) -> bool:
    """Hold, answer or reject a sync. Return whether the group became stable."""
    error = _check_sync(group, request)
    if error is not None:
        turn.refuse(request, error)
        return False
    member = group.members[request.member_id]
    if not _has_room_to_sync(group, request, turn):
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


def _check_sync(group: Membership, request: Sync) -> GroupError | None:
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


def _has_room_to_sync(group: Membership, request: Sync, turn: Turn) -> bool:
    """Return whether the leader's assignments fit. Those of others are ignored."""
    if group.leader != request.member_id or group.state is GroupState.STABLE:
        return True
    assigned = sum(len(request.assignments.get(member_id, b"")) for member_id in group.members)
    return turn.may_grow(assigned - group.assigned_bytes)


def _hold(member: Member, request: Sync, turn: Turn) -> None:
    # Only the leader's assignments count. They are applied at once.
    previous, member.held_sync = member.held_sync, msgspec.structs.replace(request, assignments={})
    if previous is not None:
        turn.reply(previous.token, SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
    turn.cancel_timer(timers.session(member.member_id))


def _assign(group: Membership, assignments: dict[str, bytes], turn: Turn) -> None:
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


def heartbeat_error(group: Membership, request: Heartbeat) -> GroupError | None:
    """Return a member's current error; None: no error."""
    error = group.check(request.member_id, request.instance_id)
    if error is None and request.generation != group.generation:
        error = GroupError.ILLEGAL_GENERATION
    if error is None and group.state is GroupState.PREPARING_REBALANCE:
        error = GroupError.REBALANCE_IN_PROGRESS
    return error


def heartbeat(group: Membership, request: Heartbeat, turn: Turn) -> None:
    """Renew a member's session and return whether it must rejoin."""
    error = heartbeat_error(group, request)
    if error not in (None, GroupError.REBALANCE_IN_PROGRESS):
        turn.refuse(request, error)
        return
    watch(group.members[request.member_id], turn)
    turn.reply(request.token, HeartbeatResult(error=error))


def leave(group: Membership, settings: GroupSettings, request: Leave, turn: Turn) -> None:
    """Remove each named member, then rebalance once."""
    before = len(group)
    results = tuple(
        LeftMember(member_id=who.member_id, instance_id=who.instance_id, error=_let_go(group, who, turn))
        for who in request.members
    )
    if len(group) < before:
        rebalance(group, settings, turn)
    else:
        # A join phase may have waited for unused ids.
        end_if_complete(group, turn)
    turn.reply(request.token, LeaveResult(members=results))


def _let_go(group: Membership, who: Leaving, turn: Turn) -> GroupError | None:
    if not who.member_id:
        # Tools may name a static member by its instance id alone.
        current = group.instance(who.instance_id)
        if current is None:
            return GroupError.UNKNOWN_MEMBER_ID
        dismiss(group, current, turn)
        return None
    if who.member_id in group.pending:
        forget_pending(group, who.member_id, turn)
        return None
    error = group.check(who.member_id, who.instance_id)
    if error is None:
        dismiss(group, who.member_id, turn)
    return error


def session_over(group: Membership, settings: GroupSettings, member_id: str, turn: Turn) -> None:
    """Remove a member after its session timeout."""
    dismiss(group, member_id, turn)
    rebalance(group, settings, turn)


def pending_over(group: Membership, member_id: str, turn: Turn) -> None:
    """Remove an assigned id that did not join in time."""
    forget_pending(group, member_id, turn)
    end_if_complete(group, turn)
