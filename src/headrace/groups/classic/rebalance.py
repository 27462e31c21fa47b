"""The join phase: it opens, waits, and ends in a new generation or an empty group."""

from headrace.groups import timers
from headrace.groups.classic.member import Member
from headrace.groups.classic.membership import Membership
from headrace.groups.classic.states import GroupState
from headrace.groups.effects import JoinResult, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupSettings
from headrace.groups.turn import Turn


def watch(member: Member, turn: Turn) -> None:
    """Start the session timeout, unless a request of the member is held."""
    if not member.waits:
        turn.set_timer(timers.session(member.member_id), member.session_timeout_ms)


def dismiss(group: Membership, member_id: str, turn: Turn) -> None:
    """Remove a member and answer its requests with UNKNOWN_MEMBER_ID."""
    member = group.members[member_id]
    answer_held(group, member, turn, GroupError.UNKNOWN_MEMBER_ID)
    group.remove(member_id)
    turn.cancel_timer(timers.session(member_id))


def answer_held(group: Membership, member: Member, turn: Turn, error: GroupError) -> None:
    """Answer a member's held requests with `error`."""
    join = group.release_join(member)
    if join is not None:
        turn.reply(join.token, JoinResult(error=error, member_id=member.member_id))
    sync, member.held_sync = member.held_sync, None
    if sync is not None:
        turn.reply(sync.token, SyncResult(error=error))


def forget_pending(group: Membership, member_id: str, turn: Turn) -> None:
    """Forget an assigned id that was not used."""
    group.withdraw(member_id)
    turn.cancel_timer(timers.pending(member_id))


def rebalance(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    """Open a join phase if necessary, and end it if complete."""
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
        # Subscriptions are known once a protocol is chosen.
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
    """End an open join phase when all members have joined. An initial delay ends early only without members."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if not group.members or (group.initial_remaining_ms is None and group.all_joined):
        _end(group, turn)


def join_time_over(group: Membership, settings: GroupSettings, turn: Turn) -> None:
    """Handle the join timer: extend the initial delay, or continue without absent members."""
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
        # Only static members are left and none rejoined: wait for their sessions.
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
            # A static member that did not rejoin keeps its session, and need not sync.
            continue
        member.is_new = False
        group.pending_sync.add(member.member_id)
        turn.reply(join.token, joined(group, member))
        watch(member, turn)


def joined(group: Membership, member: Member) -> JoinResult:
    """Return a member's JoinGroup response for the current generation."""
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
    """Handle the sync timer: remove members that have not synced, and rebalance."""
    for member_id in sorted(group.pending_sync):
        dismiss(group, member_id, turn)
    rebalance(group, settings, turn)
