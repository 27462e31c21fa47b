from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.groups.assignment.assignors import uniform
from headrace.groups.assignment.holdings import Holdings, Topic

ID, OTHER = UUID(int=1), UUID(int=2)
T = Topic("t", ID)


def two_members() -> Holdings[str]:
    """`a` owns partitions 0 to 3 of `t`; 2 and 3 shall be those of `b`."""
    group = Holdings[str]()
    group.topic("t", ID, 4)
    group.subscribe("a", ["t"])
    group.aim({"a": {"t": range(4)}})
    group.grant("a", group.free_for("a"), group.target_epoch)
    group.subscribe("b", ["t"])
    group.aim({"a": {"t": [0, 1]}, "b": {"t": [2, 3]}})
    return group


def test_changes_raise_the_epoch_once() -> None:
    group = Holdings[str](5, 5)
    assert not group.outdated
    group.topic("t", ID, 4)
    assert group.epoch == 5, "nothing changed for any member"
    group.subscribe("a", ["t"])
    group.subscribe("a", {"t"})
    assert (group.epoch, group.target_epoch, group.outdated) == (6, 5, True)
    group.topic("t", ID, 4)
    group.topic("x", None, None)
    assert group.epoch == 6
    group.topic("t", ID, 5)
    group.topic("t", OTHER, 5)
    group.topic("t", None, None)
    assert group.epoch == 9
    group.subscribe("a", [])
    group.leave("a")
    assert group.epoch == 11
    assert not group.members


def test_a_member_gives_up_before_another_is_granted() -> None:
    group = two_members()
    assert group.to_give_up("a") == {T: {2, 3}}
    assert group.due("b") == {T: {2, 3}}
    assert group.free_for("b") == {}
    assert not group.is_settled("a")
    group.give_up("a", {T: [3]})
    assert group.free_for("b") == {T: {3}}
    group.grant("b", group.free_for("b"), group.target_epoch)
    assert (group.held("b"), group.due("b")) == ({T: {3}}, {T: {2}})
    assert group.granted("t", 3) == ("b", 2)
    assert group.granted("t", 2) == ("a", 1)
    group.give_up("a", group.to_give_up("a"))
    assert group.is_settled("a")
    assert group.granted("t", 2) is None
    assert group.granted("x", 2) is None


def test_only_free_partitions_of_its_target_are_granted() -> None:
    group = two_members()
    with pytest.raises(AssertionError, match="has an owner"):
        group.grant("b", {T: [2]}, 3)
    group.give_up("a", {T: [2]})
    with pytest.raises(AssertionError, match="another member"):
        group.grant("a", {T: [2]}, 3)


def test_only_the_owner_gives_up() -> None:
    group = two_members()
    with pytest.raises(AssertionError, match="does not own"):
        group.give_up("b", {T: [0]})


def test_the_end_of_an_owner_frees_its_partitions() -> None:
    group = two_members()
    group.leave("a")
    assert group.free_for("b") == {T: {2, 3}}
    assert group.granted("t", 0) is None
    assert group.owners() == {}
    with pytest.raises(KeyError):
        group.held("a")


def test_a_target_of_a_member_that_left_is_nothing() -> None:
    group = two_members()
    group.leave("b")
    group.give_up("a", {T: [2]})
    assert group.targets() == {"t": {0: "a", 1: "a"}}
    assert group.owners() == {"t": {0: "a", 1: "a", 3: "a"}}


def test_a_member_takes_the_place_of_another() -> None:
    group = two_members()
    epoch = group.epoch
    group.replace("a", "c")
    assert list(group.members) == ["c", "b"]
    assert group.epoch == epoch
    assert group.held("c") == {T: {0, 1, 2, 3}}
    assert group.target("c") == {T: {0, 1}}
    assert group.granted("t", 0) == ("c", 1)
    assert group.targets()["t"][1] == "c"
    with pytest.raises(ValueError, match="is a member"):
        group.replace("c", "b")


def test_partitions_of_a_recreated_topic_are_other_ones() -> None:
    group = two_members()
    group.topic("t", OTHER, 2)
    assert group.due("b") == {}
    assert group.granted("t", 0) is None, "the former owner commits offsets of the former topic"
    group.aim({"a": {"t": [0]}, "b": {"t": [1]}})
    assert group.to_give_up("a") == {T: {0, 1, 2, 3}}
    new = Topic("t", OTHER)
    assert group.free_for("b") == {new: {1}}
    group.grant("b", group.free_for("b"), group.target_epoch)
    group.grant("a", group.free_for("a"), group.target_epoch)
    assert group.held("a") == {T: {0, 1, 2, 3}, new: {0}}
    group.give_up("a", group.to_give_up("a"))
    assert group.is_settled("a")


def test_a_deleted_topic_is_given_up() -> None:
    group = two_members()
    group.topic("t", None, None)
    assert group.partitions() == {}
    assert group.current("t") is None
    assert group.due("b") == {}
    group.aim({})
    assert group.to_give_up("a") == group.held("a")
    group.topic("t", ID, 4)
    group.aim({"a": {"t": range(4)}})
    assert group.is_settled("a"), "the same topic has returned"


def test_partitions_are_those_of_subscribed_topics() -> None:
    group = two_members()
    group.topic("x", OTHER, 1)
    assert group.partitions() == {"t": 4}
    group.subscribe("b", ["x"])
    assert group.partitions() == {"t": 4, "x": 1}
    group.leave("b")
    assert not group.is_subscribed("x")
    assert group.partitions() == {"t": 4}


