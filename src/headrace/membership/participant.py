"""A broker's part in the cluster membership, as a pure state machine.

Heartbeats are counters, timed by this process's monotonic clock. Redis's clock jumps in a failover. A broker declares
another one dead if its counter has not changed for a session timeout, provided that the broker's own heartbeats were
prompt. If Redis was slow or this process was paused, it restarts the timeouts of all others, so that no broker expires
all of them at once. A broker whose process is known to have ended is declared dead at once.
"""

from collections.abc import Mapping

import msgspec

from headrace.membership.view import Member, View, joined, without

PROMPT_BEATS = 2
"""Prompt heartbeats in a row before a broker judges others.

A broker that was declared dead rejoins after that many heartbeats within the session timeout. Prompt ones would exclude
it for ever with a slow Redis.
"""

Counters = Mapping[tuple[int, str], int]
"""(Node id, incarnation) -> last heartbeat counter."""


class Proposal(msgspec.Struct, frozen=True):
    """A change of the cluster membership, valid while its number is the expected one."""

    expected: int
    """0: no view exists."""
    before: int
    """Number of the last view that the proposer knows, even if Redis has lost it. The new number is larger."""
    members: tuple[Member, ...]


class Step(msgspec.Struct, frozen=True):
    """Result of an event."""

    adopt: View | None = None
    """View to adopt first."""
    propose: Proposal | None = None
    lost: str = ""
    """Reason why this process must end."""
    silent: tuple[tuple[Member, int], ...] = ()
    """Brokers that the proposal removes for silence, with the milliseconds since their last heartbeat."""


class Participant:
    """The membership state machine of one broker."""

    def __init__(self, me: Member, session_ms: int, interval_ms: int) -> None:
        """Begin outside of any view. `session_ms` without a heartbeat make a broker dead."""
        self.me = me
        self.view: View | None = None
        """The adopted view. It may be without this broker."""
        self.valid_until_ms = 0
        """Monotonic time until which no broker can have declared this one dead."""
        self._session_ms = session_ms
        self._interval_ms = interval_ms
        self._sent_ms: int | None = None
        self._before_ms: int | None = None
        self._prompt = self._in_time = 0
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        """Broker -> its last counter, and the time when that was first seen."""
        self._ended: set[tuple[int, str]] = set()
        self._was_in = False
        self._rival: tuple[str, int] | None = None
        """Incarnation and first seen counter of another process with this broker's id."""
        self.leaving = False

    @property
    def is_member(self) -> bool:
        """Whether the adopted view has this process."""
        return self.view is not None and self.view.has(self.me)

    def ended(self, member: Member) -> None:
        """Note that a broker's process seems to have ended. If it has not, it joins again."""
        self._ended.add((member.node_id, member.incarnation))

    def sent(self, now_ms: int) -> None:
        """Note that a heartbeat was sent."""
        self._before_ms, self._sent_ms = self._sent_ms, now_ms

    def failed(self) -> None:
        """Note that a heartbeat failed."""
        self._in_time = 0
        self._judge_nobody()

    def _judge_nobody(self) -> None:
        self._prompt = 0
        self._seen.clear()

    def answered(self, now_ms: int, found: View | None, counters: Counters) -> Step:
        """Process the response to the last heartbeat.

        Args:
            now_ms: monotonic time.
            found: the view in Redis, if any.
            counters: heartbeats of all brokers.
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
        known = 0 if self.view is None else self.view.number
        if found.number < known:
            # Redis lost data.
            return Step(propose=Proposal(found.number, known, found.members))
        adopt = found if found.number > known else None
        if adopt is not None:
            self.view = found
        if self.leaving:
            return Step(adopt, self.leave())
        if dead:
            proposal = Proposal(found.number, found.number, without(found.members, dead))
            return Step(adopt, proposal, silent=self._silent(now_ms, dead))
        if self.me not in found.members:
            # An older version has changed the view. It drops the fields that it does not know.
            return Step(adopt, Proposal(found.number, found.number, joined(found.members, self.me)))
        return Step(adopt)

    def _silent(self, now_ms: int, dead: list[Member]) -> tuple[tuple[Member, int], ...]:
        found = ((each, (each.node_id, each.incarnation)) for each in dead)
        return tuple((each, now_ms - self._seen[place][1]) for each, place in found if place not in self._ended)

    def leave(self) -> Proposal | None:
        """Return the proposal to remove this broker, if it is in the adopted view."""
        self.leaving = True
        if self.view is None or not self.view.has(self.me):
            return None
        return Proposal(self.view.number, self.view.number, without(self.view.members, [self.me]))

    def changed(self, view: View) -> Step:
        """Adopt the view that Redis has after a proposal was accepted or lost a race."""
        self._forget(view)
        known = 0 if self.view is None else self.view.number
        if view.number <= known:
            return Step()
        if not view.has(self.me) and not self._was_in:
            # Another broker was faster. This one tries again with its next heartbeat.
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
        # A third is left for the brokers that check the counter.
        in_time = pause_ms + took_ms <= self._session_ms * 2 // 3
        self._in_time = self._in_time + 1 if in_time else 0

    def _forget(self, view: View) -> None:
        present = {(each.node_id, each.incarnation) for each in view.members}
        self._seen = {place: seen for place, seen in self._seen.items() if place in present}
        self._ended &= present

    def _watch(self, now_ms: int, found: View, counters: Counters) -> list[Member]:
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
        adopt = None
        if self._was_in and (self.view is None or found.number > self.view.number):
            adopt = self.view = found
        if self.leaving or (self._was_in and self._in_time < PROMPT_BEATS):
            return Step(adopt)
        before = max(found.number, 0 if self.view is None else self.view.number)
        return Step(adopt, Proposal(found.number, before, joined(found.members, self.me)))
