"""A group has members of one kind at a time."""

import msgspec
import pytest
from tests.harness.consumers import FLIGHTS, ConsumerContext

from headrace.groups.errors import GroupError
from headrace.groups.group import Group
from headrace.groups.model import GroupKind, OffsetAndMetadata, StoredConsumer, StoredGroup, TopicPartition

PLACE = TopicPartition("flights", 0)


@pytest.fixture
def ctx() -> ConsumerContext:
    return ConsumerContext()


def test_a_classic_group_with_members_is_no_consumer_group(ctx: ConsumerContext) -> None:
    ctx.stable(1)
    assert ctx.refused(ctx.enter("A")) is GroupError.GROUP_ID_NOT_FOUND
    assert ctx.whole.kind is GroupKind.CLASSIC


def test_a_consumer_group_with_members_is_no_classic_group(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    refused = GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert ctx.join(version=3, protocol_type="connect", protocols=(("default", b""),)).error is refused
    assert ctx.heartbeat("A", 2).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.sync("A", 2).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.leave("Z").result.members[0].error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.delete_group().error is GroupError.NON_EMPTY_GROUP


def test_an_empty_group_changes_its_kind_and_keeps_its_offsets_and_epochs(ctx: ConsumerContext) -> None:
    (member,) = ctx.stable(1)
    ctx.commit(member)
    ctx.leave(member)
    assert ctx.group.generation == 2
    joined = ctx.enter("A")
    assert (joined.member_epoch, joined.assignment) == (4, ((FLIGHTS, (0, 1, 2, 3)),))
    assert ctx.whole.kind is GroupKind.CONSUMER
    ctx.beat("A", epoch=-1)
    assert ctx.whole.state_name == "Empty"
    (member,) = ctx.stable(1)
    assert (ctx.whole.kind, ctx.group.generation) == (GroupKind.CLASSIC, 6)
    assert ctx.stored.header is not None
    assert (ctx.stored.header.kind, ctx.stored.fields) == (GroupKind.CLASSIC, ())
    assert ctx.stored.positions[PLACE].offset == 1


def test_a_rejected_request_makes_no_group(ctx: ConsumerContext) -> None:
    ctx.beat("A", epoch=3)
    ctx.beat("A", epoch=0)
    assert (ctx.whole.kind, ctx.storage.nothing) == (GroupKind.CLASSIC, True)
    ctx.enter("A")
    ctx.beat("A", epoch=-1)
    assert ctx.refused(ctx.beat("A", epoch=3)) is GroupError.UNKNOWN_MEMBER_ID


def test_an_empty_consumer_group_is_deleted(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.commit("A", 2)
    ctx.beat("A", epoch=-1)
    assert ctx.delete_group().error is None
    assert ctx.storage.nothing
    assert ctx.refused(ctx.enter("A")) is GroupError.COORDINATOR_NOT_AVAILABLE


def test_members_that_an_older_server_left_behind_are_removed(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    assert ctx.stored.header is not None
    header = msgspec.structs.replace(ctx.stored.header, kind=GroupKind.CLASSIC)
    stored = StoredGroup(name="group", header=header, members=(), positions={}, fields=ctx.stored.fields)
    ctx.whole, _ = Group.restore(stored, ctx.settings, ctx.now)
    ctx.group, ctx.timers = ctx.whole.classic, dict(ctx.whole.deadlines)
    assert ctx.whole.kind is GroupKind.CLASSIC
    ctx.enter("B")
    assert [each.member_id for each in ctx.stored.fields if isinstance(each, StoredConsumer)] == ["B"]
    assert ctx.has("B") == [0, 1, 2, 3]


def test_offsets_remain_while_consumers_come_and_go(ctx: ConsumerContext) -> None:
    ctx.commit_all("", {PLACE: OffsetAndMetadata(offset=7)}, generation=-1)
    ctx.enter("A")
    ctx.beat("A", epoch=-1)
    position = ctx.whole.position(PLACE)
    assert position is not None
    assert position.offset == 7
