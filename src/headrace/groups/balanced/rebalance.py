"""Partitions move: to whoever is due, as they become free, or as their owners give them up."""

from headrace.groups import timers
from headrace.groups.balanced.assignor import share_out
from headrace.groups.balanced.instance import Instance
from headrace.groups.balanced.section import Section
from headrace.groups.turn import Turn


def dismiss_silent(section: Section, at_ms: int, turn: Turn) -> None:
    """Take out whoever had been silent for longer than its timeout at `at_ms` (ticks), and share out what it had."""
    silent = [member for member in section.instances.values() if member.is_silent(at_ms)]
    for member in silent:
        del section.instances[member.name]
        section.changed()
        turn.cancel_timer(timers.instance(section.topic, member.name))
        for index in section.held_by(member.name):
            section.moved()
            section.holdings[index].release()
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
            holding.grant(due, section.moved())
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
