from headrace.groups.model import (
    DropBalanced,
    DropField,
    DropGroup,
    DropMember,
    DropOffsets,
    DropPending,
    GroupHeader,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveBalanced,
    SaveField,
    SaveHeader,
    SaveMember,
    SaveOffsets,
    SavePending,
    StoredBalanced,
    StoredConsumer,
    StoredMember,
    TopicPartition,
)
from headrace.groups.snapshot import Snapshot

HEADER = GroupHeader(generation=1, protocol_type="consumer", protocol="range", leader="m", empty_since_ms=None)
MEMBER = StoredMember(
    member_id="m",
    instance_id=None,
    client_id="",
    client_host="",
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    protocols=(("range", b"meta"),),
    assignment=b"mine",
)
SECTION = StoredBalanced(
    topic="t",
    created_ms=1,
    epoch=1,
    generation=2,
    incarnations=3,
    retention_ms=4,
    used_ms=5,
    instances=(),
    owners=(None,),
    starts={},
)
CONSUMER = StoredConsumer(
    member_id="m",
    client_id="c",
    client_host="h",
    rebalance_timeout_ms=1,
    epoch=3,
    previous_epoch=2,
    state="STABLE",
)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
KEY = PendingKey(1, A)
PENDING = PendingOffset(producer_epoch=0, transactional_id="tx", number=1, position=OffsetAndMetadata(offset=3))
ALL = (
    SaveHeader(HEADER),
    SaveMember(MEMBER),
    SaveOffsets({A: OffsetAndMetadata(offset=1), B: OffsetAndMetadata(offset=2)}),
    SaveBalanced(SECTION),
)


def test_changes_add_up_to_the_stored_group() -> None:
    snapshot = Snapshot.empty("g")
    assert snapshot.nothing
    snapshot.apply(ALL)
    snapshot.apply((DropOffsets((A,)),))

    stored = snapshot.stored
    assert (stored.name, stored.header, stored.members) == ("g", HEADER, (MEMBER,))
    assert stored.positions == {B: OffsetAndMetadata(offset=2)}
    assert stored.balanced == (SECTION,)
    assert snapshot.sections == {"t": SECTION}


def test_dropping_takes_away_what_is_there_and_forgives_what_is_not() -> None:
    snapshot = Snapshot.empty("g")
    snapshot.apply(ALL)
    snapshot.apply((DropMember("m"), DropMember("m"), DropOffsets((A, A))))
    assert snapshot.stored.members == ()
    snapshot.apply((DropBalanced("t"), DropBalanced("t")))
    assert snapshot.stored.balanced == ()

    snapshot.apply((DropGroup(),))
    assert snapshot.nothing


def test_a_section_alone_is_something() -> None:
    snapshot = Snapshot.empty("g")
    snapshot.apply((SaveBalanced(SECTION),))
    assert not snapshot.nothing


def test_a_rewrite_brings_any_storage_to_the_same_state() -> None:
    snapshot = Snapshot.empty("g")
    snapshot.apply(ALL)
    other = Snapshot.empty("g")
    other.apply((SaveOffsets({TopicPartition("old", 0): OffsetAndMetadata(offset=9)}),))
    other.apply(snapshot.rewrite())

    assert other.stored == snapshot.stored


def test_pending_offsets_are_part_of_a_group() -> None:
    snapshot = Snapshot.empty("g")
    snapshot.apply((SavePending({KEY: PENDING}),))
    assert not snapshot.nothing
    assert snapshot.stored.pending == {KEY: PENDING}
    again = Snapshot(snapshot.stored)
    assert again.rewrite() == (DropGroup(), SavePending({KEY: PENDING}))
    snapshot.apply((DropPending((KEY, KEY)),))
    assert snapshot.nothing
    again.apply((DropGroup(),))
    assert again.nothing


def test_members_of_newer_kinds_are_part_of_a_group() -> None:
    snapshot = Snapshot.empty("g")
    snapshot.apply((SaveField(CONSUMER),))
    assert not snapshot.nothing
    assert snapshot.stored.fields == (CONSUMER,)
    again = Snapshot(snapshot.stored)
    assert again.rewrite() == (DropGroup(), SaveField(CONSUMER))
    snapshot.apply((DropField(CONSUMER.field), DropField(CONSUMER.field)))
    assert snapshot.nothing
    again.apply((DropGroup(),))
    assert again.nothing
