"""Whose fetch it is: the one member with the client's id and host that owns the partition."""

from uuid import UUID

from tests.harness.member import assignment

from headrace.broker.native.owners import Owner, Owners, consumer_of
from headrace.groups.model import (
    DropField,
    DropGroup,
    DropMember,
    SaveField,
    SaveMember,
    StoredConsumer,
    StoredGrants,
    StoredGroup,
    StoredMember,
    TopicPartition,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HERE = ("client", "/127.0.0.1")


def member(name: str, *partitions: int, client: tuple[str, str] = HERE) -> StoredMember:
    return StoredMember(
        member_id=name,
        instance_id=None,
        client_id=client[0],
        client_host=client[1],
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        protocols=(),
        assignment=assignment({"t": partitions}),
    )


def test_two_members_of_one_client_are_distinguished_by_their_partitions() -> None:
    owners = Owners()
    owners.apply("g", [SaveMember(member("a", 0)), SaveMember(member("b", 1))])
    assert owners.find(HERE, T0) == Owner("g", "a")
    assert owners.find(HERE, T1) == Owner("g", "b")
    assert owners.find(("client", "/127.0.0.2"), T0) is None
    assert owners.find(("other", "/127.0.0.1"), T0) is None
    assert owners.find(HERE, TopicPartition("u", 0)) is None


def test_a_new_assignment_replaces_the_old_one() -> None:
    owners = Owners()
    owners.apply("g", [SaveMember(member("a", 0)), SaveMember(member("b", 1))])
    owners.apply("g", [SaveMember(member("a", 1)), SaveMember(member("b", 0))])
    assert owners.find(HERE, T0) == Owner("g", "b")
    assert owners.partitions(Owner("g", "a")) == {T1}


def test_a_partition_in_two_groups_of_a_client_has_no_owner() -> None:
    owners = Owners()
    owners.apply("g", [SaveMember(member("a", 0))])
    owners.apply("h", [SaveMember(member("b", 0, 1))])
    assert owners.find(HERE, T0) is None
    assert owners.find(HERE, T1) == Owner("h", "b")
    owners.apply("h", [DropMember("b")])
    assert owners.find(HERE, T0) == Owner("g", "a")


def test_who_is_in_a_group() -> None:
    owners = Owners()
    owners.load(StoredGroup(name="g", header=None, members=(member("a", 0), member("b", 1)), positions={}))
    owners.apply("g", [DropMember("a")])
    assert owners.has_members("g")
    owners.apply("g", [DropMember("b"), DropMember("never there")])
    assert not owners.has_members("g")
    owners.apply("g", [SaveMember(member("a", 0))])
    owners.apply("g", [DropGroup()])
    assert not owners.has_members("g")
    assert owners.find(HERE, T0) is None


def consumer(name: str, *partitions: int) -> StoredConsumer:
    return StoredConsumer(
        member_id=name,
        client_id=HERE[0],
        client_host=HERE[1],
        rebalance_timeout_ms=1,
        epoch=3,
        previous_epoch=2,
        state="STABLE",
        held=(StoredGrants("t", UUID(int=1), {3: partitions}),) if partitions else (),
    )


def test_members_of_consumer_groups_own_what_they_hold() -> None:
    owners = Owners()
    owners.load(StoredGroup(name="g", header=None, members=(), positions={}, fields=(consumer("a", 0, 1),)))
    assert owners.find(HERE, T1) == Owner("g", "a")
    owners.apply("g", [SaveField(consumer("a", 0)), SaveField(consumer("b", 1))])
    assert [owners.find(HERE, each) for each in (T0, T1)] == [Owner("g", "a"), Owner("g", "b")]
    owners.apply("g", [DropField("consumer:a"), DropField("later:b")])
    assert (owners.find(HERE, T0), owners.find(HERE, T1)) == (None, Owner("g", "b"))
    assert owners.has_members("g")
    assert consumer_of("consumer:x:y") == "x:y"
    assert consumer_of("sharer:x") is None
