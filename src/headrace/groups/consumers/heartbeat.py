"""Heartbeats of a consumer group's members: checks, subscriptions, and moves of partitions.

Three rules are stricter than Kafka's, so that two members never read a partition at once (decision 0141). A request
with the previous epoch acknowledges nothing. A request over an older connection than the last one changes nothing. A
member gives up a partition only after it has named it as owned.
"""

from headrace.groups import timers
from headrace.groups.configs import NewerGroupSettings, Rules
from headrace.groups.consumers.events import STATIC_LEAVE_EPOCH, ConsumerHeartbeat, ConsumerHeartbeatResult, Resolve
from headrace.groups.consumers.member import Member, MemberState, as_assignment, owns_any, owns_only
from headrace.groups.consumers.membership import Membership
from headrace.groups.consumers.target import aim
from headrace.groups.errors import GroupError
from headrace.groups.model import JOIN_EPOCH, LEAVE_EPOCH, Assignment
from headrace.groups.turn import Turn


class Refused(Exception):
    """A rejected heartbeat, with Kafka's message."""

    def __init__(self, error: GroupError, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def fault(request: ConsumerHeartbeat, limits: NewerGroupSettings) -> tuple[GroupError, str] | None:
    """Return the error of a request that is invalid in any group, with Kafka's message."""
    try:
        _check_fields(request, limits)
    except Refused as refused:
        return refused.error, refused.message
    return None


def _check_fields(request: ConsumerHeartbeat, limits: NewerGroupSettings) -> None:
    """Check fields in Kafka's order. Raise Refused."""
    for value, name in (
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
        (request.member_id, "MemberId"),
    ):
        if value == "":
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.topics is None and not request.pattern:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in limits.consumer_assignors:
        supported = ", ".join(limits.consumer_assignors)
        raise Refused(
            GroupError.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {supported}.",
        )


def has_room(request: ConsumerHeartbeat, turn: Turn) -> bool:
    """Return whether the server has memory for a new member."""
    member = Member(request)
    member.topics = request.topics or ()
    return turn.may_grow(member.charged())


def heartbeat(group: Membership, rules: Rules, request: ConsumerHeartbeat, turn: Turn) -> None:
    """Answer a heartbeat without a `fault`."""
    if changes_nothing(group, request):
        # Nearly all heartbeats.
        member = group.members[request.member_id]
        member.connection = max(member.connection, request.connection)
        turn.set_timer(timers.session(request.member_id), rules.config.consumer_session_timeout_ms)
        turn.reply(
            request.token, ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
        )
        return
    try:
        if request.member_epoch < JOIN_EPOCH:
            result = _leave(group, rules, request, turn)
        else:
            result = _beat(group, rules, request, turn)
    except Refused as refused:
        turn.refuse(request, refused.error, refused.message)
        return
    turn.reply(request.token, result)


def changes_nothing(group: Membership, request: ConsumerHeartbeat) -> bool:
    """Return whether a heartbeat only renews a session."""
    member = group.members.get(request.member_id)
    return (
        member is not None
        and request.member_epoch == member.epoch == group.holdings.target_epoch
        and not (member.has_left or member.is_classic or waits(group, member))
        and request.topics is None
        and request.pattern is None
        and request.owned is None
        and request.instance_id in (None, member.instance_id)
        and request.rack_id in (None, member.rack_id)
        and request.server_assignor in (None, member.assignor)
        and request.rebalance_timeout_ms in (-1, member.rebalance_timeout_ms)
        and request.client_id == member.client_id
        and request.client_host == member.client_host
    )


def waits(group: Membership, member: Member) -> bool:
    """Return whether a member should send its next heartbeat soon."""
    unmatched = bool(member.pattern) and member.matched is None
    moves = member.state is not MemberState.STABLE or member.epoch < group.holdings.target_epoch
    return moves or group.holdings.outdated or unmatched


# Members.


def _find(group: Membership, request: ConsumerHeartbeat) -> Member | None:
    """Return the member of a request. None: it is new, or replaces a static one. Raise Refused."""
    if request.instance_id is not None:
        owner = group.instance(request.instance_id)
        if owner is None and request.member_epoch != JOIN_EPOCH:
            raise Refused(GroupError.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        if owner is not None and owner.member_id != request.member_id:
            _check_place(owner, request)
            return None
    member = group.members.get(request.member_id)
    if member is None and request.member_epoch != JOIN_EPOCH:
        raise Refused(
            GroupError.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {group.name}."
        )
    if member is not None and member.is_classic:
        raise Refused(GroupError.UNKNOWN_MEMBER_ID, f"Member {request.member_id} uses the classic protocol.")
    if member is not None and request.instance_id not in (None, member.instance_id):
        raise _invalid("InstanceId can't change.")
    return member


def _check_place(owner: Member, request: ConsumerHeartbeat) -> None:
    if request.member_epoch != JOIN_EPOCH:
        raise Refused(
            GroupError.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{owner.member_id}.",
        )
    if not (owner.has_left or owner.is_classic):
        raise Refused(
            GroupError.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by {owner.member_id} member.",
        )


def _check_epoch(group: Membership, member: Member, request: ConsumerHeartbeat) -> None:
    said, known = request.member_epoch, member.epoch
    if said == JOIN_EPOCH or (said == known and not member.has_left):
        return
    if said > known or member.has_left:
        size, known = "greater", STATIC_LEAVE_EPOCH if member.has_left else known
    else:
        size = "smaller"
        # The last response was lost.
        retried = said == member.previous_epoch and request.owned is not None
        if retried and owns_only(request.owned or (), member.assigned(group.holdings)):
            return
    raise Refused(
        GroupError.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({said}) than the one known by the group coordinator "
        f"({known}). The member must abandon all its partitions and rejoin.",
    )


def _leave(group: Membership, rules: Rules, request: ConsumerHeartbeat, turn: Turn) -> ConsumerHeartbeatResult:
    member = _find(group, request)
    assert member is not None, "only requests to join have no member"
    if request.member_epoch == LEAVE_EPOCH:
        group.remove(member, turn)
        aim(group, rules, turn)
    else:
        # It has given up everything. Its target stays for its successor.
        group.holdings.give_up(member.member_id, member.revoking)
        member.revoking = {}
        member.renew(member.epoch, MemberState.STABLE)
        member.has_left = True
        turn.cancel_timer(timers.revocation(member.member_id))
        turn.set_timer(timers.session(member.member_id), rules.config.consumer_session_timeout_ms)
        group.touch(member)
    return ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)


def _beat(group: Membership, rules: Rules, request: ConsumerHeartbeat, turn: Turn) -> ConsumerHeartbeatResult:
    member = _find(group, request)
    if member is None:
        acknowledges = True
        member = _enter(group, rules, request, turn)
    else:
        _check_epoch(group, member, request)
        if request.connection < member.connection:
            # Its client has another connection, and would not get the new assignment.
            return _response(group, member, request, moved=False)
        acknowledges = request.member_epoch in (JOIN_EPOCH, member.epoch)
        _check_room(member, request, turn)
    _update(group, rules, member, request, turn)
    aim(group, rules, turn)
    joins = request.member_epoch == JOIN_EPOCH
    if joins:
        # It has abandoned everything.
        member.adopting = {}
    elif acknowledges and request.owned is not None:
        member.adopted(request.owned)
    moved = reconcile(group, member, request.owned if acknowledges else None, turn)
    if joins:
        member.expect(member.assigned(group.holdings), turn.ticks_ms)
    turn.set_timer(timers.session(member.member_id), rules.config.consumer_session_timeout_ms)
    return _response(group, member, request, moved=moved)


def _response(group: Membership, member: Member, request: ConsumerHeartbeat, *, moved: bool) -> ConsumerHeartbeatResult:
    assignment = as_assignment(member.assigned(group.holdings)) if moved or _is_full(request) else None
    return ConsumerHeartbeatResult(
        member_id=member.member_id,
        member_epoch=member.epoch,
        waits=waits(group, member),
        assignment=assignment,
    )


def _is_full(request: ConsumerHeartbeat) -> bool:
    subscribes = request.topics is not None or request.pattern is not None
    says_all = request.rebalance_timeout_ms != -1 and subscribes and request.owned is not None
    return request.member_epoch == JOIN_EPOCH or says_all


def _enter(group: Membership, rules: Rules, request: ConsumerHeartbeat, turn: Turn) -> Member:
    owner = None if request.instance_id is None else group.instance(request.instance_id)
    member = Member(request)
    full = owner is None and len(group) >= rules.limits.consumer_max_size
    if full or not has_room(request, turn):
        raise Refused(
            GroupError.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {rules.limits.consumer_max_size} members.",
        )
    if owner is None:
        group.add(member)
    else:
        turn.cancel_timer(timers.session(owner.member_id))
        turn.cancel_timer(timers.revocation(owner.member_id))
        if owner.pattern:
            turn.command(Resolve({owner.member_id: "", member.member_id: owner.pattern}))
        group.replace(owner, member)
    return member


def _check_room(member: Member, request: ConsumerHeartbeat, turn: Turn) -> None:
    if request.topics is None or request.topics == member.topics:
        return
    if not turn.may_grow(sum(map(len, request.topics)) - sum(map(len, member.topics))):
        raise Refused(GroupError.GROUP_MAX_SIZE_REACHED, "The server has no memory left for more subscriptions.")


def _update(group: Membership, rules: Rules, member: Member, request: ConsumerHeartbeat, turn: Turn) -> None:
    """Apply the subscription and details of a request to its member."""
    member.connection = max(member.connection, request.connection)
    resubscribed = request.member_id not in group.holdings.members
    if request.topics is not None and request.topics != member.topics:
        member.topics, resubscribed = tuple(dict.fromkeys(request.topics)), True
    if request.pattern is not None and request.pattern != member.pattern:
        member.pattern, member.matched, resubscribed = request.pattern, None, True
        turn.command(Resolve({member.member_id: request.pattern}))
    if request.topics is not None:
        for name, facts in request.facts.items():
            group.holdings.topic(name, facts.topic_id, facts.partitions)
    if resubscribed:
        group.holdings.subscribe(member.member_id, member.subscription)
    if request.server_assignor not in (None, member.assignor):
        before = group.assignor(rules.limits.consumer_assignors)
        group.prefer(member, request.server_assignor or "")
        if group.assignor(rules.limits.consumer_assignors) != before:
            group.holdings.epoch += 1
        resubscribed = True
    if _update_details(member, request) or resubscribed:
        group.resize(member)


def _update_details(member: Member, request: ConsumerHeartbeat) -> bool:
    changed = member.has_left
    member.has_left = False
    timeout_ms = member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
    rack_id = member.rack_id if request.rack_id is None else request.rack_id
    known = (member.client_id, member.client_host, member.rebalance_timeout_ms, member.rack_id)
    if known != (request.client_id, request.client_host, timeout_ms, rack_id):
        member.client_id, member.client_host = request.client_id, request.client_host
        member.rebalance_timeout_ms, member.rack_id = timeout_ms, rack_id
        changed = True
    return changed


# Partitions.


def reconcile(group: Membership, member: Member, owned: Assignment | None, turn: Turn) -> bool:
    """Move a member towards its target. Return whether its assignment changed.

    `owned` is what the member has, if this request acknowledges its last assignment.
    """
    holdings, who = group.holdings, member.member_id
    if member.state is MemberState.UNREVOKED:
        if owned is None or owns_any(owned, member.revoking):
            return False
        holdings.give_up(who, member.revoking)
        member.revoking = {}
    elif member.state is MemberState.STABLE and member.epoch == holdings.target_epoch:
        return False
    lost = holdings.to_give_up(who)
    if member.may_adopt(holdings.existing(lost), turn.ticks_ms):
        # librdkafka sends a full request before it adopts an assignment.
        if member.state is MemberState.UNREVOKED:
            member.renew(member.epoch, MemberState.STABLE)
            turn.cancel_timer(timers.revocation(who))
            group.touch(member)
        return False
    if lost and (owned is None or owns_any(owned, lost)):
        member.revoking = lost
        member.renew(member.epoch, MemberState.UNREVOKED)
        turn.set_timer(timers.revocation(who), member.rebalance_timeout_ms)
        group.touch(member)
        return True
    holdings.give_up(who, lost)
    free = holdings.free_for(who)
    holdings.grant(who, free, holdings.target_epoch)
    if not member.is_classic:
        member.expect(free, turn.ticks_ms)
    state = MemberState.STABLE if holdings.is_settled(who) else MemberState.UNRELEASED
    if lost or free or (member.epoch, member.state) != (holdings.target_epoch, state):
        turn.cancel_timer(timers.revocation(who))
        member.renew(holdings.target_epoch, state)
        group.touch(member)
    return bool(lost or free)


def _invalid(message: str) -> Refused:
    return Refused(GroupError.INVALID_REQUEST, message)
