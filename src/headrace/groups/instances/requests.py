"""GetMessages, ConsumerCommit and ConsumerHeartbeat. Each request of an instance may move partitions."""

from bisect import bisect_right

from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import Delivered, Plan, ReadFrom
from headrace.groups.instances.model import GroupCursor, StartKind
from headrace.groups.instances.rebalance import check_cursor, enter, hand_over, is_outdated
from headrace.groups.instances.section import Holding, Instance, OpenRead, Section
from headrace.groups.turn import Turn

_NOTHING_KEPT = 0
"""Number of reads without state."""
_FROM_LOG_START = StartKind.TRIM_HORIZON


def get(section: Section, cursor: GroupCursor, turn: Turn) -> Plan:
    """Commit the records of the previous get, rebalance, and return what to read.

    Raises:
        InstanceError: INVALID_CURSOR, UNRESERVED_PARTITION. Nothing has changed.
    """
    check_cursor(section, cursor)
    if is_outdated(section, cursor):
        return _for_outdated(section, cursor)
    if cursor.commit_on_get:
        check_commit(section, cursor)
    member = enter(section, cursor, turn)
    if cursor.commit_on_get:
        commit_offsets(section, member, cursor, turn)
        member.extended_ms = turn.ticks_ms
    learn_flight(section, member, cursor)
    member.told = True
    hand_over(section, member, turn)
    return _plan(section, member, cursor)


def commit(section: Section, cursor: GroupCursor, turn: Turn) -> GroupCursor:
    """Commit without reading. Raises InstanceError (INVALID_CURSOR, UNRESERVED_PARTITION) with nothing changed."""
    check_cursor(section, cursor)
    if is_outdated(section, cursor):
        if cursor.offsets:
            raise unreserved(cursor.offsets[0][0])
        return cursor
    check_commit(section, cursor)
    if cursor.instance in section.instances or section.valid_offsets(cursor):
        # Without offsets, a commit only renews a member. With offsets, it extends a lapsed reservation.
        member = enter(section, cursor, turn)
        commit_offsets(section, member, cursor, turn)
        member.extended_ms = turn.ticks_ms
        learn_flight(section, member, cursor)
        member.told = True
        hand_over(section, member, turn)
    return section.next_cursor(cursor)


def beat(section: Section, cursor: GroupCursor, turn: Turn) -> GroupCursor:
    """Renew or add an instance. Raises InstanceError: INVALID_CURSOR.

    The cursor does not change: heartbeats may run concurrently with gets.
    """
    check_cursor(section, cursor)
    if not is_outdated(section, cursor):
        member = enter(section, cursor, turn)
        member.extended_ms = turn.ticks_ms
        hand_over(section, member, turn)
    return cursor


def _plan(section: Section, member: Instance, cursor: GroupCursor) -> Plan:
    known = section.offsets_of(member, cursor)
    carried = tuple((index, offset) for index, offset in known.items() if offset > section.position(index))
    reads = []
    tenures = {}
    holdings = section.holdings
    for index in _in_turn(section, member, cursor):
        holding = holdings[index]
        read = _read_from(section, index, known.get(index, -1) if known else -1)
        if holding.target is not None and read.offset >= holding.delivered:
            # It must be given up: read only records in flight again, in case the response was lost.
            continue
        holding.readers += 1
        holding.exposed = True
        tenures[index] = holding.granted
        reads.append(read)
    section.last_read += 1
    section.open_reads[section.last_read] = OpenRead(member.name, member.incarnation, tenures)
    return Plan(section.last_read, section.next_cursor(cursor, carried), tuple(reads))


def _in_turn(section: Section, member: Instance, cursor: GroupCursor) -> list[int]:
    """Return the member's partitions, starting after the last one served. A repeated request starts at the same one."""
    last = member.last_get
    repeated = last is not None and last[:2] == (cursor, member.commits)
    served = last[2] if last is not None and repeated else member.served
    member.last_get = (cursor, member.commits, served)
    held = section.held_by(member.name)
    behind = bisect_right(held, served)
    return held[behind:] + held[:behind]


def _read_from(section: Section, index: int, known: int) -> ReadFrom:
    position, epoch = section.standing(index)
    # `max` takes five times as long, for thousands of partitions.
    offset = known if known > position else position  # noqa: FURB136
    holding = section.holdings[index]
    reached, start = holding.delivered, holding.start
    if reached < offset:  # noqa: PLR1730
        reached = offset
    if start is None:
        return ReadFrom(index, offset, False, None, reached, epoch)
    not_before_ms = start.not_before_ms if known <= position else None
    return ReadFrom(index, offset, start.kind is _FROM_LOG_START, not_before_ms, reached, epoch)


