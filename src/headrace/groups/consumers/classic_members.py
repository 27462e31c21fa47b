"""Requests of classic members in a consumer group (decision 0146).

JoinGroup names what the member owns, so it acknowledges like a heartbeat of KIP-848. SyncGroup returns what the server
has assigned. A heartbeat returns REBALANCE_IN_PROGRESS when the member must join again.
"""

from collections.abc import Callable

from headrace.groups import timers
from headrace.groups.configs import Rules
from headrace.groups.consumer_subscription import CONSUMER_PROTOCOL, assignment, owned_partitions, topics_of
from headrace.groups.consumers.events import Resolve
from headrace.groups.consumers.heartbeat import reconcile
from headrace.groups.consumers.member import Member, MemberState
from headrace.groups.consumers.membership import Membership
from headrace.groups.consumers.target import aim
from headrace.groups.effects import HeartbeatResult, JoinResult, LeaveResult, LeftMember, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Heartbeat, Join, Leave, Leaving, Sync
from headrace.groups.model import Assignment, GroupSettings, TopicFacts
from headrace.groups.turn import Turn

Facts = Callable[[str], TopicFacts | None]
"""Looks up a topic. None: it is not known."""


def no_facts(_: str) -> TopicFacts | None:
    """Know no topic."""
    return None


def join(group: Membership, rules: Rules, settings: GroupSettings, request: Join, facts: Facts, turn: Turn) -> None:
    """Answer a join at once. There is no leader: the server assigns."""
    result = _join(group, rules, settings, request, facts, turn)
    turn.reply(request.token, JoinResult(error=result) if isinstance(result, GroupError) else result)


def _join(
    group: Membership, rules: Rules, settings: GroupSettings, request: Join, facts: Facts, turn: Turn
) -> JoinResult | GroupError:
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return GroupError.INVALID_SESSION_TIMEOUT
    member = _find(group, request)
    if isinstance(member, GroupError):
        return member
    protocol = group.protocol_for(request.protocols, member)
    metadata = dict(request.protocols).get(protocol or "")
    topics = None if metadata is None else topics_of(metadata)
    if request.protocol_type != CONSUMER_PROTOCOL or protocol is None or metadata is None or topics is None:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if member is None and len(group) >= rules.limits.consumer_max_size:
        return GroupError.GROUP_MAX_SIZE_REACHED
    size = sum(len(name) + len(each) for name, each in request.protocols)
    if len(topics) + size > settings.max_metadata_bytes or not turn.may_grow(size):
        return GroupError.GROUP_MAX_SIZE_REACHED
    if member is None or member.member_id != (request.member_id or request.new_member_id):
        member = _enter(group, member, request, turn)
    group.use_classic(member, request)
    member.topics = tuple(dict.fromkeys(topics))
    for name in member.topics:
        found = facts(name)
        if found is not None:
            group.holdings.topic(name, found.topic_id, found.partitions)
    group.holdings.subscribe(member.member_id, member.subscription)
    group.resize(member)
    aim(group, rules, turn)
    reconcile(group, member, _owned(group, metadata), turn)
    _watch(member, turn)
    # It must sync, and join again if it must give up partitions.
    turn.set_timer(timers.revocation(member.member_id), member.rebalance_timeout_ms)
    return JoinResult(
        generation=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol=protocol,
        leader="",
        member_id=member.member_id,
    )


def _find(group: Membership, request: Join) -> Member | GroupError | None:
    """Return the member, or the static one whose place it takes. None: a new one."""
    owner = None if request.instance_id is None else group.instance(request.instance_id)
    if not request.member_id:
        return owner
    if request.instance_id is not None:
        if owner is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return owner if owner.member_id == request.member_id else GroupError.FENCED_INSTANCE_ID
    member = group.members.get(request.member_id)
    return GroupError.UNKNOWN_MEMBER_ID if member is None or not member.is_classic else member


def _enter(group: Membership, owner: Member | None, request: Join, turn: Turn) -> Member:
    member = Member.of_classic(request)
    if owner is None:
        group.add(member)
        return member
    turn.cancel_timer(timers.session(owner.member_id))
    turn.cancel_timer(timers.revocation(owner.member_id))
    if owner.pattern:
        turn.command(Resolve({owner.member_id: ""}))
    group.replace(owner, member)
    member.pattern, member.matched = "", None
    return member


