"""Share groups on two brokers: leaders that end, that stand still, and offsets that are altered behind them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.harness.brokers import OverOneRedis, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, RELEASE, Sharer, acquired, codes, configure, parts

from headrace.kafka.errors import Code

GROUP = "workers"


@pytest.fixture
def pair() -> Iterator[OverOneRedis]:
    with brokers(2) as found:
        yield found


@contextmanager
def on(pair: OverOneRedis, node: int, topic: str) -> Iterator[Sharer]:
    with Wire(pair.addresses[node]) as wire:
        yield Sharer(wire, GROUP, topic)


def begun(pair: OverOneRedis) -> tuple[str, int, int]:
    """A topic with four records, its leader, and the other broker. The group has joined."""
    topic = pair.new_topic(1)
    (leader,) = pair.led(topic, 1).values()
    other = 3 - leader
    pair.asked(leader, lambda wire: wire.produce(topic, batch(b"a", b"b", b"c", b"d")))
    pair.asked(leader, lambda wire: configure(wire, GROUP, share_auto_offset_reset="earliest"))
    coordinator = pair.coordinator(leader, GROUP)

    def joined() -> bool:
        with on(pair, coordinator, topic) as member:
            answer = member.beat()
            return answer.error_code == 0 and bool(answer.assignment.topic_partitions)

    wait_for(joined, "an assignment")
    return topic, leader, other


def test_the_next_leader_continues_with_what_is_stored(pair: OverOneRedis) -> None:
    topic, leader, other = begun(pair)
    with on(pair, other, topic) as elsewhere:
        moved = parts(elsewhere.fetch(0))[0]
        assert moved.error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert moved.current_leader.leader_id == leader
    with on(pair, leader, topic) as member:
        assert acquired(member.fetch(0)) == [(0, 3, 1)]
        assert codes(member.acknowledge({0: [(0, 1, [ACCEPT, RELEASE])]})) == {0: 0}
        assert acquired(member.fetch()) == [(1, 1, 2)]
        pair.servers[leader].kill()
    wait_for(lambda: pair.leaders(other, topic).get(0) == other, "the next leader")
    with on(pair, other, topic) as next_member:
        # The second delivery of the released record was not stored, so it does not count.
        assert acquired(next_member.fetch(0, wait_ms=5_000)) == [(1, 3, 2)]


def test_a_leader_that_stood_still_decides_nothing(pair: OverOneRedis) -> None:
    topic, leader, other = begun(pair)
    with on(pair, leader, topic) as member:
        assert acquired(member.fetch(0)) == [(0, 3, 1)]
        process = pair.servers[leader].pid
        os.kill(process, signal.SIGSTOP)
        try:
            wait_for(lambda: pair.leaders(other, topic).get(0) == other, "the next leader")
            with on(pair, other, topic) as next_member:
                assert acquired(next_member.fetch(0, wait_ms=5_000)) == [(0, 3, 1)]
                assert codes(next_member.acknowledge({0: [(0, 3, [ACCEPT])]})) == {0: 0}
        finally:
            os.kill(process, signal.SIGCONT)
        (code,) = codes(member.acknowledge({0: [(0, 3, [RELEASE])]})).values()
        assert code == Code.NOT_LEADER_OR_FOLLOWER
    with on(pair, other, topic) as late:
        assert acquired(late.fetch(0)) == []
