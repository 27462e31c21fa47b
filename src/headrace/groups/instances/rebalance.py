"""Members of a balanced section, and the movement of its partitions.

Members enter with their first request, and newer cursors replace older ones. Partitions move when they are free, or
when their owners give them up.
"""

from headrace.groups import timers
from headrace.groups.assignment.assignors import uniform
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import CreateCursor
from headrace.groups.instances.model import GroupCursor
from headrace.groups.instances.section import Instance, Section
from headrace.groups.turn import Turn


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
    topic, holdings = section.topic, section.holdings
    owners = {index: holding.owner for index, holding in enumerate(holdings) if holding.owner is not None}
    intended = {index: holding.target for index, holding in enumerate(holdings) if holding.target is not None}
    members = dict.fromkeys(section.instances, frozenset((topic,)))
    shares = uniform(members, {topic: len(holdings)}, {topic: owners}, {topic: intended})
    due = {index: name for name, topics in shares.items() for index in topics.get(topic, ())}
    return [due[index] for index in range(len(holdings))]


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
