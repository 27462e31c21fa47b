"""ShareFetch on the wire (reference: Apache Kafka 4.3.1, whose responses were recorded)."""

import threading
import time
from typing import Any

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, REJECT, RELEASE, RENEW, Sharer, acquired, codes, configure, parts, values

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.testing import InProcessServer, Server


@pytest.fixture
def shared(wire: Wire, topic: str) -> str:
    """A topic of two partitions, read from its start by the group of the same name."""
    configure(wire, topic, share_auto_offset_reset="earliest")
    return wire.create(topic, 2)


@pytest.fixture
def sharer(wire: Wire, shared: str) -> Sharer:
    """A member that has joined."""
    member = Sharer(wire, shared, shared)
    assert member.beat().error_code == 0
    return member


@pytest.fixture
def second(other: Wire, sharer: Sharer) -> Sharer:
    """Another member, on a connection of its own."""
    member = Sharer(other, sharer.group, sharer.topic)
    assert member.beat().error_code == 0
    return member


def test_records_are_acquired_and_accepted(wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a", b"b"))
    wire.produce(sharer.topic, batch(b"c"))
    first = sharer.fetch(0, 1)
    assert acquired(first) == [(0, 2, 1)]
    assert values(first) == [b"a", b"b", b"c"]
    assert first.acquisition_lock_timeout_ms == 30_000
    assert list(parts(first)) == [0], "without records or results a partition is left out"
    assert acquired(sharer.fetch()) == []
    assert codes(sharer.fetch(acks={0: [(0, 2, [ACCEPT])]})) == {0: 0}
    assert acquired(sharer.fetch()) == []
    wire.produce(sharer.topic, batch(b"d"))
    assert acquired(sharer.fetch()) == [(3, 3, 1)]


def test_released_records_come_again_with_their_count(wire: Wire, sharer: Sharer, second: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a", b"b", b"c", b"d"))
    sharer.fetch(0)
    assert acquired(second.fetch(0)) == []
    assert codes(sharer.acknowledge({0: [(0, 3, [ACCEPT, RELEASE, REJECT, ACCEPT])]})) == {0: 0}
    again = second.fetch()
    assert acquired(again) == [(1, 1, 2)]
    assert values(again) == [b"a", b"b", b"c", b"d"], "batches are whole"


def test_a_record_is_delivered_five_times(wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"poison"))
    counts = []
    sharer.fetch(0, records=0)
    for _ in range(6):
        got = acquired(sharer.fetch())
        if not got:
            break
        counts += [count for _, _, count in got]
        assert codes(sharer.acknowledge({0: [(0, 0, [RELEASE])]})) == {0: 0}
    assert counts == [1, 2, 3, 4, 5]


def test_a_rejected_list_changes_nothing(wire: Wire, sharer: Sharer, second: Sharer) -> None:
    wire.produce(sharer.topic, batch(*(b"%d" % number for number in range(6))))
    sharer.fetch(0)
    second.fetch(0)
    for bad, code in (
        ([(0, 0, [9])], Code.INVALID_REQUEST),
        ([(0, 0, [-1])], Code.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], Code.INVALID_REQUEST),
        ([(1, 1, [ACCEPT]), (0, 0, [ACCEPT])], Code.INVALID_REQUEST),
        ([(0, 0, [ACCEPT]), (100, 101, [ACCEPT])], Code.INVALID_REQUEST),
        ([(0, 0, [RENEW])], Code.INVALID_REQUEST),
        ([(0, 2**62, [ACCEPT])], Code.INVALID_REQUEST),
    ):
        assert codes(sharer.acknowledge({0: bad})) == {0: code}, bad
    assert codes(second.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: Code.INVALID_RECORD_STATE}
    assert codes(sharer.acknowledge({0: [(0, 5, [ACCEPT])]})) == {0: 0}, "all are still acquired"
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: 0}, "below the start: done"


