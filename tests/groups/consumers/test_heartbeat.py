"""Heartbeats of members. Expected responses are those of Apache Kafka 4.3.1, unless a comment gives the reason."""

from typing import Any
from uuid import UUID

import pytest
from tests.harness.consumers import FLIGHTS, SAME, TRAINS, ConsumerContext

from headrace.groups import timers
from headrace.groups.configs import NewerGroupSettings
from headrace.groups.errors import GroupError
from headrace.groups.model import StoredConsumer, TopicFacts
from headrace.groups.turn import Room

JOIN: dict[str, Any] = {"epoch": 0, "owned": (), "topics": ("flights",), "timeout_ms": 5_000}

GREATER = (
    "The consumer group member has a greater member epoch (3) than the one known by the group coordinator (2). "
    "The member must abandon all its partitions and rejoin."
)
SMALLER = GREATER.replace("greater member epoch (3)", "smaller member epoch (1)")


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({**JOIN, "timeout_ms": -1}, "INVALID_REQUEST", "RebalanceTimeoutMs must be provided in first request."),
        ({**JOIN, "owned": None}, "INVALID_REQUEST", "TopicPartitions must be empty when (re-)joining."),
        ({**JOIN, "owned": (0,)}, "INVALID_REQUEST", "TopicPartitions must be empty when (re-)joining."),
        (
            {**JOIN, "topics": None},
            "INVALID_REQUEST",
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({**JOIN, "member_id": ""}, "INVALID_REQUEST", "MemberId can't be empty."),
        ({**JOIN, "instance": ""}, "INVALID_REQUEST", "InstanceId can't be empty."),
        ({**JOIN, "rack": ""}, "INVALID_REQUEST", "RackId can't be empty."),
        ({**JOIN, "epoch": -3}, "INVALID_REQUEST", "MemberEpoch is invalid."),
        ({"epoch": -2}, "INVALID_REQUEST", "InstanceId can't be null."),
        (
            {**JOIN, "assignor": "sticky"},
            "UNSUPPORTED_ASSIGNOR",
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
        ({"epoch": 3}, "GROUP_ID_NOT_FOUND", "Group group not found."),
        ({"epoch": -1}, "GROUP_ID_NOT_FOUND", "Group group not found."),
    ],
)
def test_a_group_that_does_not_exist(ctx: ConsumerContext, said: dict[str, Any], error: str, message: str) -> None:
    result = ctx.beat(**{"member_id": "A", **said})
    assert (result.error, result.message, result.assignment) == (GroupError[error], message, None)
    assert not ctx.persisted
    assert ctx.whole.part is None


def test_a_member_joins_and_stays(ctx: ConsumerContext) -> None:
    joined = ctx.enter("A")
    # As in Kafka: 1 is the epoch of the group without members.
    assert (joined.member_epoch, joined.assignment, joined.waits) == (2, ((FLIGHTS, (0, 1, 2, 3)),), False)
    assert ctx.persisted

    again = ctx.beat("A")
    assert (again.error, again.member_epoch, again.assignment, again.waits) == (None, 2, None, False)
    assert not ctx.persisted


def test_a_topic_that_does_not_exist_is_no_error(ctx: ConsumerContext) -> None:
    assert ctx.enter("A", topics=("nowhere",)).assignment == ()
    ctx.change_topics(nowhere=TopicFacts(UUID(int=9), 1))
    assert ctx.beat("A").assignment == ((UUID(int=9), (0,)),)


