"""Which of a cursor's offsets may be committed, and what committing them means."""

from headrace.groups.balanced.errors import InstanceError, InstanceProblem
from headrace.groups.balanced.instance import Instance
from headrace.groups.balanced.model import GroupCursor
from headrace.groups.balanced.section import Section
from headrace.groups.turn import Turn


def check(section: Section, cursor: GroupCursor) -> None:
    """Raise InstanceError UNRESERVED_PARTITION if a cursor's offsets may not be committed, for one that was lost.

    Lost is what was taken from the instance: because it was silent, or held on for too long. What it gave up with a
    request of its own had nothing in flight, and what UpdateGroup has overtaken means nothing any more: neither is an
    error, and neither is committed.
    """
    if not cursor.offsets or cursor.epoch != section.epoch:
        return
    member = section.instances.get(cursor.instance)
    if member is None or cursor.generation < member.joined:
        raise unreserved(cursor.offsets[0][0])
    for index, _ in cursor.offsets:
        if member.lost.get(index, 0) > cursor.generation:
            raise unreserved(index)


def unreserved(index: int) -> InstanceError:
    """The refusal to commit in a partition."""
    message = f"Trying to commit unreserved partition {index}"
    return InstanceError(InstanceProblem.UNRESERVED_PARTITION, message, index)


def commit(section: Section, member: Instance, cursor: GroupCursor, turn: Turn) -> None:
    """Commit a checked cursor's offsets. Positions move forward only: a repeated older request lowers none."""
    ahead: dict[int, int] = {}
    for index, offset in section.offsets_of(member, cursor).items():
        position = section.position(index)
        if offset > position:
            ahead[index] = offset
        if offset >= position and section.holdings[index].start is not None:
            section.holdings[index].start = None
            section.changed()
    if ahead:
        section.move_positions(ahead, turn)
        member.commits += 1


def learn_flight(section: Section, member: Instance, cursor: GroupCursor) -> None:
    """A cursor tells what its instance has in hand, which a restarted server does not know."""
    for index, offset in section.offsets_of(member, cursor).items():
        holding = section.holdings[index]
        holding.delivered = max(holding.delivered, offset)
