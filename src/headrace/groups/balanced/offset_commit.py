"""Which of a cursor's offsets may be committed, and what committing them means."""

from headrace.groups.balanced.errors import InstanceError, InstanceProblem
from headrace.groups.balanced.instance import Instance
from headrace.groups.balanced.model import GroupCursor
from headrace.groups.balanced.section import Section
from headrace.groups.turn import Turn


def check(section: Section, cursor: GroupCursor) -> None:
    """Raise InstanceError UNRESERVED_PARTITION if a cursor has offsets in a partition that another instance has taken.

    A partition is taken from an instance that was silent, or held on for too long. Until another instance holds it, it
    still belongs to the first one. What an instance gave up with a request of its own had nothing in flight, and what
    UpdateGroup or a reset has overtaken means nothing any more: neither is an error, and neither is committed.
    """
    if not cursor.offsets or cursor.epoch != section.epoch:
        return
    member = section.instances.get(cursor.instance)
    away = member is None or cursor.generation < member.joined
    for index, _ in cursor.offsets:
        owner = section.holdings[index].owner if index < len(section.holdings) else None
        if owner not in {None, cursor.instance} and (away or _lost(member, index) > cursor.generation):
            raise unreserved(index)


def _lost(member: Instance | None, index: int) -> int:
    return 0 if member is None else member.lost.get(index, 0)


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
