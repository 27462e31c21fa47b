"""Members of a balanced section, and the movement of its partitions.

Members enter with their first request, and newer cursors replace older ones. Partitions move when they are free, or
when their owners give them up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.groups import timers
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import CreateCursor
from headrace.groups.instances.model import GroupCursor
from headrace.groups.instances.section import Instance, Section
from headrace.groups.turn import Turn


# Targets: shares that differ by at most one, with as few moves as possible. Deterministic.
def quotas(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> dict[str, int]:
    """Return the number of partitions for each member. They differ by at most one.

    Larger quotas go to members with most partitions, then most intended ones, then to the oldest, to avoid moves. There
    must be a member; they are in join order. `holders` are owners by partition, `intended` the next ones.
    """
    held = Counter(holders)
    coming = Counter(intended.values())
    least, rest = divmod(len(holders), len(members))
    ranked = sorted(members, key=lambda name: (-held[name], -coming[name]))
    return {name: least + (rank < rest) for rank, name in enumerate(ranked)}


def share_out(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> list[str]:
    """Return the target member of each partition.

    A member keeps partitions up to its quota, preferably those without an intended owner. Intentions are kept if
    possible. The rest goes to members with the largest deficit.
    """
    left = quotas(members, holders, intended)
    shall: list[str | None] = [None] * len(holders)
    for partition in sorted(range(len(holders)), key=lambda partition: (partition in intended, partition)):
        holder = holders[partition]
        if holder is not None and left.get(holder, 0) > 0:
            shall[partition] = holder
            left[holder] -= 1
    for partition, member in sorted(intended.items()):
        if shall[partition] is None and left.get(member, 0) > 0:
            shall[partition] = member
            left[member] -= 1
    # Free ones first: others are not available to their next owner yet.
    for partition in sorted(range(len(holders)), key=lambda partition: (holders[partition] is not None, partition)):
        if shall[partition] is None:
            member = max(members, key=lambda name: left[name])
            shall[partition] = member
            left[member] -= 1
    return [member for member in shall if member is not None]


def dismiss_silent(section: Section, at_ms: int, turn: Turn) -> None:
    """Remove members that are silent at `at_ms` (ticks), and reassign their partitions."""
    silent = [member for member in section.instances.values() if member.is_silent(at_ms)]
    for member in silent:
        del section.instances[member.name]
        section.changed()
        turn.cancel_timer(timers.instance(section.topic, member.name))
        for index in section.held_by(member.name):
            section.moved()
            section.holdings[index].lapse(member.incarnation)
    if silent:
        rebalance(section, turn)


def rebalance(section: Section, turn: Turn) -> None:
    """Grant free partitions, and decide which ones owners must give up."""
    if section.pool is not None:
        section.pool.rebalance(section, turn)
        return
    if not section.instances:
        for holding in section.holdings:
            holding.aim(None, turn.ticks_ms)
        return
    for holding, due in zip(section.holdings, _shares(section), strict=True):
        if holding.owner is None:
            holding.grant(due, section.instances[due].incarnation, section.moved())
        else:
            holding.aim(None if holding.owner == due else due, turn.ticks_ms)


def aim_again(section: Section, ticks_ms: int) -> None:
    """Decide after a restart which partitions must move. Grants and stores nothing."""
    if section.instances:
        for holding, due in zip(section.holdings, _shares(section), strict=True):
            holding.aim(None if holding.owner in (None, due) else due, ticks_ms)


def _shares(section: Section) -> list[str]:
    holdings = section.holdings
    intended = {index: holding.target for index, holding in enumerate(holdings) if holding.target in section.instances}
    return share_out(list(section.instances), [holding.owner for holding in holdings], intended)


def hand_over(section: Section, member: Instance, turn: Turn) -> None:
    """Move partitions from a member during its own request.

    It gives up partitions without records in flight. It may keep others while it commits or sends heartbeats, and loses
    them if it does neither for its timeout.
    """
    given = False
    for index in section.held_by(member.name):
        holding = section.holdings[index]
        if holding.target is None:
            continue
        if not member.told or holding.in_flight(section.position(index)):
            if turn.ticks_ms - max(holding.since_ms, member.extended_ms) <= member.timeout_ms:
                continue
            member.lost[index] = section.moved()
        section.moved()
        holding.release()
        given = True
    if given:
        rebalance(section, turn)


def create_cursor(section: Section, request: CreateCursor, turn: Turn) -> GroupCursor:
    """Return the first cursor of a chain. If the name is a member, the instance has restarted."""
    section.incarnations += 1
    section.changed()
    cursor = GroupCursor(
        group=section.group,
        instance=request.instance,
        incarnation=section.incarnations,
        epoch=section.epoch,
        generation=section.generation,
        timeout_ms=request.timeout_ms,
        commit_on_get=request.commit_on_get,
    )
    member = section.instances.get(request.instance)
    if member is not None:
        _take_over(section, member, cursor, turn)
    return cursor


def check_cursor(section: Section, cursor: GroupCursor) -> None:
    """Raise InstanceError for a cursor of an earlier section."""
    if cursor.epoch < section.created_ms:
        raise InstanceError(InstanceProblem.INVALID_CURSOR, f"group {section.group!r} has not made this cursor")


def is_outdated(section: Section, cursor: GroupCursor) -> bool:
    """Return whether a newer cursor of the same name is in use.

    An outdated one neither commits nor extends a reservation.
    """
    member = section.instances.get(cursor.instance)
    return member is not None and cursor.incarnation < member.incarnation


def enter(section: Section, cursor: GroupCursor, turn: Turn) -> Instance:
    """Renew or add the member of a current cursor, and return it."""
    member = section.instances.get(cursor.instance)
    if member is None:
        member = section.instances[cursor.instance] = Instance(cursor, turn.ticks_ms)
        section.changed()
        rebalance(section, turn)
        member.joined = section.generation
        watch(section, member, turn)
    elif cursor.incarnation > member.incarnation:
        _take_over(section, member, cursor, turn)
    else:
        member.seen_ms = turn.ticks_ms
    return member


def _take_over(section: Section, member: Instance, cursor: GroupCursor, turn: Turn) -> None:
    """The earlier records in flight of a restarted instance can no longer be committed."""
    member.begin(cursor.incarnation, cursor.timeout_ms, cursor.commit_on_get, turn.ticks_ms)
    section.changed()
    for index in section.held_by(member.name):
        section.holdings[index].begin_tenure(section.moved())
    watch(section, member, turn)


def watch(section: Section, member: Instance, turn: Turn) -> None:
    """Set the timer of a member's timeout. Frequent requests do not move it."""
    overdue_ms = member.seen_ms + member.timeout_ms + 1
    turn.set_timer(timers.instance(section.topic, member.name), overdue_ms - turn.ticks_ms)
