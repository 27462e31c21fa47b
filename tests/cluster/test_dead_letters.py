"""Dead letters on several brokers: the leader of the dead letter topic may be another one than that of the records."""

from collections.abc import Iterator

import pytest
from tests.harness.brokers import Brokers, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, opened
from tests.kafka.sharer import REJECT, Sharer, acquired, codes, configure

from headrace.groups.sharing.dead_letter import origin_of

PARTITIONS = 8


@pytest.fixture(scope="module")
def two() -> Iterator[Brokers]:
    with brokers(2) as running:
        yield running


def test_a_dead_letter_goes_to_the_leader_of_its_partition(two: Brokers) -> None:
    two.asked(1, lambda wire: wire.create("dlq", 1, errors_deadletterqueue_group_enable="true"))
    dead = two.led("dlq", 1)[0]
    # The IDs of topics, which are random, select the leaders.
    jobs = next(name for _ in range(99) if {*two.led(name := two.new_topic(PARTITIONS), PARTITIONS).values()} != {dead})
    records = two.led(jobs, PARTITIONS)
    index = next(index for index in range(PARTITIONS) if records[index] != dead)
    two.asked(
        1,
        lambda wire: configure(
            wire, "workers", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="dlq"
        ),
    )
    coordinator = two.coordinator(1, "workers")
    with Wire(two.addresses[coordinator]) as joining, Wire(two.addresses[records[index]]) as leader:
        leader.produce(jobs, batch(b"bad"), partition=index)
        member = Sharer(joining, "workers", jobs)
        wait_for(lambda: member.beat().error_code == 0, "the member")
        sharer = Sharer(leader, "workers", jobs, member=member.member)
        wait_for(lambda: bool(acquired(sharer.fetch(index, wait_ms=100), index)), "the record")
        assert codes(sharer.acknowledge({index: [(0, 0, [REJECT])]})) == {index: 0}
    with Wire(two.addresses[dead]) as other:
        wait_for(lambda: bool(other.fetch("dlq", 0).records), "the dead letter")
        [found] = opened(other.fetch("dlq", 0).records)
    assert bytes(found.value or b"") == b"bad"
    origin = origin_of(found.headers)
    assert origin is not None
    assert origin[:5] == (jobs, index, 0, "workers", 1)
