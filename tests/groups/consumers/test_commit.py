"""Commits and fetches of offsets. Expected responses are those of Apache Kafka 4.3.1."""

import msgspec
import pytest
from tests.harness.consumers import FLIGHTS, ConsumerContext

from headrace.groups.errors import GroupError
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition

STALE, UNKNOWN = GroupError.STALE_MEMBER_EPOCH, GroupError.UNKNOWN_MEMBER_ID
AT = OffsetAndMetadata(offset=5)


@pytest.fixture
def ctx(ctx: ConsumerContext) -> ConsumerContext:
    """A had all partitions at epoch 2, and has 0 and 1 at epoch 3. B has 2 and 3."""
    ctx.enter("A")
    ctx.enter("B")
    ctx.settle("A", "B")
    return ctx


def commit(ctx: ConsumerContext, member_id: str, epoch: int, partition: int = 0) -> GroupError | None:
    """The error of a commit of one partition of flights."""
    result = ctx.commit(member_id, epoch, partition=partition).result
    return result.partitions[TopicPartition("flights", partition)]


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "error"),
    [
        ("A", 3, 0, None),
        ("A", 3, 2, None),  # the present epoch: for any partition
        ("A", 2, 0, None),  # an older one: it has had 0 since epoch 2
        ("A", 2, 2, STALE),  # and has given up 2
        ("B", 2, 2, STALE),  # granted at epoch 3
        ("B", 3, 2, None),
        ("A", 4, 0, STALE),
        ("Z", 3, 0, UNKNOWN),
        ("", -1, 0, UNKNOWN),
    ],
)
def test_who_may_commit(
    ctx: ConsumerContext, member_id: str, epoch: int, partition: int, error: GroupError | None
) -> None:
    assert commit(ctx, member_id, epoch, partition) is error
    assert ctx.persisted is (error is None)


def test_a_member_commits_what_it_gives_up(ctx: ConsumerContext) -> None:
    ctx.settle("A", "B")
    ctx.enter("C")
    ctx.beat("A")
    ctx.beat("B")
    assert [commit(ctx, each, 3, partition) for each in "AB" for partition in ctx.has(each)] == [None] * 3


def test_partitions_are_checked_one_by_one(ctx: ConsumerContext) -> None:
    positions = {TopicPartition("flights", partition): AT for partition in (0, 2)}
    result = ctx.commit_all("A", positions, generation=2).result
    assert list(result.partitions.values()) == [None, STALE]
    assert set(ctx.stored.positions) == {TopicPartition("flights", 0)}


def test_versions_below_9_know_no_epoch(ctx: ConsumerContext) -> None:
    request = ctx.commit("A", 3).request
    assert isinstance(request, Commit)
    again = ctx.repeat(msgspec.structs.replace(request, knows_member_epochs=False))
    assert again.error is GroupError.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("member_id", "generation", "partition", "error"),
    [
        ("A", 3, 0, None),
        ("A", 2, 0, None),
        ("A", 2, 2, GroupError.ILLEGAL_GENERATION),
        ("A", 4, 0, GroupError.ILLEGAL_GENERATION),
        ("Z", 3, 0, UNKNOWN),
        ("", -1, 0, None),  # versions below 3
    ],
)
def test_who_may_commit_in_a_transaction(
    ctx: ConsumerContext, member_id: str, generation: int, partition: int, error: GroupError | None
) -> None:
    place = TopicPartition("flights", partition)
    result = ctx.txn_commit({place: AT}, member_id=member_id, generation=generation).result
    assert result.partitions[place] is error


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [("A", 3, None), ("A", 2, STALE), ("A", 4, STALE), ("Z", 3, UNKNOWN), (None, -1, None), (None, 3, UNKNOWN)],
)
def test_who_may_fetch(ctx: ConsumerContext, member_id: str | None, epoch: int, error: GroupError | None) -> None:
    assert ctx.part.check_fetch(member_id, epoch) is error


def test_an_empty_group_takes_commits_from_outside(ctx: ConsumerContext) -> None:
    for each in "AB":
        ctx.beat(each, epoch=-1)
    assert commit(ctx, "", -1) is None
    assert ctx.has("A") == [0, 1]
    assert ctx.enter("A").assignment == ((FLIGHTS, (0, 1, 2, 3)),)


def test_offsets_of_topics_in_use_are_not_deleted(ctx: ConsumerContext) -> None:
    places = [TopicPartition(topic, 0) for topic in ("flights", "trains")]
    ctx.commit_all("A", dict.fromkeys(places, AT), generation=3)
    result = ctx.delete_offsets(*places).result
    assert list(result.partitions.values()) == [GroupError.GROUP_SUBSCRIBED_TO_TOPIC, None]


def test_offsets_of_topics_in_use_do_not_expire() -> None:
    ctx = ConsumerContext()
    ctx.enter("A")
    places = [TopicPartition(topic, 0) for topic in ("flights", "trains")]
    ctx.commit_all("A", dict.fromkeys(places, AT), generation=2)
    for _ in range(3 * 60):
        ctx.sleep(30_000)
        ctx.beat("A")
    assert set(ctx.stored.positions) == {places[0]}


def test_an_unused_group_ends(ctx: ConsumerContext) -> None:
    commit(ctx, "A", 3)
    ctx.sleep(ctx.settings.offsets_retention_ms + 10 * 60_000 + 45_000)
    assert ctx.storage.nothing


def test_a_static_member_that_left_for_a_while_commits_and_fetches_nothing(ctx: ConsumerContext) -> None:
    """Its successor may have read on."""
    ctx.enter("S", instance="i")
    ctx.settle("A", "B", "S")
    epoch = ctx.epochs["S"]
    assert commit(ctx, "S", epoch) is None
    assert ctx.part.check_fetch("S", epoch) is None
    ctx.beat("S", epoch=-2, instance="i")
    assert commit(ctx, "S", epoch) is STALE
    assert ctx.part.check_fetch("S", epoch) is STALE