def _for_outdated(section: Section, cursor: GroupCursor) -> Plan:
    """Answer a restarted instance's outdated cursor. It can read but not commit."""
    reads = tuple(_read_from(section, index, -1) for index in section.held_by(cursor.instance))
    return Plan(_NOTHING_KEPT, section.next_cursor(cursor), reads)


def delivered(section: Section, event: Delivered, turn: Turn) -> bool:
    """Before a get's response, mark its records as in flight in tenures that have not ended.

    Returns: Whether its plan is known, or it can commit nothing.
    """
    read = section.open_reads.pop(event.read, None)
    if read is not None:
        _take(section, read, event, turn)
    for index, offset, epoch in event.cuts:
        _cut(section, index, offset, epoch, turn)
    return read is not None or event.read == _NOTHING_KEPT


def _cut(section: Section, index: int, offset: int, leader_epoch: int, turn: Turn) -> None:
    """Handle records lost by Redis: records that reuse their offsets must not be skipped.

    Earlier deliveries can no longer be committed; such a commit is not an error.
    """
    if section.leader_epoch(index) >= leader_epoch:
        # Another get has reported it, or all offsets were reset.
        return
    holding = section.holdings[index]
    holding.leader_epoch = leader_epoch
    holding.invalidate(section.moved())
    if section.position(index) > offset:
        section.advance_offsets({index: offset}, turn)
    else:
        section.save_leader_epochs([index], turn)


def _keep_tenure(section: Section, holding: Holding) -> None:
    if holding.valid_from < holding.granted:
        holding.valid_from = holding.granted
        section.changed()


def _take(section: Section, read: OpenRead, event: Delivered, turn: Turn) -> None:
    member = section.instances.get(read.instance)
    if member is not None and member.incarnation != read.incarnation:
        return
    offsets, epochs = dict(event.offsets), dict(event.leader_epochs)
    in_hand = []
    for index, granted in read.tenures.items():
        holding = section.holdings[index]
        if not holding.belongs_to(read.instance, read.incarnation) or holding.granted != granted:
            continue
        if holding.readers:
            holding.readers -= 1
        if index in offsets:
            holding.delivered = max(holding.delivered, offsets[index])
            if epochs.get(index, -1) > section.leader_epoch(index):
                # It is not known whether the log still has the records of earlier owners.
                _keep_tenure(section, holding)
            holding.leader_epoch = max(holding.leader_epoch, epochs.get(index, -1))
            in_hand.append(index)
    section.save_leader_epochs(in_hand, turn)
    if event.offsets and member is not None:
        member.served = event.offsets[-1][0]


def check_commit(section: Section, cursor: GroupCursor) -> None:
    """Raise InstanceError (UNRESERVED_PARTITION) for offsets of a partition that another instance has taken.

    An instance loses a partition only when another one gets it. Offsets of partitions that it gave up itself, or that
    were reset, are ignored.
    """
    if not cursor.offsets or cursor.epoch != section.epoch:
        return
    member = section.instances.get(cursor.instance)
    away = member is None or cursor.generation < member.joined
    for index, _ in cursor.offsets:
        if index >= len(section.holdings):
            continue
        owner, taken = section.holdings[index].owner, section.holdings[index].taken
        if (taken or owner not in {None, cursor.instance}) and (away or _lost(member, index) > cursor.generation):
            raise unreserved(index)


def _lost(member: Instance | None, index: int) -> int:
    return 0 if member is None else member.lost.get(index, 0)


def unreserved(index: int) -> InstanceError:
    """Return the error of a commit in a partition."""
    message = f"Trying to commit unreserved partition {index}"
    return InstanceError(InstanceProblem.UNRESERVED_PARTITION, message, index)


def commit_offsets(section: Section, member: Instance, cursor: GroupCursor, turn: Turn) -> None:
    """Commit a checked cursor's offsets. They never decrease, so a repeated older request is harmless."""
    ahead: dict[int, int] = {}
    for index, offset in section.offsets_of(member, cursor).items():
        position = section.position(index)
        if offset > position:
            ahead[index] = offset
        if offset >= position and section.holdings[index].start is not None:
            section.holdings[index].start = None
            section.changed()
    if ahead:
        section.advance_offsets(ahead, turn)
        member.commits += 1


def learn_flight(section: Section, member: Instance, cursor: GroupCursor) -> None:
    """Restore from a cursor which records are in flight, after a restart of the server."""
    for index, offset in section.offsets_of(member, cursor).items():
        holding = section.holdings[index]
        holding.delivered = max(holding.delivered, offset)
