"""One name, one set of positions, two ways to use it. These classic members cannot be converted: none has a topic."""

from uuid import UUID

import pytest
from tests.harness.groups import SESSION_MS, subscription
from tests.harness.instances import RETENTION_MS, TIMEOUT_MS, InstanceContext, Log

from headrace.groups.classic.states import GroupState
from headrace.groups.consumer_subscription import topics_of
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import DropTopic
from headrace.groups.instances.model import StartKind
from headrace.groups.model import OffsetAndMetadata, TopicPartition


def test_a_classic_join_is_refused_while_any_section_has_instances(ctx: InstanceContext) -> None:
    ctx.logs["weather"] = [Log()]
    flights = ctx.get(ctx.create("a")).cursor
    ctx.get(ctx.create("a", topic="weather", timeout_ms=2 * TIMEOUT_MS), topic="weather")
    assert ctx.join().error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    ctx.sleep(TIMEOUT_MS + 1)
    # One of them is empty, the group is not.
    assert ctx.join().error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert ctx.whole.describe().state is GroupState.STABLE

    ctx.sleep(TIMEOUT_MS)
    assert ctx.whole.describe().state is GroupState.EMPTY
    (member,) = ctx.stable(1)
    ctx.refused(InstanceProblem.GROUP_IN_USE, lambda: ctx.get(flights))
    ctx.leave(member)
    assert ctx.get(flights).records == ()


def test_a_classic_join_does_not_expire_members_whose_timer_has_not_fired(ctx: InstanceContext) -> None:
    ctx.get(ctx.create("a"))
    ctx.now_ms += TIMEOUT_MS + 1

    assert ctx.join(version=3).held


def test_a_pending_member_is_rejected_when_an_instance_was_quicker(ctx: InstanceContext) -> None:
    told = ctx.join()
    assert told.error is GroupError.MEMBER_ID_REQUIRED
    ctx.get(ctx.create("a"))

    assert ctx.join(told.result.member_id).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("verb", ["get", "beat"])
def test_instances_are_refused_while_classic_members_are_in(ctx: InstanceContext, verb: str) -> None:
    cursor = ctx.create("a")
    members = ctx.stable(1)
    ctx.refused(InstanceProblem.GROUP_IN_USE, lambda: getattr(ctx, verb)(cursor))
    ctx.refused(InstanceProblem.GROUP_IN_USE, lambda: ctx.update(StartKind.LATEST))
    # A cursor changes nothing, so it may be had.
    ctx.create("b")

    ctx.leave(*members)
    getattr(ctx, verb)(cursor)
    assert ctx.shares() == {"a": [0]}


def test_a_section_under_classic_members_writes_no_positions(ctx: InstanceContext) -> None:
    """They would be ones that these have not committed."""
    ctx.publish(0, 5)
    ctx.stable(1)
    ctx.checking = False  # A partition without a position is what this is about.
    ctx.create("a", StartKind.LATEST)
    assert ctx.at() == -1


