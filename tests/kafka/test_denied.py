"""Authorization of every API in every version: for an unknown user, a reader and a super user."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.harness.guarded import ROOT, Guarded, guarded
from tests.harness.wire import Wire, batch
from tests.kafka.test_required_acls import Filler

from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS, Api
from headrace.protocol.messages import (
    RESPONSES,
    TABLES,
    CreateAclsRequest,
    CreateTopicsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    DescribeGroupsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from headrace.protocol.response_errors import FINDERS
from headrace.security.access.acls import ANYTHING, Acl, AclFilter, Pattern
from headrace.security.access.required_acls import ANYBODY, CLUSTER_NAME, Operation, ResourceType

apis.load()

UNAUTHORIZED = {
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
TELLING_NOTHING = UNAUTHORIZED | {Code.UNKNOWN_TOPIC_ID}
READER = "reader"
BY_ID = "named-by-its-id"
TABLE_OF = {table.api_key: table for table in TABLES if table.root.name.endswith("Request")}
VERSIONS = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for _, api in sorted(APIS.items())
    for version in range(max(api.oldest, api.refused_below), api.newest + 1)
    if api.needs != ANYBODY
]


def rule(principal: str, operation: Operation | None, kind: ResourceType, name: str, **other: Any) -> Acl:
    return Acl(**({"allow": True} | other), principal=principal, operation=operation, type=kind, name=name)


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded(clusters=["pool"]) as started:
        started.allow(
            *(
                rule(f"User:{READER}", Operation.DESCRIBE, kind, CLUSTER_NAME if kind.value == "Cluster" else ANYTHING)
                for kind in (
                    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
                )
            )
        )  # fmt: skip
        with started.connect(ROOT) as root:
            root.create(BY_ID)
        yield started


def asked(server: Guarded, wire: Wire, api: Api, version: int) -> tuple[set[int], Any]:
    """A request in which every field is filled, ids with that of a topic; the errors in its answer, and the answer."""
    topic_id = server.clusters.default.topics.get(BY_ID).topic.id
    answer = wire.ask(Filler(TABLE_OF[api.key], version, topic_id).request, version)
    return FINDERS[type(answer)](answer) or set(), answer


def state(server: Guarded) -> Any:
    """What requests could have changed."""
    broker = server.clusters.default
    rules = server.rules(AclFilter())
    transactions = broker.transactions.coordinator.names()
    return sorted(broker.topics.names()), sorted(broker.groups.names()), transactions, rules


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_user_without_acls_gets_nothing(server: Guarded, api: Api, version: int) -> None:
    before = state(server)
    for who in (None, "stranger"):
        with server.connect(who) as wire:
            errors, answer = asked(server, wire, api, version)
            assert errors <= TELLING_NOTHING
            if not errors:
                # There is no room for an error, or no need: then there is nothing else in it.
                parts = ("groups", "results", "topics", "responses", "transaction_states")
                assert not any(getattr(answer, name, None) for name in parts)
                assert api.name in {"ListGroups", "DescribeLogDirs", "ListTransactions"}
    assert state(server) == before


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_user_with_describe_changes_nothing(server: Guarded, api: Api, version: int) -> None:
    before = state(server)
    with server.connect(READER) as wire:
        errors, _ = asked(server, wire, api, version)
        more = any(rule.operation is not Operation.DESCRIBE and not rule.shown for rule in api.needs)
        # Creating what is missing is part of looking for a topic by name.
        assert bool(errors & UNAUTHORIZED) is more
    assert state(server) == before


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_super_user_is_never_refused(server: Guarded, api: Api, version: int) -> None:
    with server.connect(ROOT) as wire:
        errors, _ = asked(server, wire, api, version)
        assert not errors & UNAUTHORIZED


def topics_seen(wire: Wire, version: int = 12) -> dict[str, int]:
    names: Any = [] if version == 0 else None
    return {topic.name: topic.error_code for topic in wire.ask(MetadataRequest(topics=names), version).topics}


def test_each_user_is_limited_to_granted_resources(server: Guarded) -> None:
    """One request about things that are granted and things that are not: each part is answered for itself."""
    with server.connect(ROOT) as root:
        for name in ("mine-1", "mine-2", "other"):
            root.create(name)
        assert root.produce("other", batch(b"secret")).error_code == 0
    server.allow(
        rule("User:jane", None, ResourceType.TOPIC, "mine-", pattern=Pattern.PREFIXED),
        rule("User:jane", Operation.READ, ResourceType.GROUP, "readers"),
        rule("User:jane", Operation.WRITE, ResourceType.TOPIC, "mine-2", allow=False),
    )
    with server.connect("jane") as jane:
        assert {name for name in topics_seen(jane) if name in {"mine-1", "mine-2", "other"}} == {"mine-1", "mine-2"}
        assert "other" not in topics_seen(jane, 0)
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("mine-1", "other", "nowhere")]
        named = jane.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 12).topics
        refused = Code.TOPIC_AUTHORIZATION_FAILED
        assert {topic.name: topic.error_code for topic in named} == {"mine-1": 0, "other": refused, "nowhere": refused}

        # By the shortcut, one topic at a time; and by the tables, several at once.
        assert jane.produce("mine-1", batch(b"x")).error_code == 0
        assert jane.produce("mine-2", batch(b"x")).error_code == refused
        assert jane.produce("other", batch(b"x")).error_code == refused
        answer = jane.ask(produce_request("mine-1", "other", "nowhere"), 9)
        told = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
        assert told == {"mine-1": 0, "other": refused, "nowhere": refused}

        assert jane.fetch("mine-1", 0).records
        answer = jane.ask(fetch_all("mine-1", "other"), 12)
        found = {topic.topic: (topic.partitions[0].error_code, bool(topic.partitions[0].records))
                 for topic in answer.responses}  # fmt: skip
        assert found == {"mine-1": (0, True), "other": (refused, False)}

        assert jane.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4).error_code == 0
        commit = OffsetCommitRequest(
            group_id="readers",
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=""
                        )
                    ],
                )
                for name in ("mine-1", "other")
            ],
        )
        done = jane.ask(commit, 8).topics
        assert {topic.name: topic.partitions[0].error_code for topic in done} == {"mine-1": 0, "other": refused}
        with server.connect(ROOT) as root:
            assert {topic.partitions[0].error_code for topic in root.ask(commit, 8).topics} == {0}
        every = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="readers", topics=None)
        hidden = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="hidden", topics=None)
        mine, none = jane.ask(OffsetFetchRequest(groups=[every, hidden]), 8).groups
        assert [topic.name for topic in mine.topics] == ["mine-1"]
        assert none.error_code == Code.GROUP_AUTHORIZATION_FAILED
        ids = {name: server.clusters.default.topics.get(name).topic.id for name in ("mine-1", "other")}
        by_id = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id="readers",
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
                for topic_id in ids.values()
            ],
        )
        [mine] = jane.ask(OffsetFetchRequest(groups=[by_id]), 10).groups
        assert {topic.topic_id: (topic.partitions[0].committed_offset, topic.partitions[0].error_code)
                for topic in mine.topics} == {ids["mine-1"]: (1, 0), ids["other"]: (-1, refused)}  # fmt: skip
        assert [group.group_id for group in jane.ask(ListGroupsRequest(), 5).groups] == ["readers"]

        made = jane.ask(CreateTopicsRequest(topics=[creatable("mine-3"), creatable("their")], timeout_ms=1_000), 7)
        assert {topic.name: topic.error_code for topic in made.topics} == {"mine-3": 0, "their": refused}


def produce_request(*names: str, acks: int = 1) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData
    return ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, partition_data=[data(index=0, records=batch(b"x"))])
            for name in names
        ],
    )


def fetch_all(*names: str) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=name, partitions=[partition]) for name in names],
    )


def creatable(name: str) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=-1)


def test_a_topic_by_its_id_is_not_even_there(server: Guarded) -> None:
    with server.connect(ROOT) as root:
        root.create("by-id")
        [found] = root.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="by-id")]), 12).topics
    with server.connect("stranger") as wire:
        for name in (None, ""):
            asking = MetadataRequest.MetadataRequestTopic(name=name, topic_id=found.topic_id)
            [told] = wire.ask(MetadataRequest(topics=[asking]), 12).topics
            assert (told.error_code, told.name) == (Code.UNKNOWN_TOPIC_ID, name)


def test_who_wants_no_answer_loses_the_connection(server: Guarded) -> None:
    server.allow(rule("User:silent", Operation.WRITE, ResourceType.TOPIC, "silent"))
    with server.connect(ROOT) as root:
        root.create("silent")
        with server.connect("silent") as wire:
            wire.send(produce_request("silent", "forbidden", acks=0), 9, answered=False)
            assert wire.ends()
        assert root.fetch("silent", 0).records


def test_a_change_holds_for_connections_that_are_open(server: Guarded) -> None:
    acl = rule("User:late", Operation.WRITE, ResourceType.TOPIC, "late")
    with server.connect(ROOT) as root, server.connect("late") as late:
        root.create("late")
        for _ in range(2):
            assert late.produce("late", batch(b"x")).error_code == Code.TOPIC_AUTHORIZATION_FAILED
            server.allow(acl)
            assert late.produce("late", batch(b"x")).error_code == 0
            server.forbid(AclFilter(principal="User:late"))


def test_rules_of_one_virtual_cluster_say_nothing_in_another(server: Guarded) -> None:
    server.allow(rule("User:guest", None, ResourceType.TOPIC, ANYTHING), cluster="pool")
    with server.connect(ROOT, "pool") as root:
        root.create("there")
    with server.connect("guest", "pool") as inside, server.connect("guest") as outside:
        assert inside.produce("there", batch(b"x")).error_code == 0
        assert topics_seen(outside) == {}


def test_a_request_about_thousands_of_things_is_asked_about_in_pieces(server: Guarded) -> None:
    server.allow(rule("User:many", Operation.WRITE, ResourceType.TOPIC, "many-1", pattern=Pattern.PREFIXED))
    with server.connect(ROOT) as root, server.connect("many") as wire:
        root.create("many-1")
        names = [f"many-{number % 2}" if number < 2 else f"many-{number}-{'x' * 40}" for number in range(1_000)]
        answer = wire.ask(produce_request(*names), 9)
        told = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
        assert len(told) == 1_000
        assert told["many-1"] == 0
        assert told["many-0"] == Code.TOPIC_AUTHORIZATION_FAILED


def creation(**other: Any) -> CreateAclsRequest.AclCreation:
    given: dict[str, Any] = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    return CreateAclsRequest.AclCreation(**(given | other))


EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def test_what_could_never_be_asked_is_no_rule(server: Guarded) -> None:
    wrong = [
        creation(resource_type=1), creation(resource_type=99), creation(resource_pattern_type=2), creation(operation=1),
        creation(permission_type=1), creation(principal="alice"), creation(resource_name=""),
        creation(resource_type=4, resource_name="other"), creation(host=""),
    ]  # fmt: skip
    with server.connect(ROOT) as root:
        before = state(server)
        answer = root.ask(CreateAclsRequest(creations=wrong), 3)
        assert {each.error_code for each in answer.results} == {Code.INVALID_REQUEST}
        assert all(each.error_message for each in answer.results)
        assert state(server) == before
        for number in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            told = root.ask(DescribeAclsRequest(**(EVERYTHING | {number: 77})), 3)
            assert told.error_code == Code.INVALID_REQUEST


def test_without_an_authorizer_security_is_disabled() -> None:
    with guarded(authorizer_class_name="") as server, server.connect(None) as wire:
        assert wire.ask(DescribeAclsRequest(**EVERYTHING), 3).error_code == Code.SECURITY_DISABLED
        [made] = wire.ask(CreateAclsRequest(creations=[creation()]), 3).results
        assert made.error_code == Code.SECURITY_DISABLED
        wire.create("t")
        assert wire.produce("t", batch(b"x")).error_code == 0


def test_every_response_can_say_no() -> None:
    for api in APIS.values():
        assert (api.refusal is None) is (api.needs == ANYBODY)
        assert api.key in RESPONSES


def test_a_denial_is_logged_with_user_address_and_operation() -> None:
    with guarded() as server, server.connect("mallory") as wire, capture_logs() as lines:
        assert wire.produce("secret", batch(b"x")).error_code == Code.TOPIC_AUTHORIZATION_FAILED
        [told] = [line for line in lines if line["event"] == "not authorized"]
    assert (told["principal"], told["client"], told["api"]) == ("User:mallory", "127.0.0.1", "Produce")
    assert told["reason"] == "User:mallory may not Write Topic secret"
    assert isinstance(told["request"], int)


def test_the_authorized_operations_are_returned() -> None:
    def bits(*codes: int) -> int:
        return sum(1 << code for code in codes)

    read, write, create, describe, describe_configs = 3, 4, 5, 8, 10
    asked = [MetadataRequest.MetadataRequestTopic(name="orders")]
    metadata = MetadataRequest(
        topics=asked,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    described = DescribeGroupsRequest(groups=["billing"], include_authorized_operations=True)
    in_cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    with guarded() as server:
        server.allow(
            rule("User:jane", Operation.READ, ResourceType.TOPIC, "orders"),
            rule("User:jane", Operation.READ, ResourceType.GROUP, "billing"),
            rule("User:jane", Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
            rule("User:jane", Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
        )
        with server.connect(ROOT) as root, server.connect("jane") as jane:
            root.create("orders")
            answer = jane.ask(metadata, 10)
            # Read implies Describe, as in Kafka.
            assert answer.topics[0].topic_authorized_operations == bits(read, describe)
            assert answer.cluster_authorized_operations == bits(create, describe_configs)
            assert jane.ask(described, 5).groups[0].authorized_operations == bits(read, describe)
            assert jane.ask(in_cluster, 1).cluster_authorized_operations == bits(create, describe_configs)
            assert root.ask(metadata, 10).topics[0].topic_authorized_operations == bits(3, 4, 5, 6, 7, 8, 10, 11)
            server.allow(rule("User:jane", Operation.WRITE, ResourceType.TOPIC, "orders"))
            assert jane.ask(metadata, 10).topics[0].topic_authorized_operations == bits(read, write, describe)
            unasked = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
            assert jane.ask(unasked, 10).topics[0].topic_authorized_operations == -(2**31)
