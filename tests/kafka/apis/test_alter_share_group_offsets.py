"""AlterShareGroupOffsets on the wire (reference: Apache Kafka 4.3.1)."""

import pytest
import redis
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Sharer, acquired, alter, configure, described

from headrace.kafka.errors import Code
from headrace.testing import Server


@pytest.fixture
def sharer(wire: Wire, topic: str) -> Sharer:
    configure(wire, topic, share_auto_offset_reset="earliest")
    return Sharer(wire, topic, wire.create(topic, 2))


def test_only_without_members(wire: Wire, topic: str, sharer: Sharer) -> None:
    wire.produce(topic, batch(*[b"x"] * 10))
    created = alter(wire, topic, topic, p0=8, p9=1)
    (parts,) = (each.partitions for each in created.responses)
    assert [each.error_code for each in parts] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert described(wire, topic)[topic, 0] == (8, 2)
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(8, 9, 1)]
    refused = alter(wire, topic, topic, p0=1)
    assert (refused.error_code, refused.responses) == (Code.NON_EMPTY_GROUP, [])
    sharer.beat(epoch=-1)
    assert alter(wire, topic, topic, p0=1).error_code == 0
    unknown = alter(wire, topic, "nowhere", p0=1)
    assert unknown.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_that_serves_the_group_begins_again(wire: Wire, topic: str, sharer: Sharer) -> None:
    """It has the old state in memory, which its next write reveals (trap 26)."""
    wire.produce(topic, batch(*[b"x"] * 4))
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(0, 3, 1)]
    sharer.beat(epoch=-1)  # the session remains
    alter(wire, topic, topic, p0=2)
    sharer.acknowledge({0: [(0, 3, [ACCEPT])]})
    assert described(wire, topic)[topic, 0] == (2, 2)
    assert acquired(sharer.fetch(wait_ms=5_000)) == [(2, 3, 1)]
    assert described(wire, topic)[topic, 0] == (2, 2)


def test_an_offset_that_storage_refused_applies_to_the_next_member(wire: Wire, topic: str, running: Server) -> None:
    """The member would begin at the end of the log otherwise, and the group skip the records before it."""
    sharer = Sharer(wire, topic, wire.create(topic))
    wire.produce(topic, batch(*[b"x"] * 10))
    with redis.Redis.from_url(running.storage) as link:
        key = next(link.scan_iter(f"*{topic}*:state", count=1_000)).removesuffix(b":state") + b":shares"
        link.set(key, "not a hash")
        assert alter(wire, topic, topic, p0=4).error_code != 0
        link.delete(key)
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(4, 9, 1)]
