"""A broker's part in the membership, as a pure state machine: what it answers Redis' answers with.

Heartbeats are counters. They are timed by this process' monotonic clock, never by Redis' clock, which jumps in a
failover. A broker declares another one dead when that one's counter has not moved for a session timeout, but only if
its own heartbeats were prompt meanwhile. If Redis was slow, or this process was stopped, it starts to watch everybody
anew: so neither expires all brokers at once. A neighbour may tell sooner that a broker's process has ended: that one
is declared dead at once.
"""

from collections.abc import Mapping

import msgspec

from headrace.membership.view import Member, View, joined, without

PROMPT_BEATS = 2
"""Prompt heartbeats in a row before a broker judges others.

A broker that was declared dead itself comes back after so many heartbeats that were merely in time: a Redis that is
never prompt would keep it out for ever.
"""

Counters = Mapping[tuple[int, str], int]
"""(node id, incarnation) -> its last heartbeat."""


class Proposal(msgspec.Struct, frozen=True):
    """A change of the view, if its number is still the expected one."""

    expected: int
    """0: there is no view."""
    before: int
    """The last view that its proposer knows of, that one or one that Redis has lost: the new number is larger."""
    members: tuple[Member, ...]


class Step(msgspec.Struct, frozen=True):
    """What is to be done."""

    adopt: View | None = None
    """Go by this view from now on, before anything else."""
    propose: Proposal | None = None
    lost: str = ""
    """Why this process can be no member any more; it has to end."""
    silent: tuple[tuple[Member, int], ...] = ()
    """Those that are dead in what is proposed, since nothing was heard of them for so many ms."""


