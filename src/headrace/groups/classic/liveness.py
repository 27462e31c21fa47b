"""Who is still there: heartbeats, leaving, and silence."""

from headrace.groups.classic.membership import Membership
from headrace.groups.classic.rebalance import dismiss, end_if_complete, forget_pending, rebalance, watch
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import HeartbeatResult, LeaveResult, LeftMember
from headrace.groups.errors import GroupError
from headrace.groups.events import Heartbeat, Leave, Leaving
from headrace.groups.model import GroupSettings
from headrace.groups.turn import Turn


def heartbeat_error(group: Membership, request: Heartbeat) -> GroupError | None:
    """What a member has to be told as things are; None: it may go on."""
    error = group.check(request.member_id, request.instance_id)
    if error is None and request.generation != group.generation:
        error = GroupError.ILLEGAL_GENERATION
    if error is None and group.state is GroupState.PREPARING_REBALANCE:
        error = GroupError.REBALANCE_IN_PROGRESS
    return error


def heartbeat(group: Membership, request: Heartbeat, turn: Turn) -> None:
    """Keep the member alive, and tell it when it has to rejoin."""
    error = heartbeat_error(group, request)
    if error not in (None, GroupError.REBALANCE_IN_PROGRESS):
        turn.refuse(request, error)
        return
    watch(group.members[request.member_id], turn)
    turn.reply(request.token, HeartbeatResult(error=error))


def leave(group: Membership, settings: GroupSettings, request: Leave, turn: Turn) -> None:
    """Let each named member go; the group reacts once, after the last of them."""
    before = len(group)
    results = tuple(
        LeftMember(member_id=who.member_id, instance_id=who.instance_id, error=_let_go(group, who, turn))
        for who in request.members
    )
    if len(group) < before:
        rebalance(group, settings, turn)
    else:
        # Only ids that were never used may have gone, and somebody may have been waiting for just these.
        end_if_complete(group, turn)
    turn.reply(request.token, LeaveResult(members=results))


def _let_go(group: Membership, who: Leaving, turn: Turn) -> GroupError | None:
    if not who.member_id:
        # Tools name a static member by its instance alone.
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
    """A member has been silent for its session timeout: it is out."""
    dismiss(group, member_id, turn)
    rebalance(group, settings, turn)


def pending_over(group: Membership, member_id: str, turn: Turn) -> None:
    """A member that was told its id has not come: stop waiting for it."""
    forget_pending(group, member_id, turn)
    end_if_complete(group, turn)
