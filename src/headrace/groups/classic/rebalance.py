"""The join phase as a whole: it opens, waits, and ends in a new generation or in an empty group."""

from headrace.groups import timers
from headrace.groups.classic.member import Member
from headrace.groups.classic.membership import Membership
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import JoinResult, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupSettings
from headrace.groups.turn import Turn


def watch(member: Member, turn: Turn) -> None:
    """Expect the next sign of life within the session timeout, unless a request of the member is held."""
    if not member.waits:
        turn.set_timer(timers.session(member.member_id), member.session_timeout_ms)


def dismiss(group: Membership, member_id: str, turn: Turn) -> None:
    """Take a member out, answer what it waits for with UNKNOWN_MEMBER_ID, and forget its timer."""
    member = group.members[member_id]
    answer_held(group, member, turn, GroupError.UNKNOWN_MEMBER_ID)
    group.remove(member_id)
    turn.cancel_timer(timers.session(member_id))


def answer_held(group: Membership, member: Member, turn: Turn, error: GroupError) -> None:
    """Answer whatever the member waits for with `error`."""
    join = group.release_join(member)
    if join is not None:
        turn.reply(join.token, JoinResult(error=error, member_id=member.member_id))
    sync, member.held_sync = member.held_sync, None
    if sync is not None:
        turn.reply(sync.token, SyncResult(error=error))


def forget_pending(group: Membership, member_id: str, turn: Turn) -> None:
    """Withdraw an id that was given out and not used."""
    group.withdraw(member_id)
    turn.cancel_timer(timers.pending(member_id))


def rebalance(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    """See to it that a join phase is open, and end it when nobody is missing."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        _open(group, settings, turn)
    end_if_complete(group, turn)


def _open(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        _fail_syncs(group, turn)
    group.pending_sync.clear()
    turn.cancel_timer(timers.sync())
    turn.cancel_timer(timers.retention())
    if group.state is GroupState.EMPTY:
        longest = group.longest_rebalance_ms()
        group.initial_remaining_ms = max(longest - settings.initial_rebalance_delay_ms, 0)
        group.newcomer_seen = False
        # What the newcomers read is known once a protocol is chosen.
        group.subscribed = None
        turn.set_timer(timers.initial_delay(), settings.initial_rebalance_delay_ms)
    else:
        turn.set_timer(timers.rebalance(), group.longest_rebalance_ms())
    group.move_to(GroupState.PREPARING_REBALANCE)


def _fail_syncs(group: Membership, turn: Turn) -> None:
    for member in group.members.values():
        member.assignment = b""
        sync, member.held_sync = member.held_sync, None
        if sync is not None:
            turn.reply(sync.token, SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
            watch(member, turn)
    group.assigned_bytes = 0


def end_if_complete(group: Membership, turn: Turn) -> None:
    """End an open join phase when everyone is in. An initial delay is waited out, unless everyone has gone."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if not group.members or (group.initial_remaining_ms is None and group.all_joined):
        _end(group, turn)


def join_time_over(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    """The join timer fired: wait a little more for an empty group's first members, or go on without the absent."""
    remaining = group.initial_remaining_ms
    if remaining and group.newcomer_seen:
        group.newcomer_seen = False
        delay = min(settings.initial_rebalance_delay_ms, remaining)
        group.initial_remaining_ms = remaining - delay
        turn.set_timer(timers.initial_delay(), delay)
    else:
        _end(group, turn)


def _end(group: Membership, turn: Turn) -> None:
    for member in [m for m in group.members.values() if m.held_join is None and m.instance_id is None]:
        dismiss(group, member.member_id, turn)
    turn.cancel_timer(timers.rebalance())
    if not group.members:
        _become_empty(group, turn)
    elif not group.elect_leader():
        # Only static members are left and none of them rejoined: their sessions decide, not this phase.
        turn.set_timer(timers.rebalance(), group.longest_rebalance_ms())
    else:
        _begin_generation(group, turn)


def _become_empty(group: Membership, turn: Turn) -> None:
    group.begin_generation()
    group.leader = None
    group.empty_since_ms = turn.now_ms
    group.move_to(GroupState.EMPTY)
    turn.save(*group.generation_changes())


def _begin_generation(group: Membership, turn: Turn) -> None:
    group.begin_generation()
    group.empty_since_ms = None
    group.move_to(GroupState.COMPLETING_REBALANCE)
    turn.save(*group.unsettled_changes())
    turn.set_timer(timers.sync(), group.longest_rebalance_ms())
    for member in group.members.values():
        join = group.release_join(member)
        if join is None:
            # A static member that did not rejoin: it keeps its place and its session, and owes no sync.
            continue
        member.is_new = False
        group.pending_sync.add(member.member_id)
        turn.reply(join.token, joined(group, member))
        watch(member, turn)


def joined(group: Membership, member: Member) -> JoinResult:
    """The answer that puts a member into the present generation."""
    leads = group.leader == member.member_id
    return JoinResult(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=group.join_members() if leads else (),
    )


def sync_time_over(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    """The sync timer fired: whoever has not asked for its assignment is out, and the rest start over."""
    for member_id in sorted(group.pending_sync):
        dismiss(group, member_id, turn)
    rebalance(group, settings, turn)
