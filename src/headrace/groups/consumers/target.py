"""The target assignment of a consumer group: which member should have which partition."""

from headrace.groups import timers
from headrace.groups.assignment.assignors import range_assignor, uniform
from headrace.groups.configs import Rules
from headrace.groups.consumers.membership import Membership
from headrace.groups.turn import Turn

_SHARE = 20
"""A group's target takes at most one part in this many of the event loop."""
_PER_MS = 1_000
"""Members and partitions whose target is computed in a millisecond."""


def aim(group: Membership, rules: Rules, turn: Turn) -> None:
    """Compute a new target if the group has changed, now or by a timer soon.

    A large group waits in proportion to its last computation, so that members who join together cost one.
    """
    if not group.holdings.outdated or turn.has_timer(timers.target()):
        return
    _compute(group, rules)
    size = len(group.members) + group.assigned
    delay_ms = rules.config.consumer_assignment_interval_ms or size * _SHARE // _PER_MS
    if delay_ms and len(group.members):
        # The timer also keeps the time until the next target.
        turn.set_timer(timers.target(), delay_ms)


def _compute(group: Membership, rules: Rules) -> None:
    holdings = group.holdings
    partitions = holdings.partitions()
    if group.assignor(rules.limits.consumer_assignors) == "range":
        instances = {
            each.member_id: each.instance_id for each in group.members.values() if each.instance_id is not None
        }
        targets = range_assignor(holdings.members, partitions, instances)
    else:
        targets = uniform(holdings.members, partitions, holdings.owners(), holdings.targets())
    holdings.aim(targets)
    for who, member in group.members.items():
        target = holdings.target(who)
        if target != group.aimed.get(who):
            group.aimed[who] = target
            group.touch(member)
    group.assigned = sum(partitions.values())