class Participant:
    """One broker."""

    def __init__(self, me: Member, session_ms: int, interval_ms: int) -> None:
        """Begin outside of any view.

        Args:
            me: this broker.
            session_ms: how long a counter may stand still before its broker is declared dead.
            interval_ms: the time between two heartbeats.
        """
        self.me = me
        self.view: View | None = None
        """The adopted one; it may be without this broker."""
        self.valid_until_ms = 0
        """On the own clock: until then nobody can have declared this broker dead."""
        self._session_ms = session_ms
        self._interval_ms = interval_ms
        self._sent_ms: int | None = None
        self._before_ms: int | None = None
        self._prompt = self._in_time = 0
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        """Broker -> its last counter, and when that was first seen."""
        self._ended: set[tuple[int, str]] = set()
        self._was_in = False
        self._rival: tuple[str, int] | None = None
        """The process that has this broker's id in the view: its incarnation and its first counter that was seen."""
        self.leaving = False

    @property
    def is_member(self) -> bool:
        """Whether the adopted view has this process."""
        return self.view is not None and self.view.has(self.me)

    def ended(self, member: Member) -> None:
        """The process of a broker has ended, as far as a neighbour can tell. Where it has not, it joins again."""
        self._ended.add((member.node_id, member.incarnation))

    def sent(self, now_ms: int) -> None:
        """Note that a heartbeat was sent."""
        self._before_ms, self._sent_ms = self._sent_ms, now_ms

    def failed(self) -> None:
        """Note that a heartbeat was not answered."""
        self._in_time = 0
        self._judge_nobody()

    def _judge_nobody(self) -> None:
        self._prompt = 0
        self._seen.clear()

    def answered(self, now_ms: int, found: View | None, counters: Counters) -> Step:
        """The answer to the last heartbeat.

        Args:
            now_ms: on the own monotonic clock.
            found: the view as Redis has it; None: there is none.
            counters: every broker's heartbeats.
        """
        assert self._sent_ms is not None, "an answer without a heartbeat"
        self._take_note(now_ms, self._sent_ms)
        if found is None:
            if self._was_in:
                return Step(lost="the keyspace was emptied under this server")
            return Step(propose=Proposal(0, 0, (self.me,)))
        dead = self._watch(now_ms, found, counters)
        mine = found.member(self.me.node_id)
        if mine is not None and mine.incarnation != self.me.incarnation:
            return self._other_process(found, mine, dead, counters)
        if mine is None:
            return self._outside(found)
        self._was_in = True
        self.valid_until_ms = self._sent_ms + self._session_ms
        return self._inside(now_ms, found, dead)

    def _inside(self, now_ms: int, found: View, dead: list[Member]) -> Step:
        """The view has this broker."""
        known = 0 if self.view is None else self.view.number
        if found.number < known:
            # Redis came back with less than it had.
            return Step(propose=Proposal(found.number, known, found.members))
        adopt = found if found.number > known else None
        if adopt is not None:
            self.view = found
        if self.leaving:
            return Step(adopt, self.leave())
        if dead:
            proposal = Proposal(found.number, found.number, without(found.members, dead))
            return Step(adopt, proposal, silent=self._silent(now_ms, dead))
        return Step(adopt)

    def _silent(self, now_ms: int, dead: list[Member]) -> tuple[tuple[Member, int], ...]:
        """Those whose process has ended were not missed for their silence."""
        found = ((each, (each.node_id, each.incarnation)) for each in dead)
        return tuple((each, now_ms - self._seen[place][1]) for each, place in found if place not in self._ended)

    def leave(self) -> Proposal | None:
        """Take this broker out of the view it has adopted; None where it is in none."""
        self.leaving = True
        if self.view is None or not self.view.has(self.me):
            return None
        return Proposal(self.view.number, self.view.number, without(self.view.members, [self.me]))

    def changed(self, view: View) -> Step:
        """A proposal was taken, or another one was before it: `view` is what Redis has now."""
        self._forget(view)
        known = 0 if self.view is None else self.view.number
        if view.number <= known:
            return Step()
        if not view.has(self.me) and not self._was_in:
            # Somebody else was faster: this broker asks again with its next heartbeat.
            return Step()
        self._was_in = self._was_in or view.has(self.me)
        self.view = view
        return Step(adopt=view)

    def _take_note(self, now_ms: int, sent_ms: int) -> None:
        took_ms = now_ms - sent_ms
        pause_ms = 0 if self._before_ms is None else sent_ms - self._before_ms
        if took_ms > self._interval_ms or pause_ms > 2 * self._interval_ms:
            self._judge_nobody()
        else:
            self._prompt += 1
        # A third is left for those who look at the counter.
        in_time = pause_ms + took_ms <= self._session_ms * 2 // 3
        self._in_time = self._in_time + 1 if in_time else 0

    def _forget(self, view: View) -> None:
        """Whoever is out of the view is watched anew when it comes back."""
        present = {(each.node_id, each.incarnation) for each in view.members}
        self._seen = {place: seen for place, seen in self._seen.items() if place in present}
        self._ended &= present

    def _watch(self, now_ms: int, found: View, counters: Counters) -> list[Member]:
        """Those whose counter has stood still for too long."""
        self._forget(found)
        dead = []
        for member in found.members:
            place = (member.node_id, member.incarnation)
            if member.incarnation == self.me.incarnation:
                continue
            counter = counters.get(place, 0)
            before = self._seen.get(place)
            if before is None or before[0] != counter:
                before = self._seen[place] = (counter, now_ms)
            over = place in self._ended or now_ms - before[1] >= self._session_ms
            if over and self._prompt >= PROMPT_BEATS:
                dead.append(member)
        return dead

    def _other_process(self, found: View, other: Member, dead: list[Member], counters: Counters) -> Step:
        """The view has another process under this broker's id: an earlier one that died, or a mistake."""
        if self._was_in:
            return Step(lost=f"another server took node.id={self.me.node_id} over: {other.process}")
        counter = counters.get((other.node_id, other.incarnation), 0)
        if self._rival is None or self._rival[0] != other.incarnation:
            self._rival = (other.incarnation, counter)
        if counter != self._rival[1]:
            return Step(lost=f"another server with node.id={self.me.node_id} is alive: {other.process}")
        if other in dead:
            return Step(propose=Proposal(found.number, found.number, joined(found.members, self.me)))
        return Step()

    def _outside(self, found: View) -> Step:
        """The view is without this broker: it has not joined yet, or it was declared dead, or it has left."""
        adopt = None
        if self._was_in and (self.view is None or found.number > self.view.number):
            adopt = self.view = found
        if self.leaving or (self._was_in and self._in_time < PROMPT_BEATS):
            return Step(adopt)
        before = max(found.number, 0 if self.view is None else self.view.number)
        return Step(adopt, Proposal(found.number, before, joined(found.members, self.me)))
