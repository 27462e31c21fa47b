"""What each API says it needs: nothing is registered without it, and no name in a request is overlooked."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.kafka import apis
from headrace.kafka.apis.produce import PRODUCE
from headrace.kafka.server import registry
from headrace.kafka.server.registry import APIS, SHORTCUTS, Api, register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol import messages
from headrace.protocol.messages import TABLES, CreateTopicsRequest, MetadataRequest
from headrace.protocol.notation import Field, MessageTable, Structure
from headrace.security.access.required_acls import ANYBODY, CLUSTER_NAME

apis.load()

TOPIC_ID = UUID(int=7)
NAMING = {
    "group_id", "group_ids", "groups", "groups_names", "topic", "topic_names", "transactional_id", "transactional_ids",
    "v3_and_below_transactional_id", "resource_name", "key", "coordinator_keys", "subscribed_topic_names",
}  # fmt: skip
"""Fields that name a resource; so do fields `name` of structures about topics."""


OF_THE_CLUSTER = {
    "DescribeLogDirs", "CreateAcls", "AlterClientQuotas", "ElectLeaders", "AlterPartitionReassignments",
    "ListPartitionReassignments", "AlterReplicaLogDirs", "DescribeQuorum", "UpdateFeatures", "ListConfigResources",
    "WriteTxnMarkers",
}  # fmt: skip
"""What Kafka asks of the cluster as a whole, whichever resources a request names."""


class Topics:
    """One topic, by name and by id."""

    def with_id(self, topic_id: bytes) -> Any:
        return SimpleNamespace(topic=SimpleNamespace(name="by-id")) if topic_id == TOPIC_ID.bytes else None

    def has(self, name: str) -> bool:
        return name == "there"


def exchange_of(key: int, version: int) -> RequestContext:
    settings = SimpleNamespace(auto_create_topics_enable=True)
    broker = SimpleNamespace(cluster="pool", topics=Topics(), settings=settings)
    return cast("RequestContext", SimpleNamespace(broker=broker, api_key=key, version=version))


def needed(api: Api, request: Any, version: int) -> set[str]:
    found = api.needed(request, exchange_of(api.key, version))
    return {
        f"{rule.operation.value} {resource.type.value} {resource.cluster}/{resource.name}" for rule, resource in found
    }


class Filler:
    """Makes a request in which every string is another one, and remembers those that name resources."""

    def __init__(self, table: MessageTable, version: int, topic_id: UUID = TOPIC_ID) -> None:
        self.topic_id = topic_id
        self.owner: Any = getattr(messages, table.root.name)
        self.version = version
        self.named: set[str] = set()
        self.request = self.structure(table.root, self.owner)

    def structure(self, structure: Structure, cls: Any) -> Any:
        fields = [field for field in structure.fields if self.version in field.versions]
        return cls(**{field.name: self.value(field, structure) for field in fields})

    def value(self, field: Field, structure: Structure) -> Any:
        one = self.single(field, structure)
        return [one, self.single(field, structure)] if field.is_array else one

    def single(self, field: Field, structure: Structure) -> Any:
        if field.struct is not None:
            return self.structure(field.struct, getattr(self.owner, field.struct.name))
        if field.kind == "string":
            text = f"{structure.name}.{field.name}.{next(NUMBERS)}"
            if structure.name == "ForgottenTopic":
                return text  # of a fetch session: what is not read any more
            if field.name in NAMING or (
                field.name == "name" and "Topic" in structure.name and "Config" not in structure.name
            ):
                self.named.add(text)
            return text
        values: dict[str, Any] = {"bool": True, "uuid": self.topic_id, "bytes": b"", "records": None}
        # 2 is a topic as a resource of configurations.
        return values[field.kind] if field.kind in values else {"resource_type": 2, "key_type": 0}.get(field.name, 1)


NUMBERS = itertools.count()


def requests() -> Iterator[Any]:
    tables = {table.api_key: table for table in TABLES if table.root.name.endswith("Request")}
    for key, api in sorted(APIS.items()):
        for version in range(max(api.oldest, api.refused_below), api.newest + 1):
            yield pytest.param(api, tables[key], version, id=f"{api.name}-{version}")


@pytest.mark.parametrize(("api", "table", "version"), list(requests()))
def test_every_name_in_a_request_is_among_what_it_needs(api: Api, table: MessageTable, version: int) -> None:
    filled = Filler(table, version)
    resources = {resource.name for _, resource in api.needed(filled.request, exchange_of(api.key, version))}
    if api.needs == ANYBODY:
        assert filled.named == set()
    elif api.name in OF_THE_CLUSTER:
        assert resources == {CLUSTER_NAME}
    else:
        assert filled.named <= resources


def test_nothing_is_registered_without_saying_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "APIS", {})
    with pytest.raises(TypeError, match="needs"):
        register(MetadataRequest, 0, 12)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs"):
        registry.Shortcut(lambda *_: None)  # type: ignore[call-arg]


def test_only_what_comes_before_a_login_needs_nothing() -> None:
    open_to_all = {api.name for api in APIS.values() if api.needs == ANYBODY}
    assert open_to_all == {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster"}


def test_a_shortcut_needs_what_its_api_needs() -> None:
    context = exchange_of(PRODUCE, 9)
    for transactional_id, expected in ((None, []), ("id", [("Write TransactionalId", "id", "pool")])):
        plain = SimpleNamespace(topic="t", transactional_id=transactional_id)
        found = [
            (str(rule), resource.name, resource.cluster)
            for rule in SHORTCUTS[PRODUCE].needs
            for resource in rule.resources(plain, context)
        ]
        assert found == [("Write Topic", "t", "pool"), *expected]
    assert all(
        str(rule) in {str(each) for each in APIS[key].needs} for key in SHORTCUTS for rule in SHORTCUTS[key].needs
    )


def test_topics_requested_by_id_are_named() -> None:
    api = APIS[MetadataRequest.API_KEY]
    asked = [
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=TOPIC_ID),
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=UUID(int=8)),
    ]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    assert needed(api, request, 12) == {"Describe Topic pool/by-id"}


def test_asking_for_a_topic_that_may_be_created_needs_that_too() -> None:
    api = APIS[MetadataRequest.API_KEY]
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("there", "missing")]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
    assert needed(api, request, 12) == {
        "Describe Topic pool/there",
        "Describe Topic pool/missing",
        "Create Topic pool/missing",
    }
    request.allow_auto_topic_creation = False
    assert needed(api, request, 12) == {"Describe Topic pool/there", "Describe Topic pool/missing"}


def test_converting_and_adopting_need_more_than_creating() -> None:
    def topic(name: str, **config: str) -> Any:
        given = [
            CreateTopicsRequest.CreatableTopicConfig(name=f"headrace.{key}", value=value)
            for key, value in config.items()
        ]
        return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=given)

    api = APIS[CreateTopicsRequest.API_KEY]
    request = CreateTopicsRequest(topics=[topic("new"), topic("old", convert="native"), topic("redis", stream="key")])
    assert needed(api, request, 7) == {
        "Create Topic pool/new",
        "Alter Topic pool/old",
        "Create Topic pool/redis",
        "Alter Cluster default/kafka-cluster",
    }


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("DescribeConfigs", "DescribeConfigs"),
        ("AlterConfigs", "AlterConfigs"),
        ("IncrementalAlterConfigs", "AlterConfigs"),
    ],
)
def test_the_configuration_of_a_group_needs_a_right_on_the_group(name: str, operation: str) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    resource = SimpleNamespace(resource_type=32, resource_name="g")
    assert needed(api, SimpleNamespace(resources=[resource]), api.newest) == {f"{operation} Group pool/g"}