class TestOfAMember:
    """Requests while A has all partitions, at epoch 2."""

    @pytest.fixture
    def ctx(self, ctx: ConsumerContext) -> ConsumerContext:
        ctx.enter("A")
        return ctx

    @pytest.mark.parametrize(
        ("said", "error", "message"),
        [
            (
                {"epoch": 3},
                "FENCED_MEMBER_EPOCH",
                GREATER,
            ),
            (
                {"epoch": 1},
                "FENCED_MEMBER_EPOCH",
                SMALLER,
            ),
            ({"epoch": 2, "member_id": "Z"}, "UNKNOWN_MEMBER_ID", "Member Z is not a member of group group."),
            ({"epoch": -1, "member_id": "Z"}, "UNKNOWN_MEMBER_ID", "Member Z is not a member of group group."),
            ({"epoch": 2, "instance": "i"}, "UNKNOWN_MEMBER_ID", "Instance id i is unknown."),
            ({"epoch": -2, "instance": "i"}, "UNKNOWN_MEMBER_ID", "Instance id i is unknown."),
        ],
    )
    def test_refused(self, ctx: ConsumerContext, said: dict[str, Any], error: str, message: str) -> None:
        before = ctx.timers.copy()
        result = ctx.beat(**{"member_id": "A", **said})
        assert (ctx.refused(result), result.message) == (GroupError[error], message)
        assert ctx.timers == before

    def test_a_full_request_gets_its_assignment(self, ctx: ConsumerContext) -> None:
        result = ctx.beat("A", owned=SAME, topics=("flights",), timeout_ms=5_000)
        assert result.assignment == ((FLIGHTS, (0, 1, 2, 3)),)
        assert not ctx.persisted

    def test_joining_again_keeps_everything(self, ctx: ConsumerContext) -> None:
        assert ctx.enter("A").assignment == ((FLIGHTS, (0, 1, 2, 3)),)
        assert (ctx.epochs["A"], ctx.persisted) == (2, False)

    def test_unsubscribing(self, ctx: ConsumerContext) -> None:
        ctx.beat("A", owned=SAME)
        result = ctx.beat("A", topics=())
        # Kafka computes the target later.
        assert (result.member_epoch, result.assignment, result.waits) == (2, (), True)
        assert ctx.beat("A", owned=()).member_epoch == 3

    def test_leaving(self, ctx: ConsumerContext) -> None:
        result = ctx.beat("A", epoch=-1)
        assert (result.error, result.member_epoch, result.assignment) == (None, -1, None)
        assert ctx.refused(ctx.beat("A", epoch=-1)) is GroupError.UNKNOWN_MEMBER_ID
        assert ctx.described.state.value == "Empty"


class TestOfTwoMembers:
    """B joins while A has all partitions at epoch 2, as traced on Kafka."""

    @pytest.fixture
    def ctx(self, ctx: ConsumerContext) -> ConsumerContext:
        ctx.enter("A")
        ctx.beat("A", owned=SAME)
        result = ctx.enter("B")
        assert (result.member_epoch, result.assignment, result.waits) == (3, (), True)
        return ctx

    def test_partitions_move(self, ctx: ConsumerContext) -> None:
        asked = ctx.beat("A")
        assert (asked.member_epoch, asked.assignment, asked.waits) == (2, ((FLIGHTS, (0, 1)),), True)
        for owned in (None, (0, 1, 2, 3), (2,)):
            waiting = ctx.beat("A", owned=owned)
            assert (waiting.member_epoch, waiting.assignment, waiting.waits) == (2, None, True)
        assert ctx.beat("B").waits

        given_up = ctx.beat("A", owned=(0, 1))
        assert (given_up.member_epoch, given_up.assignment, given_up.waits) == (3, None, False)
        assert ctx.beat("B").assignment == ((FLIGHTS, (2, 3)),)
        assert ctx.described.state.value == "Stable"

    def test_a_member_that_already_gave_up_moves_at_once(self, ctx: ConsumerContext) -> None:
        result = ctx.beat("A", owned=(0, 1))
        assert (result.member_epoch, result.assignment) == (3, ((FLIGHTS, (0, 1)),))

    def test_the_previous_epoch_is_a_retry(self, ctx: ConsumerContext) -> None:
        ctx.beat("A")
        ctx.beat("A", owned=(0, 1))
        retried = ctx.beat("A", epoch=2, owned=(0, 1))
        assert (retried.error, retried.member_epoch, retried.assignment) == (None, 3, None)
        for owned in (None, (0, 1, 2)):
            assert ctx.refused(ctx.beat("A", epoch=2, owned=owned)) is GroupError.FENCED_MEMBER_EPOCH

    def test_who_does_not_give_up_is_removed(self, ctx: ConsumerContext) -> None:
        ctx.beat("A")
        assert ctx.remaining_ms(timers.revocation("A")) == 5_000
        ctx.sleep(4_999)
        ctx.beat("A")
        ctx.sleep(1)
        assert ctx.beat("B").assignment == ((FLIGHTS, (0, 1, 2, 3)),)
        assert ctx.refused(ctx.beat("A")) is GroupError.UNKNOWN_MEMBER_ID

    def test_who_gave_up_in_time_is_not(self, ctx: ConsumerContext) -> None:
        ctx.beat("A")
        ctx.beat("A", owned=(0, 1))
        assert ctx.remaining_ms(timers.revocation("A")) is None
        for _ in range(3):
            ctx.sleep(10_000)
            assert [ctx.beat(each).error for each in "AB"] == [None, None]

    def test_the_previous_epoch_is_no_acknowledgement(self, ctx: ConsumerContext) -> None:
        """Kafka takes it as one, and gives a partition to two members."""
        ctx.settle("A", "B")
        ctx.enter("D", topics=("trains",))
        ctx.beat("A")
        ctx.beat("B")
        ctx.enter("C")
        giver = "A" if len(ctx.described.members[0].target[0].partitions) == 1 else "B"
        (kept,) = next(each for each in ctx.described.members if each.member_id == giver).target[0].partitions
        # Late, from when it had not got the other one yet.
        late = ctx.beat(giver, epoch=ctx.epochs[giver] - 1, owned=(kept,))
        assert (late.error, late.assignment, late.waits) == (None, ((FLIGHTS, (kept,)),), True)
        assert ctx.beat("C").assignment is None
        ctx.beat(giver, owned=(kept,))
        assert len(ctx.beat("C").assignment or ()) == 1

    def test_an_older_connection_acknowledges_nothing(self, ctx: ConsumerContext) -> None:
        ctx.beat("A", connection=5)
        assert ctx.beat("A", owned=(0, 1), connection=4).member_epoch == 2
        assert not ctx.persisted
        assert ctx.beat("A", owned=(0, 1), connection=5).member_epoch == 3


