"""CreateTopics (19), versions 2-7.

Behavior
- Redis replicates. As in Kafka, a replication factor needs that many brokers. It is the number of brokers that are
  named as replicas. -1 means `default.replication.factor`.
- With the configuration `headrace.stream=KEY`, an existing Redis Stream becomes partition `headrace.partition` (default
  0) of the native topic. The topic is created if it does not exist. Neither key is stored.
- With `headrace.convert=log|native`, an existing topic is converted to the other storage before the response.
- A manual replica assignment is accepted if it names only this broker.
- A topic that takes longer than `timeout_ms` gets REQUEST_TIMED_OUT, and is still created. Later topics of the request
  are not.
- More than 10,000 partitions in one request, or more than `max.broker.partitions` in total, are POLICY_VIOLATION.

Version notes
- 4: partitions and replication factor may be -1. 5: flexible, and the response has the configuration. 7: topic ids.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol

from headrace.broker.admin.acl_authorizer import Grants
from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import InvalidAssignment, check_brokers, check_factor
from headrace.broker.topics.live import LiveTopic
from headrace.kafka.apis.describe_configs import SOURCES
from headrace.kafka.denied import Place, Refusal
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import server, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, ResourceType
from headrace.topics.config import describe
from headrace.topics.errors import InvalidPartitions

Result = CreateTopicsResponse.CreatableTopicResult
ADOPT_STREAM, ADOPT_PARTITION = "headrace.stream", "headrace.partition"
CONVERT = "headrace.convert"


_CREATE_ANY = (Operation.CREATE, ResourceType.CLUSTER)


def _named(request: CreateTopicsRequest, key: str, *, wanted: bool) -> Iterator[str]:
    for topic in request.topics:
        if any(item.name == key for item in topic.configs) == wanted:
            yield topic.name


def _extended(request: CreateTopicsRequest, context: RequestContext) -> Iterator[str]:
    return (name for name in _named(request, ADOPT_STREAM, wanted=True) if context.broker.topics.has(name))


NEEDS = (
    topics(Operation.CREATE, lambda request, _: _named(request, CONVERT, wanted=False), instead=_CREATE_ANY),
    topics(Operation.ALTER, lambda request, _: _named(request, CONVERT, wanted=True), when="headrace.convert"),
    # A Redis key belongs to no virtual cluster: the administrator of one has no right to it.
    server(
        Operation.ALTER,
        lambda request: any(True for _ in _named(request, ADOPT_STREAM, wanted=True)),
        ADOPT_STREAM,
    ),
    topics(Operation.ALTER, _extended, when="a topic that adopts more"),
    topics(Operation.DESCRIBE_CONFIGS, lambda request, _: (), shown=True),
)


def _places(topic: CreateTopicsRequest.CreatableTopic, _: CreateTopicsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TOPIC, topic.name
    if any(item.name == ADOPT_STREAM for item in topic.configs):
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _refused(topic: CreateTopicsRequest.CreatableTopic, code: Code, message: str | None) -> Result:
    return Result(
        name=topic.name,
        error_code=code,
        error_message=message,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def _hide(response: CreateTopicsResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    """Remove configurations from topics for which the client has no right to see them (KIP-525)."""
    for result in response.topics:
        yield
        if not result.error_code and not grants.allow(NEEDS[-1], result.name):
            result.topic_config_error_code = Code.TOPIC_AUTHORIZATION_FAILED
            result.num_partitions = result.replication_factor = -1
            result.configs = []


_STRICT_FROM = 6
"""First version in which clients support THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
NAMED_TWICE = "topic {!r} is named more than once"
_TOPICS = Each("topics", "topics", _refused, _places, key=attrgetter("name"), twice=NAMED_TWICE)
REFUSAL = Refusal(take_out=_TOPICS.take_out, hide=_hide)


@register(CreateTopicsRequest, 2, 7, needs=NEEDS, each=_TOPICS, refusal=REFUSAL, bound=BY_ITSELF)
def handle(request: CreateTopicsRequest, context: RequestContext) -> AnswerItem:
    """Create topics."""
    return partial(_create, context, Allowance(), validate_only=request.validate_only)


