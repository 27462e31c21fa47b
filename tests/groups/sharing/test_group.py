"""Members of a share group: epochs, assignments, sessions, restarts, and offsets of an empty group."""

from collections import Counter

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.harness.sharers import SESSION_MS, ShareContext

from headrace.broker.coordinator.assignments import computed
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import GroupConfig, NewerGroupSettings
from headrace.groups.consumers.events import Assigned, TopicsChanged
from headrace.groups.errors import GroupError
from headrace.groups.events import DeleteGroup
from headrace.groups.model import GroupKind, GroupSettings
from headrace.groups.sharing.events import DeleteShareOffsets, ShareHeartbeatResult
from headrace.groups.turn import UNBOUNDED, Room


@pytest.fixture
def ctx() -> ShareContext:
    made = ShareContext()
    made.topic("flights", 4)
    return made


def partitions(result: ShareHeartbeatResult) -> list[int]:
    assert result.error is None
    assert result.assignment is not None
    return [index for _, indexes in result.assignment for index in indexes]


def test_the_first_response_has_the_assignment(ctx: ShareContext) -> None:
    result = ctx.beat("a", 0, "flights")
    assert (result.member_epoch, result.waits) == (1, False)
    assert result.assignment == ((ctx.topics["flights"].topic_id, (0, 1, 2, 3)),)
    assert [(each.topic, each.partition) for each in result.states] == [("flights", index) for index in range(4)]
    assert len({each.epoch for each in result.states}) == 1
    assert ctx.group.state is GroupState.STABLE
    assert ctx.group.describe().kind is GroupKind.SHARE