class TestOfStaticMembers:
    @pytest.fixture
    def ctx(self, ctx: ConsumerContext) -> ConsumerContext:
        ctx.enter("A", instance="i")
        ctx.enter("B")
        ctx.settle("A", "B")
        return ctx

    def test_the_place_of_a_live_member_is_taken(self, ctx: ConsumerContext) -> None:
        assert ctx.refused(ctx.enter("C", instance="i")) is GroupError.UNRELEASED_INSTANCE_ID
        for epoch in (3, -1, -2):
            assert ctx.refused(ctx.beat("C", epoch=epoch, instance="i")) is GroupError.FENCED_INSTANCE_ID

    def test_another_takes_the_place_of_one_that_left_for_a_while(self, ctx: ConsumerContext) -> None:
        had, epoch = ctx.has("A"), ctx.epochs["A"]
        left = ctx.beat("A", epoch=-2, instance="i")
        assert (left.error, left.member_epoch) == (None, -2)
        assert ctx.beat("B").assignment is None
        assert ctx.refused(ctx.beat("A", epoch=epoch, instance="i")) is GroupError.FENCED_MEMBER_EPOCH

        result = ctx.enter("C", instance="i")
        assert (result.member_epoch, ctx.has("C"), result.waits) == (epoch, had, False)
        assert ctx.beat("B").assignment is None
        assert ctx.refused(ctx.beat("A", epoch=epoch)) is GroupError.UNKNOWN_MEMBER_ID

    def test_it_returns_itself(self, ctx: ConsumerContext) -> None:
        had = ctx.has("A")
        ctx.beat("A", epoch=-2, instance="i")
        assert (ctx.enter("A", instance="i").error, ctx.has("A")) == (None, had)
        assert ctx.beat("A").error is None

    def test_who_does_not_return_is_removed(self, ctx: ConsumerContext) -> None:
        ctx.beat("A", epoch=-2, instance="i")
        ctx.sleep(44_000)
        ctx.beat("B")
        ctx.sleep(1_000)
        ctx.settle("B")
        assert ctx.has("B") == [0, 1, 2, 3]

    def test_what_it_had_to_give_up_is_free(self, ctx: ConsumerContext) -> None:
        ctx.enter("C")
        ctx.enter("D")
        ctx.beat("A")
        ctx.beat("B")
        ctx.beat("A", epoch=-2, instance="i")
        ctx.beat("B", owned=SAME)
        ctx.settle("B", "C", "D")
        assert [len(ctx.has(each)) for each in "BCD"] == [1, 1, 1]
        assert ctx.remaining_ms(timers.revocation("A")) is None


class TestOfPatterns:
    def test_topics_come_after_the_first_response(self, ctx: ConsumerContext) -> None:
        joined = ctx.enter("A", topics=("flights",), pattern="tr.*")
        assert (joined.assignment, joined.waits) == (((FLIGHTS, (0, 1, 2, 3)),), True)
        assert ctx.resolves == {"A": "tr.*"}
        ctx.resolve("tr.*", {"trains"}, "A")
        result = ctx.beat("A")
        assert (result.assignment, result.waits) == (((FLIGHTS, (0, 1, 2, 3)), (TRAINS, (0, 1))), False)

    def test_an_empty_pattern_is_none(self, ctx: ConsumerContext) -> None:
        """As librdkafka joins."""
        result = ctx.enter("A", pattern="")
        assert (result.assignment, result.waits, ctx.resolves) == (((FLIGHTS, (0, 1, 2, 3)),), False, {})

    def test_the_topics_of_an_earlier_pattern_do_not_count(self, ctx: ConsumerContext) -> None:
        ctx.enter("A", topics=None, pattern="tr.*")
        ctx.beat("A", pattern="fl.*")
        ctx.resolve("tr.*", {"trains"}, "A", "B")
        assert ctx.beat("A").assignment is None
        ctx.resolve("fl.*", {"flights"}, "A")
        assert ctx.beat("A").assignment == ((FLIGHTS, (0, 1, 2, 3)),)

    def test_who_leaves_needs_no_topics(self, ctx: ConsumerContext) -> None:
        ctx.enter("A", topics=None, pattern="tr.*")
        ctx.beat("A", epoch=-1)
        assert ctx.resolves == {"A": ""}

    def test_a_place_is_taken_with_its_pattern(self, ctx: ConsumerContext) -> None:
        ctx.enter("A", topics=None, pattern="tr.*", instance="i")
        ctx.resolve("tr.*", {"trains"}, "A")
        ctx.beat("A")
        ctx.beat("A", epoch=-2, instance="i")
        ctx.enter("B", topics=None, pattern="tr.*", instance="i")
        assert ctx.resolves == {"A": "", "B": "tr.*"}
        assert ctx.has("B", TRAINS) == [0, 1]