def test_session_epochs(wire: Wire, sharer: Sharer) -> None:
    def code(answer: Any) -> Code:
        return Code(answer.error_code)

    assert code(sharer.fetch(0, epoch=1)) is Code.SHARE_SESSION_NOT_FOUND
    assert code(sharer.acknowledge({}, epoch=1)) is Code.SHARE_SESSION_NOT_FOUND
    assert code(sharer.fetch(0, epoch=0, acks={0: [(0, 0, [1])]})) is Code.INVALID_REQUEST
    assert code(sharer.fetch(0)) is Code.NONE
    assert code(sharer.fetch(epoch=5)) is Code.INVALID_SHARE_SESSION_EPOCH
    assert code(sharer.fetch(epoch=-2)) is Code.INVALID_REQUEST
    assert code(sharer.acknowledge({}, epoch=0)) is Code.INVALID_SHARE_SESSION_EPOCH
    assert code(sharer.fetch()) is Code.NONE
    assert code(sharer.acknowledge({1: [(0, 0, [1])]})) is Code.NONE
    sharer.session -= 1
    assert codes(sharer.acknowledge({1: [(0, 0, [1])]}, epoch=3)) == {1: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert code(sharer.fetch(epoch=-1)) is Code.NONE
    assert code(sharer.acknowledge({}, epoch=4)) is Code.SHARE_SESSION_NOT_FOUND
    empty = m.ShareFetchRequest(group_id=None, member_id=None)
    assert code(wire.ask(empty, 2)) is Code.INVALID_REQUEST


def test_renewal(wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a"))
    sharer.fetch(0)
    assert codes(sharer.acknowledge({0: [(0, 0, [RENEW])]}, renew=True)) == {0: 0}
    assert sharer.fetch(is_renew_ack=True).error_code == Code.INVALID_REQUEST
    zeros: dict[str, Any] = {"min_bytes": 0, "max_bytes": 0, "max_records": 0}
    renewed = sharer.fetch(acks={0: [(0, 0, [RENEW])]}, is_renew_ack=True, **zeros)
    assert codes(renewed) == {0: 0}
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: 0}


def test_the_end_of_a_session_releases_everything(wire: Wire, sharer: Sharer, second: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a"))
    wire.produce(sharer.topic, batch(b"b"))
    sharer.fetch(0)
    second.fetch(0)
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=-1)) == {0: 0}
    assert acquired(second.fetch(wait_ms=5_000)) == [(1, 1, 2)]


def test_a_lost_connection_releases_everything_at_once(running: Server, wire: Wire, sharer: Sharer) -> None:
    """Its lock would last for 30 s (trap 24)."""
    wire.produce(sharer.topic, batch(b"a"))
    with Wire(running.kafka) as leaving:
        gone = Sharer(leaving, sharer.group, sharer.topic)
        assert acquired(gone.fetch(0)) == [(0, 0, 1)]
        assert acquired(sharer.fetch(0)) == []
    began = time.monotonic()
    assert acquired(sharer.fetch(wait_ms=20_000)) == [(0, 0, 2)]
    assert time.monotonic() - began < 5


def test_a_session_on_another_connection_keeps_what_is_acquired(running: Server, wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a"))
    with Wire(running.kafka) as first:
        Sharer(first, sharer.group, sharer.topic, member=sharer.member).fetch(0)
        assert acquired(sharer.fetch(0)) == []
    # The end of the first connection has nothing to do with the session of the second one.
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: 0}


@pytest.mark.parametrize("event", ["append", "release"])
def test_a_waiting_fetch_wakes(wire: Wire, sharer: Sharer, second: Sharer, event: str) -> None:
    """Growth and a release end the wait, long before its limit (trap 23)."""
    if event != "append":
        wire.produce(sharer.topic, batch(b"a"))
    sharer.fetch(0)
    second.fetch(0)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(second.fetch(wait_ms=30_000)))
    waiting.start()
    time.sleep(0.3)
    assert not answers
    began = time.monotonic()
    if event == "append":
        wire.produce(sharer.topic, batch(b"a"))
    else:
        sharer.acknowledge({0: [(0, 0, [RELEASE])]})
    waiting.join()
    assert acquired(answers[0]) == [(0, 0, 1 if event == "append" else 2)]
    assert time.monotonic() - began < 5


def test_the_end_of_a_lock_ends_a_wait() -> None:
    short: dict[str, Any] = {
        "group_share_min_record_lock_duration_ms": 1_000,
        "group_share_record_lock_duration_ms": 1_000,
    }
    with InProcessServer(**short) as running, Wire(running.kafka) as wire, Wire(running.kafka) as other:
        configure(wire, "locks", share_auto_offset_reset="earliest")
        wire.create("locks")
        first, second = (Sharer(each, "locks", "locks") for each in (wire, other))
        first.beat()
        wire.produce("locks", batch(b"a"))
        assert acquired(first.fetch(0)) == [(0, 0, 1)]
        began = time.monotonic()
        assert acquired(second.fetch(0, wait_ms=30_000)) == [(0, 0, 2)]
        assert 0.5 < time.monotonic() - began < 10
        assert codes(first.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: Code.INVALID_RECORD_STATE}


def test_room_in_the_window_ends_a_wait(wire: Wire, sharer: Sharer, second: Sharer) -> None:
    configure(wire, sharer.group, share_partition_max_record_locks=100)
    for _ in range(3):
        wire.produce(sharer.topic, batch(*[b"x"] * 50))
    assert acquired(sharer.fetch(0)) == [(0, 99, 1)]
    second.fetch(0)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(second.fetch(wait_ms=30_000)))
    waiting.start()
    time.sleep(0.2)
    assert not answers
    sharer.acknowledge({0: [(0, 99, [ACCEPT])]})
    waiting.join()
    assert acquired(answers[0]) == [(100, 149, 1)]


