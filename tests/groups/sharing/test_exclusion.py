"""A share group and groups of other kinds do not mix: the first one wins, and the others get their errors."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.harness.groups import subscription
from tests.harness.sharers import ShareContext

from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import (
    Commit,
    DeleteOffsets,
    EndOffsets,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Sync,
    TransactionLost,
    TxnOffsetCommit,
)
from headrace.groups.instances.events import CreateCursor, Delivered, InstanceRefused, TopicFacts
from headrace.groups.instances.model import StartKind
from headrace.groups.model import OffsetAndMetadata, StoredStart, TopicPartition

HERE = TopicPartition("flights", 0)


def join(token: int) -> Join:
    return Join(
        token=token,
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", subscription("flights")),),
        new_member_id="m",
        member_id_required=False,
        skip_assignment_supported=True,
    )


def commit(token: int) -> Commit:
    positions = {HERE: OffsetAndMetadata(offset=1)}
    return Commit(token=token, generation=-1, member_id="", instance_id=None, positions=positions)


def cursor(token: int) -> CreateCursor:
    return CreateCursor(
        token=token,
        topic=TopicFacts("flights", 1, -1),
        instance="i",
        timeout_ms=10_000,
        commit_on_get=True,
        starts=(StoredStart(0, StartKind.TRIM_HORIZON),),
    )


def consumer(token: int) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(token=token, member_id="m", member_epoch=0, rebalance_timeout_ms=1, topics=("flights",))


def pending(token: int) -> TxnOffsetCommit:
    return TxnOffsetCommit(
        token=token,
        transactional_id="tx",
        producer_id=1,
        producer_epoch=0,
        generation=-1,
        member_id="",
        instance_id=None,
        positions={HERE: OffsetAndMetadata(offset=1)},
    )


@pytest.fixture
def ctx() -> ShareContext:
    made = ShareContext()
    made.topic("flights", 2)
    return made


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (join, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        (
            lambda token: Sync(
                token=token,
                generation=1,
                member_id="m",
                instance_id=None,
                protocol_type=None,
                protocol=None,
                assignments={},
            ),
            GroupError.UNKNOWN_MEMBER_ID,
        ),
        (
            lambda token: Heartbeat(token=token, generation=1, member_id="m", instance_id=None),
            GroupError.UNKNOWN_MEMBER_ID,
        ),
        (lambda token: Leave(token=token, members=(Leaving(member_id="m"),)), None),
        (consumer, GroupError.GROUP_ID_NOT_FOUND),
        (commit, GroupError.GROUP_ID_NOT_FOUND),
        (pending, GroupError.GROUP_ID_NOT_FOUND),
        (lambda token: DeleteOffsets(token=token, partitions=(HERE,)), GroupError.GROUP_ID_NOT_FOUND),
        (
            lambda token: EndOffsets(token=token, producer_id=1, producer_epoch=0, commit=True, number=1),
            None,
        ),
    ],
)
def test_a_share_group_refuses_others(
    ctx: ShareContext, request_of: Callable[[int], Any], error: GroupError | None
) -> None:
    ctx.beat("a", 0, "flights")
    ctx.beat("a", -1)  # also while it is empty
    writes = ctx.writes
    assert ctx.ask(request_of(ctx.token)).error is error
    assert ctx.writes == writes


def test_a_leave_has_an_error_for_each_member(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    result = ctx.ask(Leave(token=ctx.token, members=(Leaving(member_id="a"), Leaving(member_id="m", instance_id="i"))))
    assert [(each.member_id, each.instance_id, each.error) for each in result.members] == [
        ("a", None, GroupError.UNKNOWN_MEMBER_ID),
        ("m", "i", GroupError.UNKNOWN_MEMBER_ID),
    ]


def test_instances_are_refused(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    result = ctx.ask(cursor(ctx.token))
    assert isinstance(result, InstanceRefused)
    assert result.kind is InstanceProblem.GROUP_IN_USE
    late = ctx.ask(Delivered("flights", 1, (), token=ctx.token))
    assert isinstance(late, InstanceRefused)
    assert late.kind is InstanceProblem.UNAVAILABLE


def test_notices_without_a_reply_are_passed_over(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    writes = ctx.writes
    ctx.post(TransactionLost(producer_id=1, number=1))
    ctx.post(Delivered("flights", 1, ()))
    assert ctx.writes == writes


@pytest.mark.parametrize("first", [join, commit, cursor])
def test_a_group_of_another_kind_does_not_become_a_share_group(ctx: ShareContext, first: Callable[[int], Any]) -> None:
    ctx.post(first(ctx.token))
    result = ctx.beat("a", 0, "flights")
    assert result.error is GroupError.GROUP_ID_NOT_FOUND
    assert result.message == "Group workers is not a share group."
    assert ctx.alter(flights=(0,)).error is GroupError.GROUP_ID_NOT_FOUND
