"""A broker comes back where it can keep its place, and judges others only where it is sure of itself."""

import msgspec
import pytest

from headrace.membership.participant import Participant, Proposal
from headrace.membership.view import FEATURES, Member, View

ME, OTHER = (
    Member(node_id=node, incarnation=name, process="", host="here", port=node) for node, name in ((1, "a"), (2, "b"))
)
BOTH, WITHOUT_ME = View(5, (ME, OTHER)), View(6, (OTHER,))
SESSION_MS, INTERVAL_MS = 3_000, 500


class Beating:
    """A broker whose Redis takes as long as a test says."""

    def __init__(self) -> None:
        self.mind = Participant(ME, SESSION_MS, INTERVAL_MS)
        self.now_ms = self.counter = 0
        self.proposal: Proposal | None = None
        assert self.beat(BOTH, 1) is None

    def beat(self, found: View, took_ms: int) -> tuple[Member, ...] | None:
        """The members that it proposes; None: it proposes nothing."""
        self.now_ms += INTERVAL_MS
        self.counter += 1
        self.mind.sent(self.now_ms)
        self.now_ms += took_ms
        self.proposal = self.mind.answered(self.now_ms, found, {(2, "b"): self.counter}).propose
        return None if self.proposal is None else self.proposal.members


@pytest.mark.parametrize("took_ms", [1, 499, 700])
def test_it_comes_back_though_redis_takes_its_time(took_ms: int) -> None:
    broker = Beating()
    broker.now_ms += 3_600_000
    proposed = [broker.beat(WITHOUT_ME, took_ms) for _ in range(3)]
    assert proposed == [None, None, (ME, OTHER)]


def test_it_does_not_come_back_where_it_would_be_missed_again() -> None:
    broker = Beating()
    broker.now_ms += 3_600_000
    assert [broker.beat(WITHOUT_ME, 2_000) for _ in range(10)] == [None] * 10


def test_slow_redis_removes_no_member() -> None:
    broker = Beating()
    assert broker.beat(BOTH, 1) is None
    for _ in range(20):
        broker.counter = 0
        assert broker.beat(BOTH, 700) is None


def test_the_others_are_notified_of_a_membership_lost_in_redis() -> None:
    """A broker that has not seen it would take the next membership for its own successor, and keep old groups."""
    broker = Beating()
    assert broker.mind.changed(View(7, (ME,), 5)).adopt is not None
    broker.beat(BOTH, 1)
    assert broker.proposal == Proposal(5, 7, (ME, OTHER))


def test_who_is_not_in_what_redis_has_left_comes_back_behind_what_it_has_seen() -> None:
    broker = Beating()
    assert broker.mind.changed(View(7, (ME, OTHER), 5)).adopt is not None
    broker.beat(View(4, (OTHER,)), 1)
    assert broker.proposal == Proposal(4, 7, (ME, OTHER))


def test_features_that_an_older_broker_has_dropped_are_proposed_again() -> None:
    me = msgspec.structs.replace(ME, features=FEATURES)
    mind = Participant(me, SESSION_MS, INTERVAL_MS)
    mind.sent(0)
    assert mind.answered(1, BOTH, {}).propose == Proposal(5, 5, (me, OTHER))
    mind.sent(INTERVAL_MS)
    assert mind.answered(INTERVAL_MS + 1, View(6, (me, OTHER), 5), {}).propose is None
