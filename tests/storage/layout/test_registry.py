from uuid import UUID

import msgspec
import pytest

from headrace.groups.instances.model import StartKind
from headrace.groups.model import (
    GroupHeader,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    StoredBalanced,
    StoredConsumer,
    StoredInstance,
    StoredMember,
    StoredOwner,
    StoredStart,
    TopicPartition,
)
from headrace.storage.layout import registry
from headrace.topics.model import Topic

TOPIC = Topic(name="t", id=UUID(int=5), streams=("a", "b"), config={"retention.ms": "-1"}, created_ms=7)
HEADER = GroupHeader(generation=0, protocol_type=None, protocol=None, leader=None, empty_since_ms=5)
POSITION = OffsetAndMetadata(offset=5, metadata="ü\n")
MEMBER = StoredMember(
    member_id="m",
    instance_id=None,
    client_id="c",
    client_host="h",
    session_timeout_ms=1,
    rebalance_timeout_ms=2,
    protocols=(("range", b"\xff\x00"),),
    assignment=b"\x80",
)
SECTION = StoredBalanced(
    topic="flights",
    created_ms=1_700_000_000_000,
    epoch=1_700_000_000_000,
    generation=3,
    incarnations=5,
    retention_ms=86_400_000,
    used_ms=1_700_000_000_001,
    instances=(
        StoredInstance(name="a", incarnation=4, timeout_ms=30_000, commit_on_get=True, joined=1),
        StoredInstance(name="ü/b", incarnation=5, timeout_ms=5_000, commit_on_get=False, joined=3, lost={1: 3}),
    ),
    owners=(StoredOwner("a", 1), StoredOwner("ü/b", 3), None),
    starts={
        0: StoredStart(7, StartKind.TRIM_HORIZON),
        2: StoredStart(9, StartKind.AT_TIME, 1_700_000_060_000),
    },
)


def test_values_come_back_as_they_went() -> None:
    assert registry.topic(registry.encode(TOPIC)) == TOPIC
    assert registry.header(registry.encode(HEADER)) == HEADER
    assert registry.position(registry.encode(POSITION)) == POSITION
    assert registry.member(registry.encode(MEMBER)) == MEMBER
    assert registry.section(registry.encode(SECTION)) == SECTION


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = registry.encode(POSITION)[:-1] + b',"later":[1]}'
    assert registry.position(later) == POSITION


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"offset":"x"}'])
def test_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        registry.position(text)


def test_a_partition_is_named_by_a_field() -> None:
    partition = TopicPartition("dots.and-dashes_", 12)
    assert registry.partition_field(partition) == "dots.and-dashes_:12"
    assert registry.partition(b"dots.and-dashes_:12") == partition
    with pytest.raises(ValueError, match="invalid literal"):
        registry.partition(b"nothing")


def test_a_pending_offset_is_named_by_its_producer_and_partition() -> None:
    key = PendingKey(1 << 62, TopicPartition("dots.and-dashes_", 12))
    assert registry.pending_field(key) == "4611686018427387904:dots.and-dashes_:12"
    assert registry.pending_key(b"4611686018427387904:dots.and-dashes_:12") == key
    for field in (b"t:0", b"-1:t:0", b":t:0", b"7", b"7:t:x"):
        with pytest.raises(ValueError, match=r"producer id|invalid literal"):
            registry.pending_key(field)


def test_a_pending_offset_comes_back_as_it_went() -> None:
    pending = PendingOffset(producer_epoch=0, transactional_id="tx", number=0, position=POSITION, overtaken=True)
    assert registry.pending(registry.encode(pending)) == pending


def test_a_member_of_a_newer_kind_comes_back_as_it_went() -> None:
    consumer = StoredConsumer(
        member_id="ü:1",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1,
        epoch=3,
        previous_epoch=2,
        state="STABLE",
    )
    assert registry.group_field((consumer.field.encode(), registry.encode(consumer))) == consumer


def test_a_field_of_a_later_version_is_passed_over() -> None:
    assert registry.group_field((b"later:x", b"anything")) is None
