"""Requests of share groups (KIP-932), and the answers of Headrace and of Apache Kafka 4.3.1, from one table."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.harness.wire import Wire
from tests.kafka.agreement import any_group
from tests.kafka.agreement.cases import Answer, Case, Departure, ids
from tests.kafka.agreement.conftest import Either
from tests.kafka.agreement.share_group import ShareGroup
from tests.kafka.sharer import ACCEPT, REJECT, RELEASE, RENEW

from headrace.protocol import messages as m

Step = Callable[[ShareGroup], Answer]
Row = Case[ShareGroup]
GAP = 0


def join(member: str, **said: Any) -> Step:
    return lambda group: group.join(member, **said)


def beat(member: str, **said: Any) -> Step:
    return lambda group: group.beat(member, **said)


def enter(*members: str) -> Step:
    return lambda group: group.enter(*members)


def fetch(member: str, *partitions: int, **said: Any) -> Step:
    return lambda group: group.fetch(member, *partitions, **said)


def acknowledge(member: str, *batches: Any, **said: Any) -> Step:
    return lambda group: group.acknowledge(member, *batches, **said)


def renew_and_fetch(member: str, acks: Any, **limits: int) -> Step:
    return lambda group: group.renew_and_fetch(member, acks, **limits)


def alter(topic: str | None = None, **offsets: int) -> Step:
    return lambda group: group.alter(topic, **offsets)


def offsets(*topic: Any) -> Step:
    return lambda group: group.offsets(*topic)


def offsets_here(*partitions: int) -> Step:
    return lambda group: group.offsets_here(*partitions)


def delete_offsets(*topics: str) -> Step:
    return lambda group: group.delete_offsets(*topics)


def ask(request: Callable[..., Answer], *words: Any, **said: Any) -> Step:
    return lambda group: request(group, *words, **said)


A = (enter("A"),)
A_AND_B = (enter("A", "B"),)
EMPTY = (enter("A"), beat("A", epoch=-1))
OPEN = (enter("A"), fetch("A", 0))
"""A has a session with partition 0, and has acquired its ten records."""
SHORT_LOCK = (ask(ShareGroup.configure, share_record_lock_duration_ms=1_000), enter("A", "B"), fetch("A", 0))
"""A has acquired ten records for a second."""
FIVE_TIMES = (fetch("A", 0, records=1, share_acquire_mode=1), acknowledge("A", (0, 0, [RELEASE]))) * 5
UNKNOWN = "Member {member} is not a member of group {{group}}."
NOT_SHARE = "Group {group} is not a share group."

HEARTBEATS = [
    Row("join", (), join("A"), facts={"assigned": [], "interval": True},
        departs=Departure("0147", facts={"assigned": [0, 1, 2, 3], "interval": True})),
    Row("join without topics", (), beat("A", epoch=0), "INVALID_REQUEST",
        "SubscribedTopicNames must be set in first request."),
    Row("join with an empty member ID", (), join(""), "INVALID_REQUEST"),
    Row("join with an empty group ID", (), join("A", group_id=""), "INVALID_REQUEST", "GroupId can't be empty."),
    Row("join with an empty rack", (), join("A", rack_id=""), "INVALID_REQUEST", "RackId can't be empty."),
    Row("epoch -2", A, beat("A", epoch=-2), "INVALID_REQUEST", "MemberEpoch is invalid."),
    Row("join with no topics", (), join("A", subscribed_topic_names=[]), "INVALID_REQUEST",
        "SubscribedTopicNames must be set in first request."),
    Row("join with a topic that does not exist", (), join("A", subscribed_topic_names=["none"]),
        facts={"assigned": []}),
    Row("a topic that may not be described", (),
        lambda group: group.join("A", subscribed_topic_names=[group.topic, group.secret]),
        "TOPIC_AUTHORIZATION_FAILED"),
    Row("join a full group", (join("A"), join("B"), join("C")), join("D"), "GROUP_MAX_SIZE_REACHED",
        "The share group has reached its maximum capacity of 3 members."),
    Row("unknown group", (), beat("A", epoch=1), "GROUP_ID_NOT_FOUND", "Share group {group} not found."),
    Row("leave an unknown group", (), beat("A", epoch=-1), "GROUP_ID_NOT_FOUND"),
    Row("nothing changed", A, beat("A"), facts={"assigned": None, "rises": 0}),
    Row("unknown member", A, beat("Z", epoch=1), "UNKNOWN_MEMBER_ID", UNKNOWN.format(member="Z")),
    Row("leave", A, beat("A", epoch=-1), facts={"epoch": -1, "interval": False}),
    Row("leave as an unknown member", A, beat("Z", epoch=-1), "UNKNOWN_MEMBER_ID", UNKNOWN.format(member="Z")),
    Row("leave twice", (*A_AND_B, beat("A", epoch=-1)), beat("A", epoch=-1), "UNKNOWN_MEMBER_ID",
        UNKNOWN.format(member="A")),
    Row("greater epoch", A, beat("A", later=1), "FENCED_MEMBER_EPOCH"),
    Row("epoch before the previous one", (*A, join("B"), beat("A"), join("C"), beat("A")), beat("A", epoch=1),
        "FENCED_MEMBER_EPOCH"),
    Row("previous epoch", (*A, join("B"), beat("A")), beat("A", later=-1), facts={"rises": 0}),
    Row("join again", A, join("A"), facts={"assigned": [0, 1, 2, 3], "rises": 0}),
    Row("unsubscribe", A, beat("A", subscribed_topic_names=[]), facts={"assigned": []}),
]  # fmt: skip
SESSIONS = [
    Row("fetch", A, fetch("A", 0), facts={"acquired": {0: [(0, 9, 1)]}, "lock": 30_000}),
    Row("fetch at most so many records", A, fetch("A", 0, records=3, share_acquire_mode=1),
        facts={"acquired": {0: [(0, 2, 1)]}}),
    Row("fetch no records", A, fetch("A", 0, records=0, wait_ms=0), facts={"acquired": {}}),
    Row("fetch no bytes", A, fetch("A", 0, max_bytes=0, wait_ms=0), facts={"acquired": {}}),
    Row("fetch without a session", A, fetch("A", 0, epoch=1), "SHARE_SESSION_NOT_FOUND"),
    Row("acknowledge without a session", A, acknowledge("A", (0, 0, [ACCEPT]), epoch=1), "SHARE_SESSION_NOT_FOUND"),
    Row("first fetch with acknowledgements", A, fetch("A", 0, acks={0: [(0, 0, [ACCEPT])]}), "INVALID_REQUEST"),
    Row("fetch with another session epoch", OPEN, fetch("A", epoch=5), "INVALID_SHARE_SESSION_EPOCH"),
    Row("fetch with a former session epoch", (*OPEN, fetch("A", wait_ms=0)), fetch("A", epoch=1),
        "INVALID_SHARE_SESSION_EPOCH"),
    Row("acknowledge with another session epoch", OPEN, acknowledge("A", (0, 0, [ACCEPT]), epoch=5),
        "INVALID_SHARE_SESSION_EPOCH"),
    Row("acknowledge with session epoch 0", OPEN, acknowledge("A", (0, 0, [ACCEPT]), epoch=0),
        "INVALID_SHARE_SESSION_EPOCH"),
    Row("fetch without names", (), ask(ShareGroup.unnamed, m.ShareFetchRequest), "INVALID_REQUEST"),
    Row("acknowledge without names", (), ask(ShareGroup.unnamed, m.ShareAcknowledgeRequest), "INVALID_REQUEST"),
    Row("fetch again", OPEN, fetch("A", wait_ms=0), facts={"acquired": {}}),
    Row("open a session again", OPEN, fetch("A", 0, epoch=0, wait_ms=0), facts={"acquired": {}}),
    Row("another member's records", (*A_AND_B, fetch("A", 0)), fetch("B", 0, wait_ms=0), facts={"acquired": {}}),
    Row("fetch by a non-member", A, fetch("Z", 0), facts={"acquired": {0: [(0, 9, 1)]}}),
    Row("fetch an unknown partition", A, fetch("A", 99, wait_ms=0),
        facts={"errors": {99: "UNKNOWN_TOPIC_OR_PARTITION"}}),
    Row("end a session", OPEN, fetch("A", epoch=-1)),
    Row("end a session that there is not", A, fetch("A", epoch=-1), "SHARE_SESSION_NOT_FOUND"),
    Row("acknowledge and end a session", OPEN, acknowledge("A", (0, 9, [ACCEPT]), epoch=-1),
        facts={"errors": {0: "NONE"}}),
    Row("after the end of a session", (*OPEN, fetch("A", epoch=-1)), acknowledge("A", (0, 0, [ACCEPT])),
        "SHARE_SESSION_NOT_FOUND"),
    Row("what a session held", (*OPEN, fetch("A", epoch=-1)), fetch("B", 0), facts={"acquired": {0: [(0, 9, 2)]}}),
    Row("more sessions than the server has", A, ask(ShareGroup.open_sessions, 25), "SHARE_SESSION_LIMIT_REACHED"),
    Row("what a lost connection held", (*A_AND_B, fetch("A", 0), ask(ShareGroup.disconnect, "A")), fetch("B", 0),
        facts={"acquired": {0: [(0, 9, 2)]}}),
    Row("a session over another connection", (*OPEN, ask(ShareGroup.reconnect, "A")),
        fetch("A", 0, epoch=0, wait_ms=0), facts={"acquired": {}}),
    Row("what was acquired over another connection",
        (*OPEN, ask(ShareGroup.reconnect, "A"), fetch("A", 0, epoch=0, wait_ms=0)),
        acknowledge("A", (0, 9, [ACCEPT]), epoch=1), facts={"errors": {0: "NONE"}}),
    Row("what a lock held", SHORT_LOCK, fetch("B", 0), facts={"acquired": {0: [(0, 9, 2)]}, "lock": 1_000}),
    Row("accept after the end of the lock", (*SHORT_LOCK, fetch("B", 0)), acknowledge("A", (0, 0, [ACCEPT])),
        facts={"errors": {0: "INVALID_RECORD_STATE"}}),
    Row("a record that was released five times", (*A, *FIVE_TIMES), fetch("A", records=1, share_acquire_mode=1),
        facts={"acquired": {0: [(1, 1, 1)]}}),
]  # fmt: skip
NONE, INVALID = {"errors": {0: "NONE"}}, {"errors": {0: "INVALID_REQUEST"}}
ACKNOWLEDGEMENTS = [
    Row("accept", OPEN, acknowledge("A", (0, 9, [ACCEPT])), facts=NONE),
    Row("accept with a fetch", OPEN, fetch("A", acks={0: [(0, 9, [ACCEPT])]}, wait_ms=0), facts={"acks": {0: "NONE"}}),
    Row("of all types", OPEN, acknowledge("A", (0, 3, [ACCEPT, RELEASE, REJECT, GAP])), facts=NONE),
    Row("released", (*OPEN, acknowledge("A", (0, 9, [RELEASE]))), fetch("A"), facts={"acquired": {0: [(0, 9, 2)]}}),
    Row("rejected and gaps do not return", (*OPEN, acknowledge("A", (0, 1, [REJECT, GAP]), (2, 9, [RELEASE]))),
        fetch("A"), facts={"acquired": {0: [(2, 9, 2)]}}),
    Row("below the start offset", (*OPEN, acknowledge("A", (0, 3, [ACCEPT]))), acknowledge("A", (0, 0, [ACCEPT])),
        facts=NONE),
    Row("twice, above the start offset", (*OPEN, acknowledge("A", (2, 2, [ACCEPT]))),
        acknowledge("A", (2, 2, [ACCEPT])), facts={"errors": {0: "INVALID_RECORD_STATE"}}),
    Row("after a release", (*OPEN, acknowledge("A", (2, 2, [RELEASE]))), acknowledge("A", (2, 2, [ACCEPT])),
        facts={"errors": {0: "INVALID_RECORD_STATE"}}),
    Row("not the owner", (*A_AND_B, fetch("A", 0), fetch("B", 0, wait_ms=0)), acknowledge("B", (0, 0, [ACCEPT])),
        facts={"errors": {0: "INVALID_RECORD_STATE"}}),
    Row("of an unknown type", OPEN, acknowledge("A", (0, 0, [9])), facts=INVALID),
    Row("of a negative type", OPEN, acknowledge("A", (0, 0, [-1])), facts=INVALID),
    Row("too few types", OPEN, acknowledge("A", (0, 2, [ACCEPT, ACCEPT])), facts=INVALID),
    Row("too many types", OPEN, acknowledge("A", (0, 0, [ACCEPT, ACCEPT])), facts=INVALID),
    Row("no types", OPEN, acknowledge("A", (0, 0, [])), facts=INVALID),
    Row("last before first", OPEN, acknowledge("A", (3, 2, [ACCEPT])), facts=INVALID),
    Row("out of order", OPEN, acknowledge("A", (6, 6, [ACCEPT]), (5, 5, [ACCEPT])), facts=INVALID),
    Row("overlapping", OPEN, acknowledge("A", (4, 6, [ACCEPT]), (5, 7, [ACCEPT])), facts=INVALID),
    Row("beyond what was acquired", OPEN, acknowledge("A", (100, 101, [ACCEPT])), facts=INVALID),
    Row("partly beyond what was acquired", OPEN, acknowledge("A", (8, 12, [ACCEPT])), facts=INVALID),
    Row("nothing of a rejected list counts", (*OPEN, acknowledge("A", (0, 4, [RELEASE]), (100, 101, [ACCEPT]))),
        acknowledge("A", (0, 9, [ACCEPT])), facts=NONE),
    Row("of a partition that is not in the session", OPEN, acknowledge("A", (0, 0, [ACCEPT]), partition=1),
        facts={"errors": {1: "UNKNOWN_TOPIC_OR_PARTITION"}}),
    Row("nothing", OPEN, acknowledge("A"), facts={"errors": {}}),
    Row("renew without the flag", OPEN, acknowledge("A", (0, 0, [RENEW])), facts=INVALID),
    Row("renew", OPEN, acknowledge("A", (0, 0, [RENEW]), renew=True), facts=NONE),
    Row("renew in version 1", OPEN, acknowledge("A", (0, 0, [RENEW]), version=1), facts=INVALID),
    Row("accept after a renewal", (*OPEN, acknowledge("A", (0, 0, [RENEW]), renew=True)),
        acknowledge("A", (0, 0, [ACCEPT])), facts=NONE),
    Row("renew with a fetch", OPEN, renew_and_fetch("A", {0: [(0, 0, [RENEW])]}), facts={"acks": {0: "NONE"}}),
    Row("renew with a fetch of records", OPEN, renew_and_fetch("A", {0: [(0, 0, [RENEW])]}, max_records=1),
        "INVALID_REQUEST"),
    Row("renew with a fetch of bytes", OPEN, renew_and_fetch("A", {0: [(0, 0, [RENEW])]}, max_bytes=1),
        "INVALID_REQUEST"),
    Row("renew with a fetch that waits", OPEN, renew_and_fetch("A", {0: [(0, 0, [RENEW])]}, wait_ms=1),
        "INVALID_REQUEST"),
]  # fmt: skip
OFFSETS = [
    Row("alter, no group", (), alter(p0=3), facts={"errors": ["NONE"]}),
    Row("where an altered group begins", (alter(p0=3, p1=0, p2=0, p3=0), join("A"), beat("A")), fetch("A", 0),
        facts={"acquired": {0: [(3, 9, 1)]}}),
    Row("alter, empty group", EMPTY, alter(p0=8), facts={"errors": ["NONE"]}),
    Row("alter, members", A, alter(p0=1), "NON_EMPTY_GROUP"),
    Row("alter, unknown topic", EMPTY, alter("none", p0=1), facts={"errors": ["UNKNOWN_TOPIC_OR_PARTITION"]}),
    Row("alter, unknown partition", EMPTY, alter(p99=1), facts={"errors": ["UNKNOWN_TOPIC_OR_PARTITION"]}),
    Row("alter, classic group", (any_group.commit_from_outside,), alter(p0=1), "GROUP_ID_NOT_FOUND", NOT_SHARE),
    Row("describe", (alter(p0=3, p1=4, p2=5, p3=6),), offsets(),
        facts={"offsets": {0: 3, 1: 4, 2: 5, 3: 6}, "lags": {0: 7, 1: 6, 2: 5, 3: 4}}),
    Row("describe, one partition altered", (alter(p0=3),), offsets(), facts={"offsets": {0: 3}},
        departs=Departure("0147", facts={"offsets": {0: 3, 1: -1, 2: -1, 3: -1}})),
    Row("describe named partitions", (alter(p0=3, p1=4),), offsets_here(1), facts={"offsets": {1: 4}, "lags": {1: 6}}),
    Row("describe an unknown topic", (alter(p0=3),), offsets("none", 0),
        facts={"offsets": {0: -1}, "errors": {0: "NONE"}}),
    Row("describe a partition without an offset", (alter(p0=3),), offsets_here(1), facts={"offsets": {1: -1}}),
    Row("describe after acknowledgements", (*OPEN, acknowledge("A", (0, 3, [ACCEPT]))), offsets_here(0),
        facts={"lags": {0: 6}}),
    Row("describe, no group", (), offsets(), facts={"offsets": {}}),
    Row("describe a partition, no group", (), offsets_here(0), facts={"errors": {0: "NONE"}}),
    Row("describe a partition, classic group", (any_group.commit_from_outside,), offsets_here(0),
        facts={"offsets": {0: -1}, "errors": {0: "NONE"}}),
    Row("describe, classic group", (any_group.commit_from_outside,), offsets(), facts={"offsets": {}}),
    Row("delete", EMPTY, delete_offsets(), facts={"errors": ["NONE"]}),
    Row("delete twice", (*EMPTY, delete_offsets()), delete_offsets(),
        facts={"errors": ["UNKNOWN_TOPIC_OR_PARTITION"], "messages": ["There is no offset information to delete."]}),
    Row("delete, unknown topic", EMPTY, delete_offsets("none"), facts={"errors": ["UNKNOWN_TOPIC_OR_PARTITION"]}),
    Row("delete, members", A, delete_offsets(), "NON_EMPTY_GROUP"),
    Row("delete, no group", (), delete_offsets(), "GROUP_ID_NOT_FOUND", "Group {group} not found."),
    Row("delete, classic group", (any_group.commit_from_outside,), delete_offsets(), "GROUP_ID_NOT_FOUND", NOT_SHARE),
]  # fmt: skip
OTHER_KINDS = [
    Row("description", A, ask(any_group.describe_sharers),
        facts={"state": "Stable", "members": ["A"], "assignor": "simple"}),
    Row("description of an empty group", EMPTY, ask(any_group.describe_sharers),
        facts={"state": "Empty", "members": []}),
    Row("description of no group", (), ask(any_group.describe_sharers), "GROUP_ID_NOT_FOUND",
        "Group {group} not found."),
    Row("description of a classic group", (any_group.commit_from_outside,), ask(any_group.describe_sharers),
        "GROUP_ID_NOT_FOUND", NOT_SHARE),
    Row("description as a consumer group", A, ask(any_group.describe_consumers), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a consumer group."),
    Row("classic description", A, ask(any_group.describe_classic), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a classic group.", {"state": "Dead"}),
    Row("classic description, version 5", A, ask(any_group.describe_classic, version=5), facts={"state": "Dead"}),
    Row("list", A, ask(any_group.listed), facts={"types": [("share", "Stable", "share")]}),
    Row("list of an empty group", EMPTY, ask(any_group.listed), facts={"types": [("share", "Empty", "share")]}),
    Row("consumer joins", A, ask(any_group.join_consumer), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a consumer group."),
    Row("consumer joins an empty group", EMPTY, ask(any_group.join_consumer), "GROUP_ID_NOT_FOUND",
        "Group {group} is not a consumer group."),
    Row("classic member joins", A, ask(any_group.join_classic), "INCONSISTENT_GROUP_PROTOCOL"),
    Row("classic member joins an empty group", EMPTY, ask(any_group.join_classic), "INCONSISTENT_GROUP_PROTOCOL"),
    Row("classic heartbeat", A, ask(any_group.beat_classic, "A", 1), "UNKNOWN_MEMBER_ID"),
    Row("classic sync", A, ask(any_group.sync_classic, "A", 1), "UNKNOWN_MEMBER_ID"),
    Row("classic leave", A, ask(any_group.leave_classic, "A"), facts={"members": ["UNKNOWN_MEMBER_ID"]}),
    Row("commit from outside", A, ask(any_group.commit_from_outside), "GROUP_ID_NOT_FOUND"),
    Row("commit from outside, empty group", EMPTY, ask(any_group.commit_from_outside), "GROUP_ID_NOT_FOUND"),
    Row("deletion of committed offsets", A, ask(any_group.delete_offsets), "GROUP_ID_NOT_FOUND"),
    Row("join a classic group", (any_group.commit_from_outside,), join("A"), "GROUP_ID_NOT_FOUND", NOT_SHARE),
    Row("join a consumer group", (any_group.join_consumer,), join("A"), "GROUP_ID_NOT_FOUND", NOT_SHARE),
    Row("deletion", A, ask(any_group.delete), "NON_EMPTY_GROUP"),
    Row("deletion of an empty group", EMPTY, ask(any_group.delete)),
]  # fmt: skip
CASES = [*HEARTBEATS, *SESSIONS, *ACKNOWLEDGEMENTS, *OFFSETS, *OTHER_KINDS]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_share_group(case: Row, either: Either, wire: Wire, other: Wire) -> None:
    case.check(ShareGroup((wire, other), either.topic, either.topic_id, either.secret), either.name)
