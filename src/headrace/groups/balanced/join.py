"""Who is in a section: cursors are created, names come in with their first request, newer cursors take over."""

from headrace.groups import timers
from headrace.groups.balanced.events import CreateCursor
from headrace.groups.balanced.instance import Instance
from headrace.groups.balanced.model import GroupCursor
from headrace.groups.balanced.rebalance import rebalance
from headrace.groups.balanced.section import Section
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.turn import Turn


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