def test_a_heartbeat_that_changes_nothing_stores_nothing(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    writes = ctx.writes
    result = ctx.beat("a", 1)
    assert (result.error, result.member_epoch, result.assignment, result.states) == (None, 1, None, ())
    assert ctx.writes == writes


def test_members_share_and_learn_with_their_next_heartbeat(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    second = ctx.beat("b", 0, "flights")
    assert second.member_epoch == 2
    first = ctx.beat("a", 1)
    assert first.member_epoch == 2
    assert sorted([*partitions(first), *partitions(second)]) == [0, 1, 2, 3]
    assert len(partitions(first)) == len(partitions(second)) == 2


def test_more_members_than_partitions_read_the_same_ones(ctx: ShareContext) -> None:
    for name in "abcdefgh":
        ctx.beat(name, 0, "flights")
    read = Counter(index for name in "abcdefgh" for index in partitions(ctx.beat(name, 0, "flights")))
    assert read == {0: 2, 1: 2, 2: 2, 3: 2}


def test_the_previous_epoch_is_always_accepted(ctx: ShareContext) -> None:
    """A response may be lost, and the assignment with it."""
    ctx.beat("a", 0, "flights")
    ctx.beat("b", 0, "flights")
    lost = ctx.beat("a", 1)
    for _ in range(2):
        again = ctx.beat("a", 1)
        assert (again.member_epoch, again.assignment) == (lost.member_epoch, lost.assignment)


@pytest.mark.parametrize("epoch", [1, 7])
def test_other_epochs_are_fenced(ctx: ShareContext, epoch: int) -> None:
    for member in "abc":
        ctx.beat(member, 0, "flights")
    ctx.beat("a", 1)
    ctx.beat("d", 0, "flights")
    ctx.beat("a", 3)  # now it has 4, and 3 before
    result = ctx.beat("a", epoch)
    assert result.error is GroupError.FENCED_MEMBER_EPOCH
    assert "epoch" in result.message


def test_a_member_that_joins_again_keeps_its_epoch(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    again = ctx.beat("a", 0, "flights")
    assert again.member_epoch == 1
    assert partitions(again) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "rack", "message"),
    [
        ("", 0, ("flights",), None, "MemberId"),
        (" ", 1, (), None, "MemberId"),
        ("a", 0, (), None, "SubscribedTopicNames"),
        ("a", -2, (), None, "MemberEpoch"),
        ("a", 0, ("flights",), "", "RackId"),
    ],
)
def test_invalid_requests(
    ctx: ShareContext, member: str, epoch: int, topics: tuple[str, ...], rack: str | None, message: str
) -> None:
    result = ctx.beat(member, epoch, *topics, rack=rack)
    assert result.error is GroupError.INVALID_REQUEST
    assert message in result.message
    assert ctx.storage.nothing


def test_unknown_groups_and_members(ctx: ShareContext) -> None:
    assert ctx.beat("a", 1).error is GroupError.GROUP_ID_NOT_FOUND
    assert ctx.beat("a", -1).error is GroupError.GROUP_ID_NOT_FOUND
    ctx.beat("a", 0, "flights")
    assert ctx.beat("b", 1).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.beat("a", -1).member_epoch == -1
    assert ctx.beat("a", -1).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_group_has_a_maximum_of_members() -> None:
    ctx = ShareContext(GroupSettings(newer=NewerGroupSettings(share_max_size=2)))
    ctx.topic("flights", 1)
    assert [ctx.beat(name, 0, "flights").error for name in "abca"] == [
        None,
        None,
        GroupError.GROUP_MAX_SIZE_REACHED,
        None,
    ]
    ctx.beat("a", -1)
    assert ctx.beat("c", 0, "flights").error is None


def test_subscriptions_have_a_maximum_of_bytes() -> None:
    ctx = ShareContext(GroupSettings(max_metadata_bytes=20_000))
    names = [f"topic-{number}" for number in range(1_000)]
    assert ctx.beat("a", 0, *names).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert ctx.storage.nothing
    ctx.beat("a", 0, "flights")
    assert ctx.beat("a", 1, *names).error is GroupError.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("epoch", [0, 1])
def test_texts_of_members_have_a_maximum_of_bytes(epoch: int) -> None:
    ctx = ShareContext(GroupSettings(max_metadata_bytes=20_000))
    ctx.topic("flights", 1)
    assert ctx.beat("m" * 10_000, 0, "flights").error is GroupError.GROUP_MAX_SIZE_REACHED
    ctx.beat("a", 0, "flights")
    assert ctx.beat("a", epoch, rack="r" * 10_000, named=None if epoch else ["flights"]).error is (
        GroupError.GROUP_MAX_SIZE_REACHED
    )
    assert ctx.beat("a", -1, rack="r" * 10_000).error is None, "a member can always leave"


def test_a_silent_member_goes_after_its_session(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    ctx.beat("b", 0, "flights")
    ctx.wait(SESSION_MS - 1)
    ctx.beat("a", 1)
    ctx.wait(1)
    assert ctx.beat("b", 2).error is GroupError.UNKNOWN_MEMBER_ID
    assert partitions(ctx.beat("a", 2)) == [0, 1, 2, 3]
    ctx.wait(SESSION_MS)
    assert ctx.group.state is GroupState.EMPTY


def test_an_empty_group_stays_until_it_is_deleted(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    assert ctx.ask(DeleteGroup(ctx.token)).error is GroupError.NON_EMPTY_GROUP
    ctx.beat("a", -1)
    ctx.wait(30 * 24 * 3_600_000)
    ctx.restart()
    assert ctx.group.state is GroupState.EMPTY
    assert not ctx.storage.nothing
    assert ctx.ask(DeleteGroup(ctx.token)).error is None
    assert ctx.storage.nothing
    assert not ctx.timers
    assert ctx.ask(DeleteGroup(ctx.token)).error is GroupError.GROUP_ID_NOT_FOUND


def test_a_group_of_the_same_name_begins_with_a_later_state(ctx: ShareContext) -> None:
    """What a deleted group left in storage must not come back."""
    before = ctx.beat("a", 0, "flights").states[0].epoch
    ctx.beat("a", -1)
    ctx.ask(DeleteGroup(ctx.token))
    ctx.wait(1)
    # Nothing of it is in memory any more.
    ctx.restart()
    assert ctx.beat("a", 0, "flights").states[0].epoch > before


def test_members_keep_epochs_and_partitions_over_a_restart(ctx: ShareContext) -> None:
    had = {name: ctx.beat(name, 0, "flights") for name in "ab"}
    had["a"] = ctx.beat("a", 1)
    ctx.restart()
    for name, result in had.items():
        after = ctx.beat(name, result.member_epoch)
        assert (after.member_epoch, after.assignment) == (result.member_epoch, None)
        assert partitions(ctx.beat(name, 0, "flights")) == partitions(result)


def test_a_restart_before_all_have_heard_of_a_target(ctx: ShareContext) -> None:
    """The member that has not is nevertheless sent what is left for it."""
    ctx.beat("a", 0, "flights")
    second = ctx.beat("b", 0, "flights")
    ctx.restart()
    first = ctx.beat("a", 1)
    second = ctx.beat("b", second.member_epoch)
    assert sorted([*partitions(first), *partitions(second)]) == [0, 1, 2, 3]


def test_an_interval_delays_assignments() -> None:
    ctx = ShareContext(config=GroupConfig(share_assignment_interval_ms=1_000))
    ctx.topic("flights", 4)
    ctx.beat("a", 0, "flights")
    second = ctx.beat("b", 0, "flights")
    assert (second.member_epoch, second.waits, second.assignment) == (1, True, ())
    ctx.wait(1_000)
    assert partitions(ctx.beat("b", 1)) == [2, 3]
    assert partitions(ctx.beat("a", 1)) == [0, 1]


def test_topics_come_grow_and_go(ctx: ShareContext) -> None:
    assert partitions(ctx.beat("a", 0, "flights", "later")) == [0, 1, 2, 3]
    states = ctx.group.sharing.topics["flights"]
    ctx.topic("later", 1)
    ctx.topic("flights", 5)
    ctx.post(TopicsChanged({name: ctx.topics[name] for name in ("flights", "later")}))
    grown = ctx.beat("a", 1)
    assert sorted(partitions(grown)) == [0, 0, 1, 2, 3, 4]
    assert ctx.group.sharing.topics["flights"].state_epoch(0) == states.state_epoch(0)
    ctx.drop("later")
    assert partitions(ctx.beat("a", 2)) == [0, 1, 2, 3, 4]
    ctx.post(TopicsChanged({"unread": None}))
    assert ctx.beat("a", 3).assignment is None


def test_the_target_of_a_large_group_is_computed_outside_the_event_loop(ctx: ShareContext) -> None:
    ctx.topic("wide", 20_000)

    def finish(*, works: bool = True) -> None:
        assign = ctx.assigning.pop()
        assert not ctx.assigning, "one at a time"
        ctx.post(Assigned(assign, computed(assign) if works else None))

    joined = ctx.beat("a", 0, "wide")
    assert (joined.member_epoch, joined.assignment, joined.waits) == (1, (), True)
    finish()
    assigned = ctx.beat("a", 1)
    assert [len(indexes) for _, indexes in assigned.assignment or ()] == [20_000]
    assert assigned.member_epoch == 2
    for name in ("b", "c"):
        assert ctx.beat(name, 0, "wide").assignment == ()
    assert not ctx.assigning, "a large group gets a target less often"
    ctx.wait(1_000)
    ctx.beat("c", -1)
    finish(works=False)
    ctx.wait(1_000)
    finish()
    assert [len(indexes) for _, indexes in ctx.beat("b", 2).assignment or ()] == [10_000]


def test_a_computation_of_a_group_that_was_loaded_again_is_ignored(ctx: ShareContext) -> None:
    ctx.topic("wide", 20_000)
    ctx.beat("a", 0, "wide")
    (assign,) = ctx.assigning
    ctx.restart()
    ctx.post(TopicsChanged({"wide": ctx.topics["wide"]}))
    ctx.post(Assigned(assign, computed(assign)))
    assert ctx.beat("a", 1).waits
    ctx.post(Assigned(ctx.assigning[1], computed(ctx.assigning[1])))
    assert ctx.beat("a", 1).assignment


def test_a_topic_that_is_created_again_has_other_states(ctx: ShareContext) -> None:
    before = ctx.beat("a", 0, "flights")
    ctx.topic("flights", 4, number=2)
    ctx.wait(1)
    ctx.post(TopicsChanged({"flights": ctx.topics["flights"]}))
    after = ctx.beat("a", 1)
    assert after.assignment != before.assignment
    assert min(each.epoch for each in after.states) > before.states[0].epoch


def test_only_an_empty_groups_offsets_can_be_altered(ctx: ShareContext) -> None:
    altered = ctx.alter(flights=(1, 2))
    assert altered.error is None
    assert ctx.group.describe().kind is GroupKind.SHARE  # it was created
    epochs = {each.partition: each.epoch for each in altered.states}
    ctx.wait(1)
    joined = ctx.beat("a", 0, "flights")
    assert {each.partition: each.epoch for each in joined.states if each.partition in epochs} == epochs
    assert all(each.epoch < epochs[1] for each in joined.states if each.partition not in epochs)
    refused = ctx.alter(flights=(0,))
    assert refused.error is GroupError.NON_EMPTY_GROUP
    ctx.beat("a", -1)
    ctx.restart()
    assert ctx.alter(flights=(1,)).states[0].epoch > epochs[1]


def test_an_altered_offset_stays_known(ctx: ShareContext) -> None:
    """Storage may refuse it at first. A member must not begin elsewhere then, or records are skipped."""
    ctx.alter(7, flights=(1,))
    ctx.restart()
    begins = {each.partition: each.begin for each in ctx.beat("a", 0, "flights").states}
    assert begins == {index: 7 if index == 1 else None for index in begins}


def test_only_an_empty_groups_offsets_can_be_deleted(ctx: ShareContext) -> None:
    def delete() -> tuple[GroupError | None, int]:
        result = ctx.ask(DeleteShareOffsets(token=ctx.token, topics=("flights", "unknown")))
        return result.error, len(result.states)

    assert delete() == (GroupError.GROUP_ID_NOT_FOUND, 0)
    ctx.beat("a", 0, "flights")
    assert delete() == (GroupError.NON_EMPTY_GROUP, 0)
    ctx.beat("a", -1)
    assert delete() == (None, 4)
    assert delete() == (None, 0)


class Members(RuleBasedStateMachine):
    """Members, topics and restarts in any order. A heartbeat of each member then settles the group."""

    def __init__(self) -> None:
        super().__init__()
        self.ctx = ShareContext()
        self.epochs: dict[str, int] = {}
        self.has: dict[str, set[tuple[str, int]]] = {}

    @rule(name=st.sampled_from(["x", "y"]), count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        old = self.ctx.topics.get(name)
        if old is None or old.partitions < count:
            self.ctx.topic(name, count)
            self.ctx.post(TopicsChanged({name: self.ctx.topics[name]}))

    @rule(name=st.sampled_from(["x", "y"]))
    def delete(self, name: str) -> None:
        if name in self.ctx.topics:
            self.ctx.drop(name)

    @rule(member=st.sampled_from("abc"), topics=st.sets(st.sampled_from(["x", "y"]), min_size=1), lost=st.booleans())
    def subscribe(self, member: str, topics: set[str], lost: bool) -> None:
        result = self._beat(member, *sorted(topics))
        if not lost:
            self._note(member, result)

    @rule(member=st.sampled_from("abc"))
    def leave(self, member: str) -> None:
        self.ctx.beat(member, -1)
        self.epochs.pop(member, None)
        self.has.pop(member, None)

    @rule()
    def restart(self) -> None:
        self.ctx.restart()

    def _beat(self, member: str, *topics: str) -> ShareHeartbeatResult:
        epoch = self.epochs.get(member, 0)
        result = self.ctx.beat(member, epoch, *topics)
        if result.error is not GroupError.FENCED_MEMBER_EPOCH:
            return result
        # Several responses in a row were lost, so the member joins again.
        sharer = self.ctx.group.sharing.members[member]
        assert epoch < sharer.previous_epoch
        return self.ctx.beat(member, 0, *(topics or sharer.topics))

    def _note(self, member: str, result: ShareHeartbeatResult) -> None:
        assert result.error is None
        self.epochs[member] = result.member_epoch
        names = {facts.topic_id: name for name, facts in self.ctx.topics.items()}
        if result.assignment is not None:
            self.has[member] = {(names[topic], index) for topic, indexes in result.assignment for index in indexes}

    @invariant()
    def every_partition_has_a_member(self) -> None:
        members = self.ctx.group.sharing.members
        if set(members) != set(self.epochs):
            return  # one whose response was lost does not know its epoch
        for member in sorted(self.epochs):
            self._note(member, self._beat(member))
        wanted = {
            (name, index)
            for name, facts in self.ctx.topics.items()
            if any(name in member.topics for member in members.values())
            for index in range(facts.partitions)
        }
        assert set().union(*self.has.values()) >= wanted


TestMembers = Members.TestCase
TestMembers.settings = hypothesis_settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_a_restart_stores_nothing_and_the_epoch_does_not_fall() -> None:
    """Storage may still refuse writes: the server would repeat them without a pause."""
    ctx = ShareContext(config=GroupConfig(share_assignment_interval_ms=1_000))
    ctx.topic("flights", 4)
    ctx.beat("a", 0, "flights")
    ctx.beat("b", 0, "flights")
    ctx.wait(1_000)
    ctx.beat("b", 1)
    ctx.beat("c", 0, "flights")
    ctx.beat("d", 0, "flights")
    epoch, writes = ctx.group.sharing.epoch, ctx.writes
    ctx.restart()
    assert (ctx.writes, ctx.group.sharing.epoch) == (writes, epoch)
    ctx.wait(1_000)
    results = {name: ctx.beat(name, 0, "flights") for name in "abcd"}
    assert sorted(index for each in results.values() for index in partitions(each)) == [0, 1, 2, 3]


def test_a_topic_that_no_member_reads_any_more_costs_nothing(ctx: ShareContext) -> None:
    ctx.topic("wide", 20_000)
    ctx.beat("a", 0, "wide")
    assign = ctx.assigning.pop()
    ctx.post(Assigned(assign, computed(assign)))
    ctx.beat("a", 1)
    ctx.wait(1_000)
    ctx.beat("a", 2, "flights")
    ctx.wait(1_000)
    assert not ctx.assigning, "a group with four partitions needs no thread"
    assert partitions(ctx.beat("a", 2)) == [0, 1, 2, 3]


def test_a_server_without_memory_takes_no_more_members(ctx: ShareContext) -> None:
    ctx.beat("a", 0, "flights")
    ctx.room = Room(members=100, offsets=0)
    assert ctx.beat("b", 0, "flights").error is GroupError.GROUP_MAX_SIZE_REACHED
    assert ctx.beat("a", 1, "flights", "more").error is GroupError.GROUP_MAX_SIZE_REACHED
    assert ctx.beat("a", 1).error is None
    ctx.room = UNBOUNDED
    assert ctx.beat("b", 0, "flights").error is None
