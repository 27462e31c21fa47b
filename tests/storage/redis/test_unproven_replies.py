from collections import deque
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.redis.protocol import ANSWER, UnprovenReplies

_AT_ONCE = 64 << 10  # bytes that Redis sends to one client at a time


class _Sent(NamedTuple):
    size: int
    """Of its answer, bytes."""
    behind: int
    """How many answers were whole when it was sent."""


class _Wire:
    """Requests, each answered at once, and their answers as they come, cut anywhere."""

    def __init__(self) -> None:
        self.backlog = UnprovenReplies()
        self.waiting: deque[_Sent] = deque()
        self.whole = 0
        self.sizes: list[int] = []
        self.arrived = 0

    def send(self, size: int) -> None:
        self.waiting.append(_Sent(size, self.whole))
        self.sizes.append(size)

    def deliver(self, count: int) -> list[tuple[_Sent, bool, int]]:
        """Deliver each complete reply, whether it may have left early, and the replies received before it."""
        self.backlog.came(count, len(self.waiting))
        self.arrived += count
        told: list[tuple[_Sent, bool, int]] = []
        while self.waiting and self.arrived >= self.waiting[0].size:
            sent = self.waiting.popleft()
            self.arrived -= sent.size
            before = self.sizes[sent.behind : self.whole]
            told.append((sent, len(told) < self.backlog.early, sum(before) + ANSWER * len(before)))
            self.whole += 1
        if self.waiting:
            self.backlog.answered(len(told), count)
        else:
            self.backlog.forget()
        return told

    @property
    def left(self) -> int:
        return sum(each.size for each in self.waiting) - self.arrived


sizes = st.one_of(st.integers(4, 64), st.integers(4, 20_000), st.integers(60_000, 300_000))
steps = st.lists(
    st.one_of(sizes.map(lambda size: ("send", size)), st.integers(1, 300_000).map(lambda count: ("come", count))),
    max_size=60,
)


@given(steps)
def test_a_reply_behind_more_than_one_flush_of_redis_may_be_early(chosen: list[tuple[str, int]]) -> None:
    wire = _Wire()
    for what, number in chosen:
        if what == "send":
            wire.send(number)
        elif wire.left:
            for _sent, early, before in wire.deliver(min(number, wire.left)):
                assert early or before < _AT_ONCE


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 2_000)), max_size=60))
def test_a_few_writes_at_a_time_are_certain(rounds: list[tuple[int, int]]) -> None:
    wire = _Wire()
    for count, piece in rounds:
        for _ in range(count - len(wire.waiting)):
            wire.send(30)
        assert not any(early for _sent, early, _before in wire.deliver(min(piece, wire.left)))


def test_the_end_of_a_large_answer_counts_for_all_of_it() -> None:
    wire = _Wire()
    wire.send(65_600)
    assert wire.deliver(65_500) == []
    wire.send(4)
    assert [early for _sent, early, _before in wire.deliver(104)] == [True, True]
    wire.send(4)
    assert [early for _sent, early, _before in wire.deliver(4)] == [False]
    wire.send(65_600)
    wire.send(4)
    wire.send(4)
    assert [early for _sent, early, _before in wire.deliver(65_604)] == [True, True]
