"""Metadata (3), versions 0-12.

Behavior
- One broker, which leads every partition and is the controller.
- A topic that does not exist is created when the request and `auto.create.topics.enable` allow it, before the answer.

Version notes
- 0: an empty list of topics means all; from 1 on a null list does.
- 4: the request says whether topics may be created.
- 7: leader epochs. 9: flexible. 10: topic ids. 12: topics may be asked for by id alone.
"""

from collections.abc import Iterable
from uuid import UUID

from headrace.access.needs import Operation, ResourceType
from headrace.broker.broker import Broker
from headrace.broker.live import LiveTopic
from headrace.kafka.codec.messages import MetadataRequest, MetadataResponse
from headrace.kafka.errors import Code, code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import names_of, topics
from headrace.kafka.registry import register
from headrace.topics.errors import TopicError, UnknownTopic

_NO_ID = UUID(int=0)
_UNASKED = -(2**31)  # authorized operations that were not asked for


def _names(request: MetadataRequest, exchange: Exchange) -> Iterable[str]:
    return names_of(request.topics, exchange)


def _missing(request: MetadataRequest, exchange: Exchange) -> Iterable[str]:
    """The topics that the request would create."""
    if exchange.version >= 4 and not request.allow_auto_topic_creation:
        return ()
    broker = exchange.broker
    if not broker.settings.auto_create_topics_enable:
        return ()
    return (name for name in names_of(request.topics, exchange) if not broker.topics.has(name))


NEEDS = (
    topics(Operation.DESCRIBE, _names, shown=True),
    topics(Operation.CREATE, _missing, instead=(Operation.CREATE, ResourceType.CLUSTER)),
)


@register(MetadataRequest, 0, 12, needs=NEEDS)
async def handle(request: MetadataRequest, exchange: Exchange) -> MetadataResponse:
    """Describe the cluster and the topics asked for."""
    broker = exchange.broker
    asked = request.topics
    if asked is None or (exchange.version == 0 and not asked):
        topics = [_described(broker.topics.get(name), broker) for name in broker.topics.names()]
    else:
        may_create = exchange.version < 4 or request.allow_auto_topic_creation
        topics = [await _one(broker, topic.name, topic.topic_id, may_create=may_create) for topic in asked]
    host, port = exchange.advertised
    node = MetadataResponse.MetadataResponseBroker(node_id=broker.node_id, host=host, port=port, rack=None)
    return MetadataResponse(brokers=[node], cluster_id=broker.cluster_id, controller_id=broker.node_id, topics=topics)


async def _one(
    broker: Broker, name: str | None, topic_id: UUID, *, may_create: bool
) -> MetadataResponse.MetadataResponseTopic:
    try:
        live = (
            broker.topics.by_id(topic_id) if name is None else await broker.topic_or_create(name, may_create=may_create)
        )
    except UnknownTopic as error:
        code = Code.UNKNOWN_TOPIC_ID if name is None else code_of(error)
        return MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=[])
    except TopicError as error:
        return MetadataResponse.MetadataResponseTopic(
            error_code=code_of(error), name=name, topic_id=_NO_ID, partitions=[]
        )
    return _described(live, broker)


def _described(live: LiveTopic, broker: Broker) -> MetadataResponse.MetadataResponseTopic:
    node = broker.node_id
    return MetadataResponse.MetadataResponseTopic(
        name=live.topic.name,
        topic_id=live.topic.id,
        partitions=[
            MetadataResponse.MetadataResponsePartition(
                partition_index=partition.index,
                leader_id=node,
                leader_epoch=partition.leader_epoch,
                replica_nodes=[node],
                isr_nodes=[node],
                offline_replicas=[],
            )
            for partition in live.partitions
        ],
    )
