"""A broker that keeps its place: its heartbeats go on, whatever its storage answers."""

import asyncio

from headrace.broker.membership import Membership
from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock

ME = Member(node_id=1, incarnation="a", process="pid 1", host="here", port=9092)


class Storage:
    """A view with one broker in it; a heartbeat that fails in a way that nobody thought of."""

    def __init__(self) -> None:
        self.view: View | None = None
        self.beats = 0

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        self.beats += 1
        if self.beats == 4:
            raise AttributeError("a library's client did not know the node")
        return self.view, {}, "0-0"

    async def change(self, proposal: Proposal) -> View:
        self.view = View(proposal.least, proposal.members)
        return self.view

    def enter(self, number: int) -> None:
        pass


async def test_a_failure_that_nobody_thought_of_does_not_end_the_heartbeats() -> None:
    storage, clock = Storage(), ManualClock()
    broker = Membership(storage, ME, clock, session_ms=3_000, interval_ms=300)  # type: ignore[arg-type]
    await broker.join(lambda _: None)
    broker.start()
    while storage.beats < 8:
        clock.advance(300)
        await asyncio.sleep(0)
    assert broker.is_member
    await broker.leave()