def _owned(group: Membership, metadata: bytes) -> Assignment:
    """Members that revoke everything before they join own nothing."""
    found = []
    for name, partitions in owned_partitions(metadata).items():
        topic = group.holdings.current(name)
        if topic is not None and topic.id is not None:
            found.append((topic.id, tuple(partitions)))
    return tuple(found)


def _watch(member: Member, turn: Turn) -> None:
    turn.set_timer(timers.session(member.member_id), member.session_timeout_ms or 0)


def _check(group: Membership, request: Sync | Heartbeat) -> Member | GroupError:
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        owner = group.instance(request.instance_id)
        if owner is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if owner.member_id != request.member_id:
            return GroupError.FENCED_INSTANCE_ID
    if member is None or not member.is_classic:
        return GroupError.UNKNOWN_MEMBER_ID
    return GroupError.ILLEGAL_GENERATION if request.generation != member.epoch else member


def sync(group: Membership, request: Sync, turn: Turn) -> None:
    """Return a member's assignment."""
    member = _check(group, request)
    if isinstance(member, GroupError):
        turn.refuse(request, member)
        return
    protocol = request.protocol or group.protocol_for(member.protocols, member)
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or protocol not in dict(member.protocols):
        turn.refuse(request, GroupError.INCONSISTENT_GROUP_PROTOCOL)
    elif member.epoch < group.holdings.target_epoch and member.state is not MemberState.UNREVOKED:
        turn.refuse(request, GroupError.REBALANCE_IN_PROGRESS)
    else:
        _watch(member, turn)
        if member.state is not MemberState.UNREVOKED:
            turn.cancel_timer(timers.revocation(member.member_id))
        # Assignments name topics: a former one cannot be named.
        existing = group.holdings.existing(member.assigned(group.holdings))
        parts = {topic.name: sorted(each) for topic, each in sorted(existing.items())}
        turn.reply(
            request.token,
            SyncResult(protocol_type=CONSUMER_PROTOCOL, protocol=protocol, assignment=assignment(parts)),
        )


def heartbeat_error(group: Membership, request: Heartbeat) -> GroupError | None:
    """Return a member's current error; None: it has what the server wants it to have."""
    member = _check(group, request)
    if isinstance(member, GroupError):
        return member
    if member.epoch < group.holdings.target_epoch or member.state is MemberState.UNREVOKED:
        return GroupError.REBALANCE_IN_PROGRESS
    waits = member.state is MemberState.UNRELEASED and group.holdings.free_for(member.member_id)
    return GroupError.REBALANCE_IN_PROGRESS if waits else None


def beat(group: Membership, request: Heartbeat, turn: Turn) -> None:
    """Renew a member's session, and return whether it must join again."""
    error = heartbeat_error(group, request)
    if error not in (None, GroupError.REBALANCE_IN_PROGRESS):
        turn.refuse(request, error)
        return
    member = group.members[request.member_id]
    _watch(member, turn)
    if error is not None and not turn.has_timer(timers.revocation(member.member_id)):
        turn.set_timer(timers.revocation(member.member_id), member.rebalance_timeout_ms)
    turn.reply(request.token, HeartbeatResult(error=error))


def leave(group: Membership, rules: Rules, request: Leave, turn: Turn) -> None:
    """Remove each named member, also those with the newer protocol: tools have no other request for it."""
    results = tuple(
        LeftMember(member_id=who.member_id, instance_id=who.instance_id, error=_let_go(group, who, turn))
        for who in request.members
    )
    aim(group, rules, turn)
    turn.reply(request.token, LeaveResult(members=results))


def _let_go(group: Membership, who: Leaving, turn: Turn) -> GroupError | None:
    member = group.members.get(who.member_id)
    if who.instance_id is not None:
        owner = group.instance(who.instance_id)
        if owner is not None and who.member_id and owner.member_id != who.member_id:
            return GroupError.FENCED_INSTANCE_ID
        member = owner
    if member is None:
        return GroupError.UNKNOWN_MEMBER_ID
    group.remove(member, turn)
    return None
