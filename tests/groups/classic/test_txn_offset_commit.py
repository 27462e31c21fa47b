"""Pending offsets in a classic group: members, ends of transactions, deletion and expiry."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.groups import GroupContext, Ticket

from headrace.groups.classic.states import GroupState
from headrace.groups.effects import CommitResult
from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, TransactionLost, TxnOffsetCommit
from headrace.groups.model import GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.groups.turn import GROUP_BYTES, Room

FLIGHTS, MORE, WEATHER = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("weather", 0)
DAY_MS = 24 * 3_600_000
FIVE = {FLIGHTS: OffsetAndMetadata(offset=5, leader_epoch=3, metadata="note")}


def committed(ctx: GroupContext) -> dict[TopicPartition, int]:
    """What storage has, which is what memory has."""
    stored = {place: each.offset for place, each in ctx.stored.positions.items()}
    assert stored == {place: each.offset for place, each in ctx.group.positions().items()}
    return stored


def pending(ctx: GroupContext) -> set[TopicPartition]:
    return {key.partition for key in ctx.stored.pending}


# the end of a transaction


def test_offsets_are_pending_until_the_commit(ctx: GroupContext) -> None:
    assert ctx.txn_commit(FIVE).result.partitions == {FLIGHTS: None}
    assert ctx.persisted
    assert (committed(ctx), pending(ctx)) == ({}, {FLIGHTS})

    assert ctx.end_offsets(commit=True).error is None
    assert (committed(ctx), pending(ctx)) == ({FLIGHTS: 5}, set())
    position = ctx.whole.position(FLIGHTS)
    assert position == msgspec.structs.replace(FIVE[FLIGHTS], committed_ms=ctx.now_ms)


def test_an_abort_drops_them_and_keeps_the_committed_offset(ctx: GroupContext) -> None:
    ctx.commit("", -1, offset=2)
    ctx.txn_commit(FIVE)
    assert ctx.end_offsets(commit=False).error is None
    assert (committed(ctx), pending(ctx)) == ({FLIGHTS: 2}, set())


def test_a_repeated_end_changes_nothing(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    ctx.end_offsets(commit=True)
    ctx.commit("", -1, offset=9)
    assert ctx.end_offsets(commit=True).error is None
    assert not ctx.persisted
    assert committed(ctx) == {FLIGHTS: 9}


def test_an_end_of_a_group_without_offsets_is_no_error(ctx: GroupContext) -> None:
    assert ctx.end_offsets(commit=True).error is None
    assert ctx.storage.nothing


def test_a_delayed_end_of_an_earlier_transaction_does_not_apply(ctx: GroupContext) -> None:
    """Epochs repeat before version 2 of transactions (KAFKA-19999)."""
    ctx.txn_commit(FIVE, number=2)
    assert ctx.end_offsets(commit=True, number=1).error is None
    assert (committed(ctx), pending(ctx)) == ({}, {FLIGHTS})
    ctx.end_offsets(commit=True, number=2)
    assert committed(ctx) == {FLIGHTS: 5}


def test_an_end_of_an_older_epoch_is_rejected(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE, epoch=4)
    assert ctx.end_offsets(commit=True, epoch=3).error is GroupError.INVALID_PRODUCER_EPOCH
    assert pending(ctx) == {FLIGHTS}
    # An end by the coordinator has a higher epoch.
    assert ctx.end_offsets(commit=True, epoch=5).error is None
    assert committed(ctx) == {FLIGHTS: 5}


def test_only_the_offsets_of_its_producer_end(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE, producer_id=1)
    ctx.txn_commit({FLIGHTS: OffsetAndMetadata(offset=6), WEATHER: OffsetAndMetadata(offset=7)}, producer_id=2)
    ctx.end_offsets(commit=True, producer_id=2)
    assert (committed(ctx), pending(ctx)) == ({FLIGHTS: 6, WEATHER: 7}, {FLIGHTS})


def test_offsets_of_a_forgotten_transaction_never_become_committed(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE, number=1)
    ctx.txn_commit({WEATHER: OffsetAndMetadata(offset=1)}, number=2)
    assert pending(ctx) == {WEATHER}
    ctx.txn_commit(FIVE, producer_id=8, number=1)
    ctx.end_offsets(commit=True, producer_id=8, number=2)
    assert committed(ctx) == {}
    assert pending(ctx) == {WEATHER}


def test_a_later_commit_of_the_same_partition_remains(ctx: GroupContext) -> None:
    ctx.txn_commit({**FIVE, WEATHER: OffsetAndMetadata(offset=1)})
    ctx.commit("", -1, offset=3)
    assert pending(ctx) == {FLIGHTS, WEATHER}
    ctx.restart()
    ctx.end_offsets(commit=True)
    assert (committed(ctx), pending(ctx)) == ({FLIGHTS: 3, WEATHER: 1}, set())


def test_offsets_of_the_transaction_after_that_commit_apply(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    ctx.commit("", -1, offset=3)
    ctx.txn_commit({FLIGHTS: OffsetAndMetadata(offset=6)})
    ctx.end_offsets(commit=True)
    assert committed(ctx) == {FLIGHTS: 6}


def test_the_generation_is_not_checked_at_the_end(ctx: GroupContext) -> None:
    (member,) = ctx.stable(1)
    ctx.txn_commit(FIVE, member_id=member, generation=1)
    ctx.stable(2)
    assert ctx.group.generation > 1
    assert ctx.end_offsets(commit=True).error is None
    assert committed(ctx) == {FLIGHTS: 5}


def test_a_restart_keeps_pending_offsets(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    ctx.restart()
    assert pending(ctx) == {FLIGHTS}
    ctx.end_offsets(commit=True)
    assert committed(ctx) == {FLIGHTS: 5}


# who may store


@pytest.mark.parametrize(
    ("member", "generation", "instance", "error"),
    [
        (None, 1, None, None),
        ("", -1, None, None),
        (None, 2, None, GroupError.ILLEGAL_GENERATION),
        (None, -1, None, GroupError.ILLEGAL_GENERATION),
        ("stranger", 1, None, GroupError.UNKNOWN_MEMBER_ID),
        ("", 1, None, GroupError.UNKNOWN_MEMBER_ID),
        ("", -1, "stranger", GroupError.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_are_checked_as_in_kafka(
    ctx: GroupContext, member: str | None, generation: int, instance: str | None, error: GroupError | None
) -> None:
    (known,) = ctx.stable(1)
    told = ctx.txn_commit(FIVE, member_id=known if member is None else member, generation=generation, instance=instance)
    assert told.error is error
    assert told.result.partitions == {FLIGHTS: error}
    assert pending(ctx) == ({FLIGHTS} if error is None else set())


def test_a_replaced_static_member_is_fenced(ctx: GroupContext) -> None:
    (first,) = ctx.form(ctx.join(instance="a", version=3))
    ctx.join(instance="a")
    told = ctx.txn_commit(FIVE, member_id=first, generation=1, instance="a")
    assert told.error is GroupError.FENCED_INSTANCE_ID


def test_a_member_that_waits_for_its_assignment_may_store(ctx: GroupContext) -> None:
    (member,) = ctx.stable(1)
    ctx.join(member)
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE
    told = ctx.txn_commit(FIVE, member_id=member, generation=ctx.group.generation)
    assert told.error is None


def test_a_generation_needs_a_group(ctx: GroupContext) -> None:
    assert ctx.txn_commit(FIVE, member_id="m", generation=1).error is GroupError.ILLEGAL_GENERATION
    assert ctx.storage.nothing


@pytest.mark.parametrize(("epoch", "number"), [(3, 5), (4, 4)])
def test_an_older_producer_cannot_store(ctx: GroupContext, epoch: int, number: int) -> None:
    ctx.txn_commit(FIVE, epoch=4, number=5)
    told = ctx.txn_commit({WEATHER: OffsetAndMetadata(offset=1)}, epoch=epoch, number=number)
    assert told.error is GroupError.INVALID_PRODUCER_EPOCH
    assert pending(ctx) == {FLIGHTS}


@pytest.mark.parametrize("how", ["end", "restart"])
def test_a_verification_from_before_an_end_is_not_enough(ctx: GroupContext, how: str) -> None:
    ctx.commit("", -1, topic="weather")
    guard = ctx.whole.guard(7)
    ticket: Ticket[CommitResult] = ctx.txn_commit(FIVE)
    assert ticket.error is None
    ctx.end_offsets(commit=False)
    late = ticket.request
    assert isinstance(late, TxnOffsetCommit)
    if how == "restart":
        ctx.restart()
    told = ctx.repeat(msgspec.structs.replace(late, guard=guard))
    assert told.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert pending(ctx) == set()


# limits


def test_metadata_and_the_number_of_offsets_are_limited() -> None:
    ctx = GroupContext(GroupSettings(offset_metadata_max=3, max_pending_offsets=1))
    told = ctx.txn_commit(
        {
            WEATHER: OffsetAndMetadata(offset=1, metadata="four"),
            FLIGHTS: OffsetAndMetadata(offset=1),
            MORE: OffsetAndMetadata(offset=1),
        }
    )
    assert told.result.partitions == {
        WEATHER: GroupError.OFFSET_METADATA_TOO_LARGE,
        FLIGHTS: None,
        MORE: GroupError.POLICY_VIOLATION,
    }
    # Replacing one is always possible.
    assert ctx.txn_commit({FLIGHTS: OffsetAndMetadata(offset=2)}).result.partitions == {FLIGHTS: None}
    assert ctx.end_offsets(commit=True).error is None
    assert ctx.txn_commit({MORE: OffsetAndMetadata(offset=2)}, number=2).result.partitions == {MORE: None}


def test_the_memory_of_the_server_is_limited(ctx: GroupContext) -> None:
    guard = ctx.whole.guard(7)
    told = ctx.txn_commit(FIVE)
    request = told.request
    assert isinstance(request, TxnOffsetCommit)
    size = ctx.whole.offset_bytes
    assert size > GROUP_BYTES
    another = msgspec.structs.replace(request, token=object(), positions={WEATHER: FIVE[FLIGHTS]}, guard=guard)
    effects = ctx.whole.handle(another, ctx.now, room=Room(1 << 20, 100))
    assert [effect.result for effect in effects if hasattr(effect, "result")] == [
        CommitResult(partitions={WEATHER: GroupError.POLICY_VIOLATION})
    ]
    ctx.end_offsets(commit=False)
    assert ctx.whole.offset_bytes == 0


# deletion and expiry


def test_a_pending_offset_keeps_the_committed_one_and_its_group(ctx: GroupContext) -> None:
    ctx.commit("", -1, offset=1)
    ctx.commit("", -1, topic="weather", offset=1)
    ctx.txn_commit(FIVE)
    ctx.sleep(30 * DAY_MS)
    assert committed(ctx) == {FLIGHTS: 1}
    ctx.end_offsets(commit=False)
    ctx.sleep(DAY_MS)
    assert ctx.storage.nothing


def test_a_group_of_pending_offsets_only_does_not_expire_and_ends_with_an_abort(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    ctx.sleep(30 * DAY_MS)
    assert pending(ctx) == {FLIGHTS}
    assert ctx.end_offsets(commit=False).error is None
    assert ctx.group.state is GroupState.DEAD
    assert ctx.storage.nothing


def test_an_offset_committed_by_a_transaction_expires_as_any_other(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    ctx.sleep(DAY_MS)
    ctx.end_offsets(commit=True)
    ctx.sleep(7 * DAY_MS - 1)
    assert committed(ctx) == {FLIGHTS: 5}
    ctx.sleep(1)
    assert ctx.storage.nothing


def test_a_deleted_group_has_no_pending_offsets(ctx: GroupContext) -> None:
    ctx.txn_commit(FIVE)
    assert ctx.delete_group().error is None
    assert ctx.storage.nothing
    assert ctx.stored.pending == {}


def test_deleted_offsets_include_pending_ones(ctx: GroupContext) -> None:
    ctx.txn_commit({**FIVE, WEATHER: OffsetAndMetadata(offset=1)})
    assert ctx.delete_offsets(FLIGHTS).result.partitions == {FLIGHTS: None}
    ctx.end_offsets(commit=True)
    assert committed(ctx) == {WEATHER: 1}


def test_a_deleted_topic_takes_its_pending_offsets_only(ctx: GroupContext) -> None:
    ctx.txn_commit({**FIVE, WEATHER: OffsetAndMetadata(offset=1)})
    ctx.send(DropTopic("flights"))
    assert pending(ctx) == {WEATHER}
    ctx.end_offsets(commit=True)
    assert committed(ctx) == {WEATHER: 1}


def test_a_lost_transaction_is_dropped_alone(ctx: GroupContext) -> None:
    ctx.commit("", -1, offset=1)
    ctx.txn_commit(FIVE, producer_id=1)
    ctx.txn_commit({WEATHER: OffsetAndMetadata(offset=1)}, producer_id=2)
    ctx.send(TransactionLost(producer_id=1, number=2))
    ctx.send(TransactionLost(producer_id=3, number=1))
    assert pending(ctx) == {FLIGHTS, WEATHER}
    ctx.send(TransactionLost(producer_id=1, number=1))
    assert (committed(ctx), pending(ctx)) == ({FLIGHTS: 1}, {WEATHER})


# any sequence, against a model of one partition

steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 2), st.integers(0, 9)),
        st.tuples(st.just("commit"), st.just(0), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(1, 2), st.integers(0, 1)),
        st.tuples(st.just("late end"), st.integers(1, 2), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(steps)
def test_offsets_follow_the_outcome_of_their_transactions(steps: list[tuple[str, int, int]]) -> None:
    ctx = GroupContext()
    numbers, open_offsets = {1: 1, 2: 1}, dict[int, int | None]()
    expected: int | None = None
    for step, producer_id, value in steps:
        number = numbers.get(producer_id, 0)
        if ctx.group.state is GroupState.DEAD:
            ctx = GroupContext()
        match step:
            case "store":
                told = ctx.txn_commit(
                    {FLIGHTS: OffsetAndMetadata(offset=value)}, producer_id=producer_id, number=number
                )
                assert told.error is None
                open_offsets[producer_id] = value
            case "commit":
                assert ctx.commit("", -1, offset=value).error is None
                expected = value
                open_offsets = dict.fromkeys(open_offsets, None)
            case "end":
                assert ctx.end_offsets(commit=bool(value), producer_id=producer_id, number=number).error is None
                numbers[producer_id] += 1
                ended = open_offsets.pop(producer_id, None)
                expected = ended if value and ended is not None else expected
            case "late end":
                told_end = ctx.end_offsets(commit=bool(value), producer_id=producer_id, number=number - 1)
                assert told_end.error is None
            case _:
                ctx.restart()
        assert committed(ctx) == ({} if expected is None else {FLIGHTS: expected})
        assert {key.producer_id for key in ctx.stored.pending} == set(open_offsets)