class Allowance:
    """Limit the partitions that one request may create."""

    MOST = 10_000
    """As in Kafka 4 ("excessively large number of partitions per request")."""

    def __init__(self) -> None:
        self._left = self.MOST

    def take(self, partitions: int) -> None:
        """Count partitions before they are created, and raise RequestError beyond the limit."""
        if partitions > self.MOST:
            raise RequestError(
                Code.POLICY_VIOLATION,
                f"{partitions} partitions in one request, where {self.MOST} are the most: create the topic with so "
                "many at most, and add the others afterwards (headrace topics grow)",
            )
        if partitions > self._left:
            raise RequestError(
                Code.POLICY_VIOLATION,
                f"more than {self.MOST} partitions in one request: name some of its topics in another one",
            )
        self._left -= partitions


async def _create(
    context: RequestContext, allowance: Allowance, topic: CreateTopicsRequest.CreatableTopic, *, validate_only: bool
) -> Result:
    broker = context.broker
    config = {item.name: item.value for item in topic.configs if item.value is not None}
    if CONVERT in config:
        if validate_only:
            raise RequestError(Code.INVALID_REQUEST, "a conversion cannot be tried without doing it")
        converted = await _convert(broker, topic.name, config[CONVERT])
        context.changed(f"topic {topic.name} converted to {config[CONVERT]}")
        return converted
    if ADOPT_STREAM in config:
        adopted = await _adopt(broker, topic, config, validate_only=validate_only)
        context.changed(f"topic {topic.name} adopted")
        return adopted
    partitions = _partitions(broker, topic)
    allowance.take(partitions)
    replication = _replication(broker, topic)
    if validate_only:
        broker.topics.validate(topic.name, partitions, config, replication)
        return Result(name=topic.name, num_partitions=partitions, replication_factor=replication, configs=[])
    context.count_change(partitions, strict_from=_STRICT_FROM)
    live = await broker.topics.create(topic.name, partitions, config, replication)
    context.changed(f"topic {topic.name} created, {partitions} partitions")
    return _created(broker, live, partitions)


async def _convert(broker: Broker, name: str, storage: str) -> Result:
    await broker.convert(name, storage)
    live = broker.topics.get(name)
    return _created(broker, live, len(live.partitions))


async def _adopt(
    broker: Broker, topic: CreateTopicsRequest.CreatableTopic, config: dict[str, str], *, validate_only: bool
) -> Result:
    if validate_only:
        raise RequestError(Code.INVALID_REQUEST, "the adoption of a stream cannot be tried without doing it")
    stream, partition = config.pop(ADOPT_STREAM), config.pop(ADOPT_PARTITION, "0")
    if not partition.isdecimal():
        raise InvalidPartitions(f"{ADOPT_PARTITION}={partition}: expected a partition's number")
    if topic.replication_factor != -1:
        check_factor(broker.ownership, topic.replication_factor)
    live = await broker.adopt(topic.name, stream, int(partition), config)
    return _created(broker, live, len(live.partitions))


def _created(broker: Broker, live: LiveTopic, partitions: int) -> Result:
    return Result(
        name=live.topic.name,
        topic_id=live.topic.id,
        num_partitions=partitions,
        replication_factor=live.topic.replication_factor,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.key.name,
                value=entry.value,
                read_only=False,
                config_source=SOURCES[entry.source],
                is_sensitive=False,
            )
            for entry in describe(live.topic.config, broker.settings.topic_defaults)
        ],
    )


class Assignment(Protocol):
    """The brokers of a partition."""

    broker_ids: list[int]


def check_assigned(broker: Broker, assignments: Sequence[Assignment]) -> None:
    """Raise RequestError if an assignment names a broker other than this one."""
    for each in assignments:
        try:
            check_brokers(broker.ownership, each.broker_ids)
        except InvalidAssignment as error:
            raise RequestError(Code.INVALID_REPLICA_ASSIGNMENT, str(error)) from None
    if any(each.broker_ids != [broker.node_id] for each in assignments):
        raise RequestError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"brokers share partitions out by themselves: leave the assignment out, or give each to {broker.node_id}",
        )


def _partitions(broker: Broker, topic: CreateTopicsRequest.CreatableTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise RequestError(
                Code.INVALID_REQUEST, "a replica assignment goes with partitions and replication factor -1"
            )
        if sorted(a.partition_index for a in topic.assignments) != list(range(len(topic.assignments))):
            raise RequestError(Code.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps")
        check_assigned(broker, topic.assignments)
        return len(topic.assignments)
    if topic.num_partitions == -1:
        return broker.settings.num_partitions
    if topic.num_partitions < 1:
        raise InvalidPartitions(f"a topic needs at least one partition, asked for {topic.num_partitions}")
    return topic.num_partitions


def _replication(broker: Broker, topic: CreateTopicsRequest.CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments[0].broker_ids)
    return broker.settings.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