def test_fewer_partitions() -> None:
    group = two_members()
    group.topic("t", ID, 1)
    assert group.due("b") == {}
    assert group.targets() == {"t": {0: "a"}}
    assert group.owners() == {"t": {0: "a"}}


def restored(group: Holdings[str]) -> Holdings[str]:
    again = Holdings[str](group.epoch, group.target_epoch)
    for who, topics in group.members.items():
        again.restore(who, topics, group.held_since(who), group.target(who))
    return again


def test_restoring_changes_nothing() -> None:
    group = two_members()
    again = restored(group)
    again.topic("t", ID, 4)
    assert not again.outdated
    for who in group.members:
        assert again.held_since(who) == group.held_since(who)
        assert again.target(who) == group.target(who)
    again.give_up("a", again.to_give_up("a"))
    assert again.free_for("b") == {T: {2, 3}}


@pytest.mark.parametrize(("topic_id", "partitions"), [(ID, 5), (OTHER, 4), (None, None)])
def test_a_topic_that_changed_during_a_restart_raises_the_epoch(topic_id: UUID | None, partitions: int | None) -> None:
    again = restored(two_members())
    again.topic("t", topic_id, partitions)
    assert again.outdated


def test_what_is_held_of_a_former_topic_is_restored() -> None:
    group = two_members()
    group.topic("t", OTHER, 4)
    group.aim({"a": {"t": [0, 1, 2, 3]}})
    again = restored(group)
    assert again.to_give_up("a") == {T: {0, 1, 2, 3}}
    assert again.free_for("a") == {Topic("t", OTHER): {0, 1, 2, 3}}


def test_a_target_is_stored_as_computed() -> None:
    # A member whose target was stored before the change is not behind one whose target was stored after it.
    group = two_members()
    before = group.target("a")
    group.topic("t", OTHER, 4)
    assert group.target("a") == before
    again = restored(group)
    again.topic("t", OTHER, 4)
    assert again.outdated


def test_two_stored_owners_are_an_error() -> None:
    group = Holdings[str]()
    group.restore("a", ["t"], {T: {0: 1}}, {T: [0]})
    with pytest.raises(ValueError, match="two owners"):
        group.restore("b", ["t"], {T: {0: 1}}, {})
    with pytest.raises(ValueError, match="two targets"):
        group.restore("c", ["t"], {}, {T: [0]})


WHO = st.sampled_from("abcd")
NAMES = st.sampled_from(["t", "u"])


class Model(RuleBasedStateMachine):
    """Members and topics change at random; members give up and are granted what they may have."""

    @initialize()
    def start(self) -> None:
        self.group = Holdings[str]()
        self.owned: dict[tuple[Topic, int], str] = {}
        """What was granted and not given up."""

    @rule(who=WHO, topics=st.frozensets(NAMES))
    def subscribe(self, who: str, topics: frozenset[str]) -> None:
        self.group.subscribe(who, topics)

    @rule(name=NAMES, number=st.integers(1, 2), partitions=st.none() | st.integers(0, 4))
    def change_topic(self, name: str, number: int, partitions: int | None) -> None:
        self.group.topic(name, UUID(int=number), partitions)

    @rule()
    def aim(self) -> None:
        group = self.group
        group.aim(uniform(group.members, group.partitions(), group.owners(), group.targets()))
        assert not group.outdated

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.group.members)))
        self.group.leave(who)
        self.owned = {part: owner for part, owner in self.owned.items() if owner != who}

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def reconcile(self, data: st.DataObject) -> None:
        group = self.group
        who = data.draw(st.sampled_from(sorted(group.members)))
        for topic, partitions in group.to_give_up(who).items():
            some = data.draw(st.sets(st.sampled_from(sorted(partitions))))
            group.give_up(who, {topic: some})
            for each in some:
                del self.owned[topic, each]
        free = group.free_for(who)
        group.grant(who, free, group.target_epoch)
        for topic, partitions in free.items():
            for each in partitions:
                assert (topic, each) not in self.owned
                self.owned[topic, each] = who

    @rule()
    def restart(self) -> None:
        existing = {name: self.group.current(name) for name in ("t", "u")}
        counts = self.group.partitions()
        again = restored(self.group)
        for name, topic in existing.items():
            again.topic(name, topic.id if topic else None, counts.get(name, 0) if topic else None)
        self.group = again

    @invariant()
    def indexes_agree(self) -> None:
        group = self.group
        held = {
            (topic, each): who for who in group.members for topic, parts in group.held(who).items() for each in parts
        }
        assert held == self.owned
        for who in group.members:
            due, free, lost = group.due(who), group.free_for(who), group.to_give_up(who)
            assert not group.is_settled(who) or (not due and not lost)
            for topic, parts in due.items():
                assert {each for each in parts if (topic, each) not in held} == free.get(topic, set())
                assert group.current(topic.name) == topic


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestModel = Model.TestCase


def test_changes_show_whether_owners_or_targets_have_changed() -> None:
    group = two_members()
    before = group.changes
    assert group.count(T) == 4
    assert group.shares_of(T) == (dict.fromkeys(range(4), "a"), {0: "a", 1: "a", 2: "b", 3: "b"})
    assert group.shares_of(Topic("unknown", None)) == ({}, {})
    assert group.changes == before
    group.give_up("a", {T: [3]})
    assert group.changes > before