def test_a_group_stops_on_kafka_and_goes_on_through_oci(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    (member,) = ctx.stable(1)
    ctx.commit(member, offset=4)
    ctx.leave(member)

    cursor = ctx.create("a", StartKind.LATEST)
    assert ctx.committed() == 4
    assert ctx.get(cursor).by_partition() == {0: [4, 5, 6, 7, 8, 9]}


def test_a_group_stops_on_oci_and_goes_on_through_kafka(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    cursor = ctx.get(ctx.get(ctx.create("a"), 6).cursor, 1).cursor
    ctx.sleep(TIMEOUT_MS + 1)
    (member,) = ctx.stable(1)
    assert ctx.at() == 6
    ctx.commit(member, offset=8)
    assert ctx.committed() == 8
    ctx.leave(member)

    # What the instance had in hand when it stopped must not be committed over it.
    assert ctx.commit_cursor(cursor).offsets == ()
    assert ctx.committed() == 8
    assert ctx.get(cursor).by_partition() == {0: [8, 9]}


def test_kafka_s_tools_reset_a_group_without_instances(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    cursor = ctx.create("a", StartKind.AT_TIME, ctx.now_ms + 1_000)
    ctx.get(cursor)
    assert ctx.commit("", -1, offset=3).result.partitions == {
        TopicPartition("flights", 0): GroupError.UNKNOWN_MEMBER_ID
    }
    ctx.sleep(TIMEOUT_MS + 1)
    assert ctx.commit("", -1, offset=3).error is None

    assert ctx.committed() == 3
    # The position rules: also over a time that the group was to wait for.
    assert ctx.get(cursor).by_partition() == {0: [3, 4, 5, 6, 7, 8, 9]}
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.commit("", -1, offset=1)
    assert ctx.get(ctx.create("a")).records[0] == (0, 1)


def test_an_offset_deleted_by_tools_begins_again(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    cursor = ctx.get(ctx.create("a", StartKind.LATEST)).cursor
    partition = TopicPartition("flights", 0)
    held = ctx.delete_offsets(partition)
    assert held.result.partitions == {partition: GroupError.GROUP_SUBSCRIBED_TO_TOPIC}
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.checking = False  # A partition without a position is what this is about.
    ctx.delete_offsets(partition)
    assert ctx.committed() is None
    ctx.restart()

    assert len(ctx.get(cursor).records) == 10


def test_a_group_with_instances_is_not_deleted(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a")).cursor
    assert ctx.delete_group().error is GroupError.NON_EMPTY_GROUP
    ctx.sleep(TIMEOUT_MS + 1)
    assert ctx.delete_group().error is None

    assert ctx.storage.nothing
    assert ctx.timers == {}
    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.get(cursor))


def test_kafka_s_tools_see_who_reads_what() -> None:
    ctx = InstanceContext(3)
    a = ctx.get(ctx.create("a")).cursor
    ctx.get(ctx.create("b"))
    ctx.get(a)
    group = ctx.whole.describe()

    assert (group.state, group.protocol_type, group.protocol) == (GroupState.STABLE, "consumer", "balanced")
    assert [member.client_id for member in group.members] == ["a", "b"]
    assert [topics_of(member.metadata) for member in group.members] == [["flights"], ["flights"]]
    assert group.members[1].assignment == (b"\0\0\0\0\0\1\0\7flights\0\0\0\1\0\0\0\2\xff\xff\xff\xff")
    assert len({member.member_id for member in group.members}) == 2


def test_an_empty_group_is_described_as_kafka_s_own(ctx: InstanceContext) -> None:
    ctx.create("a")
    group = ctx.whole.describe()
    assert (group.state, group.members) == (GroupState.EMPTY, ())


def test_kafka_s_retention_leaves_positions_of_a_section_alone() -> None:
    ctx = InstanceContext(1)
    ctx.retention_ms = 30 * RETENTION_MS
    (member,) = ctx.stable(1)
    ctx.commit(member, offset=5)
    ctx.leave(member)
    ctx.create("a")
    ctx.sleep(29 * RETENTION_MS)
    assert ctx.at() == 5
    ctx.sleep(2 * RETENTION_MS)
    assert ctx.storage.nothing


def test_classic_members_keep_the_section_they_read(ctx: InstanceContext) -> None:
    ctx.create("a")
    (member,) = ctx.form(ctx.join(version=3, protocols=(("range", subscription("flights")),), session_ms=1_800_000))
    ctx.commit(member, offset=5)
    for _ in range(3 * RETENTION_MS // 1_000_000):
        ctx.sleep(1_000_000)
        ctx.heartbeat(member)

    assert "flights" in ctx.whole.balanced
    assert ctx.at() == 5
    assert SESSION_MS < 1_800_000


def test_a_deleted_topic_takes_its_section_and_no_other(ctx: InstanceContext) -> None:
    ctx.logs["weather"] = [Log()]
    ctx.create("a", topic="weather")
    ctx.get(ctx.create("a"))
    ctx.drop_topic("flights")

    assert set(ctx.whole.balanced) == {"weather"}
    assert ctx.at() == -1
    assert ctx.at(0, "weather") == 0
    assert ctx.whole.describe().state is GroupState.EMPTY


def test_a_deleted_topic_leaves_the_section_of_a_later_one_of_its_name(ctx: InstanceContext) -> None:
    ctx.topic_id = UUID(int=2)
    ctx.get(ctx.create("a"))
    ctx.restart()
    ctx.send(DropTopic("flights", UUID(int=1)))
    assert set(ctx.whole.balanced) == {"flights"}
    assert ctx.at() == 0
    ctx.send(DropTopic("flights", UUID(int=2)))
    assert ctx.whole.balanced == {}
    assert ctx.at() == -1


def test_a_section_of_an_older_server_is_of_the_topic_that_uses_it(ctx: InstanceContext) -> None:
    cursor = ctx.create("a")
    assert ctx.whole.balanced["flights"].topic_id is None
    ctx.topic_id = UUID(int=2)
    ctx.get(cursor)
    ctx.restart()
    assert ctx.whole.balanced["flights"].topic_id == UUID(int=2)


def test_the_same_name_on_another_stream_is_another_group(ctx: InstanceContext) -> None:
    ctx.logs["weather"] = [Log()]
    ctx.publish(0, 5)
    ctx.publish(0, 5, topic="weather")
    flights = ctx.get(ctx.create("a"))
    weather = ctx.get(ctx.create("b", StartKind.LATEST, topic="weather"), topic="weather")

    assert len(flights.records) == 5
    assert weather.records == ()
    assert ctx.shares() == {"a": [0]}
    assert ctx.shares("weather") == {"b": [0]}
    ctx.update(StartKind.TRIM_HORIZON, topic="weather")
    assert len(ctx.get(weather.cursor, topic="weather").records) == 5
    assert ctx.get(flights.cursor).records == ()


def test_instances_see_offsets_of_a_transaction_when_it_is_committed(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    cursor = ctx.get(ctx.get(ctx.create("a"), 2).cursor, 2).cursor
    ctx.sleep(TIMEOUT_MS + 1)
    assert ctx.txn_commit({TopicPartition("flights", 0): OffsetAndMetadata(offset=7)}).error is None
    assert ctx.committed() == 2
    assert ctx.end_offsets(commit=True).error is None
    assert ctx.committed() == 7

    # What the instance had in hand must not be committed over it.
    assert ctx.commit_cursor(cursor).offsets == ()
    assert ctx.committed() == 7
    assert ctx.get(cursor).by_partition() == {0: [7, 8, 9]}


def test_an_aborted_transaction_moves_no_instance(ctx: InstanceContext) -> None:
    ctx.publish(0, 3)
    cursor = ctx.create("a")
    ctx.txn_commit({TopicPartition("flights", 0): OffsetAndMetadata(offset=2)})
    ctx.end_offsets(commit=False)
    assert ctx.get(cursor).by_partition() == {0: [0, 1, 2]}


def test_a_transaction_without_a_member_is_refused_while_instances_read(ctx: InstanceContext) -> None:
    ctx.publish(0, 3)
    ctx.get(ctx.create("a"))
    place = TopicPartition("flights", 0)
    assert ctx.txn_commit({place: OffsetAndMetadata(offset=2)}).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_commit_by_an_instance_overtakes_a_pending_offset(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    ctx.create("a")
    ctx.txn_commit({TopicPartition("flights", 0): OffsetAndMetadata(offset=2)})
    cursor = ctx.get(ctx.create("b"), 4).cursor
    ctx.commit_cursor(cursor)
    assert ctx.committed() == 4
    ctx.end_offsets(commit=True)
    assert ctx.committed() == 4


def test_a_section_with_pending_offsets_does_not_expire(ctx: InstanceContext) -> None:
    ctx.create("a")
    ctx.txn_commit({TopicPartition("flights", 0): OffsetAndMetadata(offset=2)})
    ctx.sleep(10 * RETENTION_MS)
    assert "flights" in ctx.whole.balanced
    ctx.end_offsets(commit=True)
    ctx.sleep(3 * RETENTION_MS)
    assert "flights" not in ctx.whole.balanced