def test_a_silent_member_is_removed(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.sleep(44_999)
    assert ctx.part.size == 1
    ctx.sleep(1)
    assert ctx.part.size == 0
    assert ctx.stored.fields == ()


def test_a_full_group_takes_no_more() -> None:
    ctx = ConsumerContext(NewerGroupSettings(consumer_max_size=1))
    ctx.enter("A", instance="i")
    assert ctx.refused(ctx.enter("B")) is GroupError.GROUP_MAX_SIZE_REACHED
    ctx.beat("A", epoch=-2, instance="i")
    assert ctx.enter("C", instance="i").error is None


def test_most_members_choose_the_assignor(ctx: ConsumerContext) -> None:
    ctx.enter("A", topics=("flights", "trains"))
    ctx.enter("B", topics=("flights", "trains"))
    assert ctx.described.assignor == "uniform"
    ctx.beat("A", assignor="range")
    ctx.settle("A", "B")
    assert ctx.described.assignor == "range"
    assert (ctx.has("A"), ctx.has("A", TRAINS)) == ([0, 1], [0])


def test_details_are_stored(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.beat("A", rack="r", timeout_ms=7_000)
    (stored,) = ctx.stored.fields
    assert isinstance(stored, StoredConsumer)
    assert (stored.rack_id, stored.rebalance_timeout_ms) == ("r", 7_000)
    ctx.beat("A", rack="r", timeout_ms=7_000)
    assert not ctx.persisted


def test_a_server_without_memory_takes_no_member(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.room = Room(0, 0)
    assert ctx.refused(ctx.enter("B")) is GroupError.GROUP_MAX_SIZE_REACHED
    assert ctx.refused(ctx.beat("A", topics=("flights", "trains"))) is GroupError.GROUP_MAX_SIZE_REACHED
    assert ctx.beat("A", topics=()).error is None


class TestAfterARestart:
    def test_members_keep_everything(self, ctx: ConsumerContext) -> None:
        ctx.enter("A")
        ctx.beat("A", owned=SAME)
        ctx.enter("B", topics=("flights", "trains"))
        ctx.beat("A")
        ctx.sleep(3_000)
        ctx.restart()
        assert ctx.remaining_ms(timers.session("A")) == 45_000
        assert ctx.remaining_ms(timers.revocation("A")) == 5_000
        assert [(ctx.beat(each).error, ctx.beat(each).assignment) for each in "AB"] == [(None, None)] * 2
        ctx.settle("A", "B")
        epochs = ctx.epochs.copy()
        ctx.restart()
        ctx.change_topics(**ctx.facts)
        assert [ctx.beat(each).assignment for each in "AB"] == [None, None]
        assert ctx.epochs == epochs

    def test_a_lost_response_is_repeated(self, ctx: ConsumerContext) -> None:
        ctx.enter("A")
        ctx.beat("A", owned=SAME)
        ctx.enter("B")
        ctx.beat("A")
        ctx.beat("A", owned=(0, 1))
        ctx.restart()
        assert ctx.beat("A", epoch=2, owned=(0, 1)).member_epoch == 3

    def test_a_pattern_without_topics_yet_moves_nothing(self, ctx: ConsumerContext) -> None:
        for each in "AB":
            ctx.enter(each, topics=None, pattern=".*")
        ctx.resolve(".*", {"flights", "trains"}, "A", "B")
        ctx.settle("A", "B")
        had = [(ctx.has(each), ctx.has(each, TRAINS)) for each in "AB"]
        ctx.restart()
        assert ctx.resolves == {"A": ".*", "B": ".*"}
        again = [ctx.beat(each) for each in "AB"]
        assert [(each.assignment, each.waits) for each in again] == [(None, False)] * 2
        ctx.resolve(".*", {"flights", "trains"}, "A", "B")
        assert [ctx.beat(each).assignment for each in "AB"] == [None, None]
        assert [(ctx.has(each), ctx.has(each, TRAINS)) for each in "AB"] == had
