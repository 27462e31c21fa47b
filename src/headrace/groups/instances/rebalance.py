"""Members and partitions of a balanced section: who enters, and which partitions move to whom.

Cursors are created, names come in with their first request, and newer cursors take over. Partitions move as they become
free, or as their owners give them up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.groups import timers
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import CreateCursor
from headrace.groups.instances.model import GroupCursor
from headrace.groups.instances.section import Instance, Section
from headrace.groups.turn import Turn


# Who shall have which partition: shares that differ by one at most, with as few moves as possible.
#
# Pure and deterministic: the same members, holders and intentions give the same answer.
def quotas(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> dict[str, int]:
    """How many partitions each member is due: all the same number, some one more.

    One more goes to those that hold most, then to those that most are on the way to, then to those that joined first:
    so a newcomer moves nothing that need not move.

    Args:
        members: in the order in which they joined; at least one.
        holders: by partition, who has it.
        intended: partition -> who shall have it next, as decided before.
    """
    held = Counter(holders)
    coming = Counter(intended.values())
    least, rest = divmod(len(holders), len(members))
    ranked = sorted(members, key=lambda name: (-held[name], -coming[name]))
    return {name: least + (rank < rest) for rank, name in enumerate(ranked)}


def share_out(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> list[str]:
    """The member that shall have each partition; arguments as for `quotas`.

    A member keeps what it holds up to its quota, and rather what nobody waits for. What was intended stays so where
    it can. The rest goes to whoever lacks most.
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
    # Free ones first: what somebody still holds is of no use to its next owner yet.
    for partition in sorted(range(len(holders)), key=lambda partition: (holders[partition] is not None, partition)):
        if shall[partition] is None:
            member = max(members, key=lambda name: left[name])
            shall[partition] = member
            left[member] -= 1
    return [member for member in shall if member is not None]


def dismiss_silent(section: Section, at_ms: int, turn: Turn) -> None:
    """Take out whoever had been silent for longer than its timeout at `at_ms` (ticks), and share out what it had."""
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
    """Grant what is free, and decide what its owners are to give up, and for whom."""
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
    """After a restart: find out anew who is to give up what. Nothing moves, so nothing has to be stored."""
    if section.instances:
        for holding, due in zip(section.holdings, _shares(section), strict=True):
            holding.aim(None if holding.owner in (None, due) else due, ticks_ms)


def _shares(section: Section) -> list[str]:
    holdings = section.holdings
    intended = {index: holding.target for index, holding in enumerate(holdings) if holding.target in section.instances}
    return share_out(list(section.instances), [holding.owner for holding in holdings], intended)


def hand_over(section: Section, member: Instance, turn: Turn) -> None:
    """Let a member give up what others are due, with its own request.

    It gives up what it has nothing of in hand. What it has in hand it may keep as long as it commits, or extends its
    reservation by heartbeats. One that reads on for longer than its timeout and does neither loses it by force.
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
    """The first cursor of a chain. A name that is in the section has restarted; another comes in when it asks."""
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
    """Raise InstanceError for a cursor that this section has not created: it is of one that was here before."""
    if cursor.epoch < section.created_ms:
        raise InstanceError(InstanceProblem.INVALID_CURSOR, f"group {section.group!r} has not made this cursor")


def is_outdated(section: Section, cursor: GroupCursor) -> bool:
    """Whether a newer cursor of the same name is in use: then this one neither commits nor keeps anything alive."""
    member = section.instances.get(cursor.instance)
    return member is not None and cursor.incarnation < member.incarnation


def enter(section: Section, cursor: GroupCursor, turn: Turn) -> Instance:
    """The member that a cursor speaks for, alive from now; taken in when it is none. The cursor is not outdated."""
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
    """The instance has restarted: what its earlier life had in hand it has no longer, and can no longer commit."""
    member.begin(cursor.incarnation, cursor.timeout_ms, cursor.commit_on_get, turn.ticks_ms)
    section.changed()
    for index in section.held_by(member.name):
        section.holdings[index].begin_tenure(section.moved())
    watch(section, member, turn)


def watch(section: Section, member: Instance, turn: Turn) -> None:
    """Look again when the member may be silent for too long. Its requests do not move the timer: they are many."""
    overdue_ms = member.seen_ms + member.timeout_ms + 1
    turn.set_timer(timers.instance(section.topic, member.name), overdue_ms - turn.ticks_ms)
