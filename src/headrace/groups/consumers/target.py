"""The target assignment of a consumer group. That of a large group is computed outside the event loop."""

from collections.abc import Collection, Mapping

from headrace.groups import timers
from headrace.groups.assignment.assignors import range_assignor, uniform
from headrace.groups.assignment.holdings import MemberKey
from headrace.groups.configs import Rules
from headrace.groups.consumers.events import Assign, Assigned
from headrace.groups.consumers.membership import Membership
from headrace.groups.turn import Turn

_SHARE = 20
"""A group's target takes at most one part in this many of the event loop."""
_PER_MS = 1_000
"""Members, differing subscriptions and partitions whose target is computed in a millisecond."""
LARGEST_AT_ONCE = 5_000
"""Maximum members and partitions of a target that is computed in the turn that needs it."""
_MOST_DISCARDED = 2
"""Consecutive outdated results. The valid part of the next one applies, or a busy group would have no target."""
AGAIN_MS = 1_000
"""Delay after a failed computation."""

Targets = Mapping[MemberKey, Mapping[str, Collection[int]]]
"""Member -> topic -> partitions."""


def aim(group: Membership, rules: Rules, turn: Turn) -> None:
    """Compute a new target if the group has changed. Members that join together wait for a common one."""
    if not group.holdings.outdated or group.assign is not None or turn.has_timer(timers.target()):
        return
    assign = _input(group, rules)
    if _size(assign) > LARGEST_AT_ONCE:
        group.assign = assign
        turn.command(assign)
    else:
        _apply(group, rules, targets_of(assign), assign, turn)


def pause_ms(size: int, interval_ms: int) -> int:
    """Return the time from a target to the next one. An interval of 0 leaves it to the size of the group."""
    return interval_ms or size * _SHARE // _PER_MS


def targets_of(assign: Assign) -> Targets:
    """Compute a target."""
    if assign.assignor == "range":
        return range_assignor(assign.members, assign.partitions, assign.instances)
    return uniform(assign.members, assign.partitions, assign.owners, assign.targets)


def assigned(group: Membership, rules: Rules, event: Assigned, turn: Turn) -> None:
    """Apply a computed target if the group is as it was."""
    if event.assign is not group.assign:
        # An earlier state of the group was restored.
        return
    group.assign = None
    if event.targets is None:
        turn.set_timer(timers.target(), AGAIN_MS)
    elif group.holdings.epoch == group.assign_epoch:
        _apply(group, rules, event.targets, event.assign, turn)
    elif group.discarded >= _MOST_DISCARDED:
        _apply(group, rules, _still_valid(group, event.targets), event.assign, turn)
        group.holdings.target_epoch = group.assign_epoch
    else:
        group.discarded += 1
        aim(group, rules, turn)


def _input(group: Membership, rules: Rules) -> Assign:
    holdings = group.holdings
    group.assign_epoch = holdings.epoch
    members = group.members.values()
    return Assign(
        assignor=group.assignor(rules.limits.consumer_assignors),
        members=dict(holdings.members),
        partitions=holdings.partitions(),
        owners=holdings.owners(),
        targets=holdings.targets(),
        instances={each.member_id: each.instance_id for each in members if each.instance_id is not None},
    )


def _still_valid(group: Membership, targets: Targets) -> Targets:
    members, counts = group.holdings.members, group.holdings.partitions()
    return {
        who: {
            topic: [partition for partition in partitions if partition < counts[topic]]
            for topic, partitions in topics.items()
            if topic in members[who] and topic in counts
        }
        for who, topics in targets.items()
        if who in members
    }


def _size(assign: Assign) -> int:
    subscriptions = set(assign.members.values())
    different = sum(map(len, assign.members.values())) if len(subscriptions) > 1 else 0
    return len(assign.members) + sum(assign.partitions.values()) + different


def _apply(group: Membership, rules: Rules, targets: Targets, assign: Assign, turn: Turn) -> None:
    holdings = group.holdings
    holdings.aim(targets)
    for who, member in group.members.items():
        target = holdings.target(who)
        if target != group.aimed.get(who):
            group.aimed[who] = target
            group.touch(member)
    group.assigned = sum(assign.partitions.values())
    group.discarded = 0
    delay_ms = pause_ms(_size(assign), rules.config.consumer_assignment_interval_ms)
    if delay_ms and holdings.members:
        # Changes wait for this timer.
        turn.set_timer(timers.target(), delay_ms)
