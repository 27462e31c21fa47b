"""Requests of consumer groups (KIP-848), and the answers of Headrace and of Apache Kafka 4.3.1, from one table."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.harness.wire import Wire
from tests.kafka.agreement import any_group
from tests.kafka.agreement.cases import Answer, Case, Departure, ids
from tests.kafka.agreement.conftest import Either
from tests.kafka.agreement.consumer_group import ConsumerGroup

Step = Callable[[ConsumerGroup], Answer]
Row = Case[ConsumerGroup]


def join(member: str, **said: Any) -> Step:
    return lambda group: group.join(member, **said)


def reads(member: str, **said: Any) -> Step:
    """Join, and name the partitions then, as clients do when they begin to read."""

    def step(group: ConsumerGroup) -> Answer:
        group.join(member, **said)
        return group.beat(member, owned=group.held[member].get(group.topic_id, []))

    return step


def beat(member: str, **said: Any) -> Step:
    return lambda group: group.beat(member, **said)


def settle(*members: str) -> Step:
    return lambda group: group.settle(*members)


def commit(*place: Any, **said: Any) -> Step:
    return lambda group: group.commit(*place, **said)


def committed(*member: Any, **said: Any) -> Step:
    return lambda group: group.committed(*member, **said)


def classic(request: Callable[..., Answer], *words: Any, **said: Any) -> Step:
    return lambda group: request(group, *words, **said)


A = (reads("A"),)
"""A has all partitions."""
A_AND_B = (join("A"), join("B"), settle("A", "B"))
"""Each has two."""
A_REVOKES = (reads("A"), join("B"), beat("A"))
"""A must give up 2 and 3, but has not done so."""
A_REVOKED = (*A_REVOKES, beat("A", owned=[0, 1]))
"""A has given up 2 and 3, and B has not got them."""
STATIC = (join("A", instance_id="i"), join("B"), settle("A", "B"))
STATIC_LEFT = (*STATIC, beat("A", epoch=-2, instance_id="i"))


def resubscribe(group: ConsumerGroup) -> Answer:
    """A begins an epoch without a change of partitions."""
    return group.beat("A", subscribed_topic_names=[group.topic, "none"])


CLASSIC = (any_group.join_classic,)
"""A classic member leads, and has not assigned yet."""
EMPTY = (join("A"), beat("A", epoch=-1))
FENCED = (
    "The consumer group member has a {size} member epoch ({{sent}}) than the one known by the group coordinator "
    "({{epoch}}). The member must abandon all its partitions and rejoin."
)
GREATER, SMALLER = FENCED.format(size="greater"), FENCED.format(size="smaller")
UNKNOWN = "Member {member} is not a member of group {{group}}."

JOINS = [
    Row("join", (), join("A"), facts={"assigned": [0, 1, 2, 3], "id": True, "interval": True}),
    Row(
        "join without a rebalance timeout",
        (),
        join("A", rebalance_timeout_ms=-1),
        "INVALID_REQUEST",
        "RebalanceTimeoutMs must be provided in first request.",
    ),
    Row(
        "join without owned partitions",
        (),
        join("A", topic_partitions=None),
        "INVALID_REQUEST",
        "TopicPartitions must be empty when (re-)joining.",
    ),
    Row(
        "join with owned partitions",
        (),
        join("A", owned=[0]),
        "INVALID_REQUEST",
        "TopicPartitions must be empty when (re-)joining.",
    ),
    Row(
        "join without a subscription",
        (),
        join("A", subscribed_topic_names=None),
        "INVALID_REQUEST",
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    ),
    Row("join with an empty member ID", (), join(""), "INVALID_REQUEST", "MemberId can't be empty."),
    Row("join in version 0 with an empty member ID", (), join("", version=0), facts={"id": True}),
    Row("join with an empty group ID", (), join("A", group_id=""), "INVALID_REQUEST", "GroupId can't be empty."),
    Row(
        "join with an empty instance ID", (), join("A", instance_id=""), "INVALID_REQUEST", "InstanceId can't be empty."
    ),
    Row("join with an empty rack", (), join("A", rack_id=""), "INVALID_REQUEST", "RackId can't be empty."),
    Row("epoch below -2", (), beat("A", epoch=-3), "INVALID_REQUEST", "MemberEpoch is invalid."),
    Row("epoch -2 without an instance", (), beat("A", epoch=-2), "INVALID_REQUEST", "InstanceId can't be null."),
    Row("join with no topics", (), join("A", subscribed_topic_names=[]), facts={"assigned": []}),
    Row(
        "join with a topic that does not exist", (), join("A", subscribed_topic_names=["none"]), facts={"assigned": []}
    ),
    Row("join with an empty pattern", (), join("A", subscribed_topic_regex=""), facts={"assigned": [0, 1, 2, 3]}),
    Row("join with an invalid pattern", (), join("A", subscribed_topic_regex="("), "INVALID_REGULAR_EXPRESSION"),
    Row(
        "join with an unknown assignor",
        (),
        join("A", server_assignor="sticky"),
        "UNSUPPORTED_ASSIGNOR",
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
    ),
    Row("join with an assignor", (), join("A", server_assignor="range"), facts={"assigned": [0, 1, 2, 3]}),
    Row(
        "join a full group",
        (join("A"), join("B"), join("C")),
        join("D"),
        "GROUP_MAX_SIZE_REACHED",
        "The consumer group has reached its maximum capacity of 3 members.",
    ),
    Row("unknown group", (), beat("A", epoch=3), "GROUP_ID_NOT_FOUND"),
    Row("leave an unknown group", (), beat("A", epoch=-1), "GROUP_ID_NOT_FOUND", "Group {group} not found."),
]
HEARTBEATS = [
    Row("nothing changed", A, beat("A"), facts={"assigned": None, "rises": 0}),
    Row(
        "all fields",
        A,
        lambda group: group.beat(
            "A", owned=[0, 1, 2, 3], rebalance_timeout_ms=60_000, subscribed_topic_names=[group.topic]
        ),
        facts={"assigned": [0, 1, 2, 3], "rises": 0},
    ),
    Row("unknown member", A, beat("Z", epoch=2), "UNKNOWN_MEMBER_ID", UNKNOWN.format(member="Z")),
    Row("leave as an unknown member", A, beat("Z", epoch=-1), "UNKNOWN_MEMBER_ID", UNKNOWN.format(member="Z")),
    Row("leave", A, beat("A", epoch=-1), facts={"epoch": -1, "interval": False}),
    Row(
        "leave twice",
        (*A_AND_B, beat("A", epoch=-1)),
        beat("A", epoch=-1),
        "UNKNOWN_MEMBER_ID",
        UNKNOWN.format(member="A"),
    ),
    Row("greater epoch", A, beat("A", later=1), "FENCED_MEMBER_EPOCH", GREATER),
    Row("smaller epoch", A, beat("A", later=-1), "FENCED_MEMBER_EPOCH", SMALLER),
    Row(
        "smaller epoch than the previous one",
        A_REVOKED,
        beat("A", later=-2, owned=[0, 1]),
        "FENCED_MEMBER_EPOCH",
        SMALLER,
    ),
    Row("previous epoch with owned partitions", A_REVOKED, beat("A", later=-1, owned=[0, 1]), facts={"rises": 0}),
    Row("previous epoch with less than it has", A_REVOKED, beat("A", later=-1, owned=[0]), facts={"rises": 0}),
    Row("previous epoch without owned partitions", A_REVOKED, beat("A", later=-1), "FENCED_MEMBER_EPOCH", SMALLER),
    Row(
        "previous epoch with more than it has",
        A_REVOKED,
        beat("A", later=-1, owned=[0, 1, 2]),
        "FENCED_MEMBER_EPOCH",
        SMALLER,
    ),
    Row(
        "late acknowledgement with the previous epoch",
        (reads("A"), resubscribe, join("B")),
        beat("A", later=-1, owned=[0, 1]),
        facts={"assigned": [0, 1], "rises": 1},
        departs=Departure("0141", facts={"assigned": [0, 1], "rises": 0}),
    ),
    Row(
        "previous epoch while it must give up",
        (reads("A"), resubscribe, join("B"), beat("A")),
        beat("A", later=-1, owned=[0, 1]),
        "FENCED_MEMBER_EPOCH",
        SMALLER,
    ),
    Row("join again", A, join("A"), facts={"assigned": [0, 1, 2, 3], "rises": 0}),
    Row("join again among others", A_AND_B, join("A"), facts={"assigned": [0, 1], "rises": 0}),
    Row("second member joins", A, join("B"), facts={"assigned": [], "rises": 1}),
    Row("give up", (reads("A"), join("B")), beat("A"), facts={"assigned": [0, 1], "rises": 0}),
    Row("give up, asked again", A_REVOKES, beat("A"), facts={"assigned": None, "rises": 0}),
    Row("give up, still owned", A_REVOKES, beat("A", owned=[0, 1, 2]), facts={"assigned": None, "rises": 0}),
    Row("given up", A_REVOKES, beat("A", owned=[0, 1]), facts={"assigned": None, "rises": 1}),
    Row(
        "given up before it was asked",
        (reads("A"), join("B")),
        beat("A", owned=[0, 1]),
        facts={"assigned": [0, 1], "rises": 1},
    ),
    Row("granted", A_REVOKED, beat("B"), facts={"assigned": [2, 3], "rises": 0}),
    Row("not granted before it is given up", A_REVOKES, beat("B"), facts={"assigned": None, "rises": 0}),
    Row("unsubscribe", A, beat("A", subscribed_topic_names=[]), facts={"assigned": [], "rises": 0}),
    Row(
        "a topic that may not be described",
        (),
        lambda group: group.join("A", subscribed_topic_names=[group.topic, group.secret]),
        "TOPIC_AUTHORIZATION_FAILED",
    ),
]
STATIC_MEMBERS = [
    Row("instance in use, join", STATIC, join("C", instance_id="i"), "UNRELEASED_INSTANCE_ID",
        "Static member C with instance id i cannot join the group because the instance id is owned by A member."),
    Row("instance in use, heartbeat", STATIC, beat("C", epoch=3, instance_id="i"), "FENCED_INSTANCE_ID",
        "Static member C with instance id i was fenced by member A."),
    Row("instance in use, leave", STATIC, beat("C", epoch=-1, instance_id="i"), "FENCED_INSTANCE_ID",
        "Static member C with instance id i was fenced by member A."),
    Row("instance in use, leave for a while", STATIC, beat("C", epoch=-2, instance_id="i"), "FENCED_INSTANCE_ID",
        "Static member C with instance id i was fenced by member A."),
    Row("unknown instance, heartbeat", A, beat("A", instance_id="j"), "UNKNOWN_MEMBER_ID", "Instance id j is unknown."),
    Row("unknown instance, leave", A, beat("A", epoch=-2, instance_id="j"), "UNKNOWN_MEMBER_ID",
        "Instance id j is unknown."),
    Row("leave for a while", STATIC, beat("A", epoch=-2, instance_id="i"), facts={"epoch": -2, "interval": False}),
    Row("others keep what they have", STATIC_LEFT, beat("B"), facts={"assigned": None, "rises": 0}),
    Row("another takes the place", STATIC_LEFT, join("C", instance_id="i"), facts={"assigned": [0, 1]}),
    Row("others do not notice", (*STATIC_LEFT, join("C", instance_id="i")), beat("B"),
        facts={"assigned": None, "rises": 0}),
    Row("the replaced member", (*STATIC_LEFT, join("C", instance_id="i")), beat("A"), "UNKNOWN_MEMBER_ID",
        UNKNOWN.format(member="A")),
    Row("the replaced member with its instance", (*STATIC_LEFT, join("C", instance_id="i")),
        beat("A", instance_id="i"), "FENCED_INSTANCE_ID",
        "Static member A with instance id i was fenced by member C."),
    Row("it returns itself", STATIC_LEFT, join("A", instance_id="i"), facts={"assigned": [0, 1], "rises": 0}),
    Row("it left for a while, heartbeat", STATIC_LEFT, beat("A", instance_id="i"), "FENCED_MEMBER_EPOCH"),
]  # fmt: skip
OFFSETS = [
    Row("commit", A, commit("A")),
    Row("commit, not owned, present epoch", A_AND_B, commit("A", 2)),
    Row("commit, being revoked, older epoch", A_REVOKES, commit("A", 2)),
    Row("commit, owned, older epoch", A_AND_B, commit("A", 0, later=-1)),
    Row("commit, given up, older epoch", A_REVOKED, commit("A", 2, later=-1), "STALE_MEMBER_EPOCH"),
    Row("commit, of another, older epoch", A_AND_B, commit("A", 2, later=-1), "STALE_MEMBER_EPOCH"),
    Row("commit, granted later than the epoch", A_AND_B, commit("B", 2, later=-1), "STALE_MEMBER_EPOCH"),
    Row("commit, newer epoch", A, commit("A", later=1), "STALE_MEMBER_EPOCH"),
    Row("commit, version 9", A, commit("A", version=9)),
    Row("commit, version 8", A, commit("A", version=8), "UNSUPPORTED_VERSION"),
    Row("commit, unknown member", A, commit("Z", epoch=2), "UNKNOWN_MEMBER_ID"),
    Row("commit from outside", A, commit(epoch=-1), "UNKNOWN_MEMBER_ID"),
    Row("commit from outside, empty group", EMPTY, commit(epoch=-1)),
    Row("commit from outside, no group", (), commit(epoch=-1)),
    Row("commit by a member, no group", (), commit("A", epoch=2), "GROUP_ID_NOT_FOUND"),
    Row("commit by a member, no group, version 8", (), commit("A", epoch=2, version=8), "ILLEGAL_GENERATION"),
    Row("commit by a member that has left", EMPTY, commit("A", epoch=2), "UNKNOWN_MEMBER_ID"),
    Row("commit, unknown topic ID", A, commit("A", known=False), "UNKNOWN_TOPIC_ID"),
    Row("commit, unknown partition", A, commit("A", 99), "UNKNOWN_TOPIC_OR_PARTITION"),
    Row("commit by a static member that left for a while", STATIC_LEFT, commit("A", instance="i"),
        "STALE_MEMBER_EPOCH"),
    Row("offsets", (*A, commit("A")), committed("A"), facts={"offsets": [5], "errors": ["NONE"]}),
    Row("offsets, version 9", (*A, commit("A")), committed("A", version=9), facts={"offsets": [5]}),
    Row("offsets, no commit", A, committed("A"), facts={"offsets": [-1], "errors": ["NONE"]}),
    Row("offsets, older epoch", A_AND_B, committed("A", later=-1), "STALE_MEMBER_EPOCH", facts={"offsets": []}),
    Row("offsets, newer epoch", A, committed("A", later=1), "STALE_MEMBER_EPOCH", facts={"offsets": []}),
    Row("offsets, unknown member", A, committed("Z", epoch=2), "UNKNOWN_MEMBER_ID", facts={"offsets": []}),
    Row("offsets, no member", (*A, commit("A")), committed(None, epoch=-1), facts={"offsets": [5]}),
    Row("offsets, member without epoch", (*A, commit("A")), committed("A", epoch=-1), "STALE_MEMBER_EPOCH"),
    Row("offsets, epoch without member", (*A, commit("A")), committed("", epoch=2), "UNKNOWN_MEMBER_ID"),
    Row("offsets, no group", (), committed("A", epoch=2), facts={"offsets": [-1], "errors": ["NONE"]}),
    Row("offsets, unknown topic ID", A, committed("A", known=False), facts={"errors": ["UNKNOWN_TOPIC_ID"]}),
    Row("deleted offsets of a subscribed topic", (*A, commit("A")), classic(any_group.delete_offsets),
        facts={"partitions": ["GROUP_SUBSCRIBED_TO_TOPIC"]}),
    Row("deleted offsets of an empty group", (*A, commit("A"), beat("A", epoch=-1)), classic(any_group.delete_offsets),
        facts={"partitions": ["NONE"]}),
]  # fmt: skip
OTHER_KINDS = [
    Row("classic description", A, classic(any_group.describe_classic), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a classic group.", {"state": "Dead"}),
    Row("classic description, version 5", A, classic(any_group.describe_classic, version=5), facts={"state": "Dead"}),
    Row("description", A, classic(any_group.describe_consumers),
        facts={"state": "Stable", "members": ["A"], "assignor": "uniform"}),
    Row("description while partitions move", A_REVOKES, classic(any_group.describe_consumers),
        facts={"state": "Reconciling", "members": ["A", "B"]}),
    Row("description of an empty group", EMPTY, classic(any_group.describe_consumers),
        facts={"state": "Empty", "members": []}),
    Row("description of no group", (), classic(any_group.describe_consumers), "GROUP_ID_NOT_FOUND",
        "Group {group} not found.", {"state": ""}),
    Row("description of a classic group", (commit(epoch=-1),), classic(any_group.describe_consumers),
        "GROUP_ID_NOT_FOUND", "Group {group} is not a consumer group."),
    Row("description as a share group", A, classic(any_group.describe_sharers), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a share group."),
    Row("classic join, empty group", EMPTY, classic(any_group.join_classic), facts={"leads": True}),
    Row("classic join of another type", A, classic(any_group.join_classic, protocol_type="connect"),
        "INCONSISTENT_GROUP_PROTOCOL"),
    Row("classic join with metadata that is none", A, classic(any_group.join_classic, protocols=[]),
        "INCONSISTENT_GROUP_PROTOCOL"),
    Row("classic join as a consumer", A, classic(any_group.join_classic, member_id="A"),
        facts={"leads": False}, departs=Departure("0146", "UNKNOWN_MEMBER_ID")),
    Row("classic join with unreadable metadata", A, classic(any_group.join_classic, metadata=b"m"),
        "UNKNOWN_SERVER_ERROR", departs=Departure("0146", "INCONSISTENT_GROUP_PROTOCOL")),
    Row("classic join without an ID", A, classic(any_group.join_classic, once=True), "MEMBER_ID_REQUIRED",
        departs=Departure("0146")),
    Row("classic join, no leader", A, classic(any_group.join_classic), facts={"leads": False}),
    Row("classic heartbeat of a consumer", A, classic(any_group.beat_classic, "A", 2), "UNKNOWN_MEMBER_ID"),
    Row("classic heartbeat of an unknown member", A, classic(any_group.beat_classic, "Z", 2), "UNKNOWN_MEMBER_ID"),
    Row("classic sync of a consumer", A, classic(any_group.sync_classic, "A", 2), "UNKNOWN_MEMBER_ID"),
    Row("classic leave of a consumer", A, classic(any_group.leave_classic, "A"),
        facts={"members": ["NONE"]}),
    Row("classic leave of an unknown member", A, classic(any_group.leave_classic, "Z"),
        facts={"members": ["UNKNOWN_MEMBER_ID"]}),
    Row("classic leave of an instance", STATIC, classic(any_group.leave_classic, "", "i"),
        facts={"members": ["NONE"]}),
    Row("classic leave of the instance of another", STATIC, classic(any_group.leave_classic, "Z", "i"),
        facts={"members": ["FENCED_INSTANCE_ID"]}),
    Row("classic leave of an unknown instance", STATIC, classic(any_group.leave_classic, "", "j"),
        facts={"members": ["UNKNOWN_MEMBER_ID"]}),
    Row("what a removed consumer had", (*A, classic(any_group.leave_classic, "A")), join("B"),
        facts={"assigned": [0, 1, 2, 3]}),
    Row("share member joins", A, classic(any_group.join_sharer), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a share group."),
    Row("share member joins, empty group", EMPTY, classic(any_group.join_sharer), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a share group."),
    Row("deletion", A, classic(any_group.delete), "NON_EMPTY_GROUP"),
    Row("deletion of an empty group", EMPTY, classic(any_group.delete)),
    Row("deletion of no group", (), classic(any_group.delete), "GROUP_ID_NOT_FOUND"),
    Row("list", A, classic(any_group.listed), facts={"types": [("consumer", "Stable", "consumer")]}),
    Row("list of an empty group", EMPTY, classic(any_group.listed),
        facts={"types": [("consumer", "Empty", "consumer")]}),
    Row("consumer joins a stable classic group", (*CLASSIC, classic(any_group.sync_classic)), join("A"),
        facts={"assigned": []}),
    Row("classic member after that", (*CLASSIC, classic(any_group.sync_classic), join("A")),
        classic(any_group.beat_classic), "REBALANCE_IN_PROGRESS"),
    Row("consumer joins a classic group that rebalances", CLASSIC, join("A"), facts={"rises": 0},
        departs=Departure("0146", "COORDINATOR_NOT_AVAILABLE")),
    Row("consumer joins a classic group of another type", (classic(any_group.join_classic, protocol_type="connect"),),
        join("A"), "GROUP_ID_NOT_FOUND"),
    Row("heartbeat in a classic group", CLASSIC, beat("A", epoch=1), "GROUP_ID_NOT_FOUND"),
    Row("consumer joins a classic group without members", (commit(epoch=-1),), join("A"),
        facts={"assigned": [0, 1, 2, 3]}),
]  # fmt: skip
CASES = [*JOINS, *HEARTBEATS, *STATIC_MEMBERS, *OFFSETS, *OTHER_KINDS]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_consumer_group(case: Row, either: Either, wire: Wire) -> None:
    case.check(ConsumerGroup(wire, either.topic, either.topic_id, either.secret), either.name)