def test_limits(wire: Wire, sharer: Sharer) -> None:
    for _ in range(3):
        wire.produce(sharer.topic, batch(b"a", b"b", b"c"))
    wire.produce(sharer.topic, batch(b"d"), partition=1)
    assert acquired(sharer.fetch(0, 1, max_bytes=0)) == []
    assert acquired(sharer.fetch(records=2)) == [(0, 2, 1)], "whole batches"
    both = sharer.fetch(records=2)
    assert acquired(both, 1) == [(0, 0, 1)], "the other partition is next"
    assert acquired(both) == [(3, 5, 1)]
    assert acquired(sharer.fetch(records=2, share_acquire_mode=1)) == [(6, 7, 1)], "exactly"
    assert acquired(sharer.fetch(records=2, max_bytes=1)) == [(8, 8, 1)], "the first batch may be larger"


def test_partitions_come_and_go(wire: Wire, sharer: Sharer) -> None:
    for partition in (0, 1):
        wire.produce(sharer.topic, batch(b"a"), partition=partition)
    assert acquired(sharer.fetch(1), 1) == [(0, 0, 1)]
    both = sharer.fetch(0, acks={1: [(0, 0, [ACCEPT])]}, forget=[1])
    assert acquired(both) == [(0, 0, 1)]
    wire.produce(sharer.topic, batch(b"b"), partition=1)
    assert acquired(sharer.fetch(), 1) == []
    assert acquired(sharer.fetch(1), 1) == [(1, 1, 1)]


def test_unknown_partitions(wire: Wire, sharer: Sharer) -> None:
    assert {index: part.error_code for index, part in parts(sharer.fetch(0, 7)).items()} == {
        7: Code.UNKNOWN_TOPIC_OR_PARTITION
    }
    began = time.monotonic()
    again = sharer.fetch(wait_ms=20_000)
    assert parts(again)[7].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert 0.3 < time.monotonic() - began < 10, "an error that is known already is not repeated at once"
    stranger = Sharer(wire, "nobody-joined-this", sharer.topic)
    assert parts(stranger.fetch(0))[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deleted_topic(wire: Wire, sharer: Sharer) -> None:
    wire.produce(sharer.topic, batch(b"a"))
    sharer.fetch(0)
    wire.delete(sharer.topic)
    assert codes(sharer.acknowledge({0: [(0, 0, [ACCEPT])]})) == {0: Code.UNKNOWN_TOPIC_ID}
    assert parts(sharer.fetch())[0].error_code == Code.UNKNOWN_TOPIC_ID


def test_records_below_the_log_start_are_done(wire: Wire, sharer: Sharer) -> None:
    """A late acknowledgement of them is accepted (trap 25)."""
    for _ in range(3):
        wire.produce(sharer.topic, batch(b"a"))
    assert acquired(sharer.fetch(0)) == [(0, 2, 1)]
    wire.delete_records(sharer.topic, 2)
    assert codes(sharer.acknowledge({0: [(0, 2, [ACCEPT])]})) == {0: 0}
    wire.produce(sharer.topic, batch(b"b"))
    assert acquired(sharer.fetch()) == [(3, 3, 1)]


def test_where_a_group_begins(wire: Wire, topic: str) -> None:
    wire.create(topic, 1)
    wire.produce(topic, batch(b"old", timestamp=1_000))
    wire.produce(topic, batch(b"new", timestamp=int(time.time() * 1000)))
    for reset, first in (("latest", 2), ("earliest", 0), ("by_duration:PT1H", 1)):
        group = f"{topic}-{first}"
        configure(wire, group, share_auto_offset_reset=reset)
        member = Sharer(wire, group, topic)
        member.beat()
        member.fetch(0, records=0)
        got = acquired(member.fetch())
        assert [offset for offset, _, _ in got] == ([] if first == 2 else [first]), reset
        wire.produce(topic, batch(b"later"))
        assert got or acquired(member.fetch(wait_ms=5_000))


def test_a_fetch_of_a_replaced_session_acquires_nothing(running: Server, other: Wire, sharer: Sharer) -> None:
    again = Sharer(other, sharer.group, sharer.topic, member=sharer.member)
    sharer.fetch(0)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(sharer.fetch(wait_ms=1_000)))
    waiting.start()
    time.sleep(0.3)  # It has to arrive before the session is replaced.
    assert acquired(again.fetch(0)) == []
    with Wire(running.kafka) as producer:
        producer.produce(sharer.topic, batch(b"a"))
    waiting.join()
    assert [part.acquired_records for part in parts(found[0]).values() if part.acquired_records] == []
    assert acquired(again.fetch(wait_ms=5_000)) == [(0, 0, 1)]
