"""Each right of each API on a running server: all others are not enough, and exactly the needed ones are."""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import pytest
from tests.harness.guarded import Guarded, guarded
from tests.kafka.test_denied import TABLE_OF, UNAUTHORIZED
from tests.kafka.test_required_acls import TOPIC_ID, Filler, exchange_of

from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS, Api
from headrace.protocol.messages import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
)
from headrace.protocol.response_errors import FINDERS
from headrace.security.access.acls import ANYTHING, Acl, AclFilter
from headrace.security.access.required_acls import (
    ANYBODY,
    CLUSTER_NAME,
    SERVER,
    SUPPORTED,
    Operation,
    ResourceType,
    Rule,
)

apis.load()

WHO, POOL = "someone", "pool"
CLUSTERS = (SERVER, POOL)
IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
"""Kafka's documentation, "Authorization and ACLs": these allow the operation, too."""
Right = tuple[str, Operation, ResourceType]
"""A virtual cluster, and an operation on all resources of a type."""
EVERY: set[Right] = {
    (cluster, operation, kind)
    for cluster in CLUSTERS
    for kind, operations in SUPPORTED.items()
    for operation in operations
}


def granting(rule: Rule, cluster: str = POOL) -> set[Right]:
    """Each right that is enough for a rule."""
    where = SERVER if rule.of_server else cluster
    enough = {rule.operation, *IMPLYING.get(rule.operation, ())}
    found = {(where, operation, rule.type) for operation in enough}
    if rule.instead is not None:
        found.add((where, *rule.instead))
        if rule.instead[0] is Operation.WRITE:
            # Of any topic; Kafka asks there for that operation alone.
            assert rule.instead == (Operation.WRITE, ResourceType.TOPIC)
    return found


def _topic(name: str, **config: str) -> Any:
    given = [CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=given)


def _more(api: Api) -> Iterator[Any]:
    """Requests that need what a filled one does not."""
    if api.name == "CreateTopics":
        for config in ({"headrace.convert": "native"}, {"headrace.stream": "key"}):
            for name in ("there", "missing"):
                yield CreateTopicsRequest(topics=[_topic(name, **config)], timeout_ms=1_000)
    elif api.name == "InitProducerId":
        yield InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    elif api.name == "FindCoordinator":
        yield FindCoordinatorRequest(key_type=1, coordinator_keys=["transaction"])
    elif api.name == "DescribeConfigs":
        broker = DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="1")
        group = DescribeConfigsRequest.DescribeConfigsResource(resource_type=32, resource_name="g")
        yield DescribeConfigsRequest(resources=[broker])
        yield DescribeConfigsRequest(resources=[group])
    elif api.name == "AlterConfigs":
        changed = AlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="1", configs=[])
        of_group = AlterConfigsRequest.AlterConfigsResource(resource_type=32, resource_name="g", configs=[])
        yield AlterConfigsRequest(resources=[changed])
        yield AlterConfigsRequest(resources=[of_group])
    elif api.name == "IncrementalAlterConfigs":
        altered = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="1", configs=[])
        grouped = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=32, resource_name="g", configs=[])
        yield IncrementalAlterConfigsRequest(resources=[altered])
        yield IncrementalAlterConfigsRequest(resources=[grouped])


def requests(api: Api, topic_id: UUID = TOPIC_ID) -> Iterator[Any]:
    yield Filler(TABLE_OF[api.key], api.newest, topic_id).request
    yield from _more(api)


CASES = [
    pytest.param(api, number, id=f"{api.name}-{number}")
    for _, api in sorted(APIS.items())
    if api.needs != ANYBODY
    for number, _ in enumerate(requests(api))
]


def needed(api: Api, request: Any) -> list[Rule]:
    found = {id(rule): rule for rule, _ in api.needed(request, exchange_of(api.key, api.newest))}
    return list(found.values())


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded(clusters=[POOL]) as started:
        with started.connect("root", POOL) as root:
            root.ask(CreateTopicsRequest(topics=[_topic("there")], timeout_ms=1_000), 7)
        yield started


def rights(server: Guarded, granted: Iterable[Right]) -> None:
    """Grant these, and nothing else."""
    by_cluster: dict[str, list[Acl]] = {cluster: [] for cluster in CLUSTERS}
    for cluster, operation, kind in granted:
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else ANYTHING
        acl = Acl(type=kind, name=name, principal=f"User:{WHO}", operation=operation, allow=True)
        by_cluster[cluster].append(acl)

    async def change() -> None:
        access, pace = server.clusters.access, server.clusters.lane.pace()
        for cluster, acls in by_cluster.items():
            await access.delete(cluster, [AclFilter(principal=f"User:{WHO}")], pace)
            await access.create(cluster, acls, pace)

    server.run(change())


def errors(server: Guarded, api: Api, number: int) -> set[int]:
    """The errors in the answer to a request that is made again for it."""
    topic_id = server.clusters.get(POOL).topics.get("there").topic.id
    request = list(requests(api, topic_id))[number]
    with server.connect(WHO, POOL) as wire:
        answer = wire.ask(request, api.newest)
        return set(FINDERS[type(answer)](answer) or ())


def hides(rule: Rule, api: Api) -> bool:
    """Whether what is not granted is left out of the answer without an error."""
    return rule.shown and api.name in {"ListGroups", "OffsetFetch", "CreateTopics"}


@pytest.mark.parametrize(("api", "number"), CASES)
def test_every_right_but_a_needed_one_is_not_enough(server: Guarded, api: Api, number: int) -> None:
    rules = needed(api, list(requests(api))[number])
    assert rules or api.name in {"ListGroups", "ListTransactions"}
    for rule in rules:
        rights(server, EVERY - granting(rule))
        assert errors(server, api, number) & UNAUTHORIZED or hides(rule, api), str(rule)


@pytest.mark.parametrize(("api", "number"), CASES)
def test_the_needed_rights_are_enough(server: Guarded, api: Api, number: int) -> None:
    rules = needed(api, list(requests(api))[number])
    rights(server, {(SERVER if rule.of_server else POOL, rule.operation, rule.type) for rule in rules})
    assert not errors(server, api, number) & UNAUTHORIZED


def test_every_rule_is_tried() -> None:
    for api in APIS.values():
        tried = {id(rule) for request in requests(api) for rule in needed(api, request)}
        assert [str(rule) for rule in api.needs if id(rule) not in tried and not rule.shown] == []


def test_rights_in_a_pool_are_none_on_the_server(server: Guarded) -> None:
    """The administrator of a virtual cluster adopts no stream, whatever its rules say there."""
    rights(server, {each for each in EVERY if each[0] == POOL})
    request = CreateTopicsRequest(topics=[_topic("mine", **{"headrace.stream": "theirs"})], timeout_ms=1_000)
    with server.connect(WHO, POOL) as wire:
        [answer] = wire.ask(request, 7).topics
        assert answer.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        assert "of the server" in str(answer.error_message)
        rights(server, {(POOL, Operation.CREATE, ResourceType.TOPIC), (SERVER, Operation.ALTER, ResourceType.CLUSTER)})
        [answer] = wire.ask(request, 7).topics
        assert answer.error_code not in UNAUTHORIZED
