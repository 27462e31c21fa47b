"""Metadata (3), versions 0-13.

Behavior
- Each partition's leader is the live broker that recovered its log last. A partition without a live leader is
  LEADER_NOT_AVAILABLE. A single broker leads all partitions.
- The broker that responds names itself the controller, as any broker serves the controller's requests.
- Creates missing topics before the response, if the request and `auto.create.topics.enable` allow it. One request
  creates at most 1,000.
- If Redis does not respond in time, all named topics are LEADER_NOT_AVAILABLE, like a topic that is being created.
- A topic that is named more than once is described once.

Version notes
- 0: an empty list of topics selects all. Later, a null list does.
- 4: the request says whether topics may be created.
- 7: leader epochs. 9: flexible. 10: topic ids. 12: topics by id only, with a null name or, as Java's consumers of
  patterns send it, an empty one.
- 13: an error of the whole request, which is never sent: no client has to start again with its bootstrap servers.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast
from uuid import UUID

import msgspec

from headrace.broker.admin.acl_authorizer import Grants
from headrace.broker.broker import Broker
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.broker.topics.live import LiveTopic
from headrace.kafka.acl_codes import UNASKED, authorized, authorized_on_cluster
from headrace.kafka.denied import No, Place, Refusal, parts
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import referred_names, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_TOPICS
from headrace.membership.view import Leader
from headrace.protocol.encoder import Encoded, EncodedArray
from headrace.protocol.messages import Chunk, MetadataRequest, MetadataResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, UnknownTopic

_NO_ID = UUID(int=0)
_PARTITION_BYTES = 400
"""Memory for one partition while the response is built and sent."""
_MOST_CREATED = 1_000
"""Maximum topics that one request creates. Clients ask again for the missing ones."""

_AT_ONCE = 512
_MOST_VERSIONS = 4
"""Of the encoded topics that are cached, more than clients of one kind use."""
T = TypeVar("T")


def _name(asked: MetadataRequest.MetadataRequestTopic) -> str | None:
    """Return the name of a topic in a request. None: it has an id."""
    return None if not asked.name and asked.topic_id != _NO_ID else asked.name


def _names_of(asked: Iterable[MetadataRequest.MetadataRequestTopic] | None, context: RequestContext) -> Iterable[str]:
    named = ((_name(topic), topic.topic_id) for topic in asked or ())
    return referred_names((topic_id if name is None else name for name, topic_id in named), context)


def _names(request: MetadataRequest, context: RequestContext) -> Iterable[str]:
    return _names_of(request.topics, context)


def _missing(request: MetadataRequest, context: RequestContext) -> Iterable[str]:
    if context.version >= 4 and not request.allow_auto_topic_creation:
        return ()
    broker = context.broker
    if not broker.settings.auto_create_topics_enable:
        return ()
    return (name for name in _names_of(request.topics, context) if not broker.topics.has(name))


NEEDS = (
    topics(Operation.DESCRIBE, _names, shown=True),
    topics(Operation.CREATE, _missing, instead=(Operation.CREATE, ResourceType.CLUSTER)),
)


Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition


def _places(
    asked: MetadataRequest.MetadataRequestTopic, _: MetadataRequest, context: RequestContext
) -> Iterator[Place]:
    return ((ResourceType.TOPIC, name) for name in _names_of((asked,), context))


def _no(asked: MetadataRequest.MetadataRequestTopic, no: No, _: RequestContext) -> Topic:
    # A request by id must not reveal the name or existence of a hidden topic.
    code = Code.UNKNOWN_TOPIC_ID if _name(asked) is None else no.code
    return Topic(error_code=code, name=asked.name, topic_id=asked.topic_id, partitions=[])


def _hide(response: MetadataResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    shown = []
    for topic in response.topics:
        yield
        if not topic.name or grants.allow(NEEDS[0], topic.name):
            shown.append(topic)
    response.topics = shown


def _begin(context: RequestContext) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=None)
            for node_id, host, port in context.nodes
        ],
        cluster_id=context.broker.cluster_id,
        controller_id=context.broker.node_id,
        cluster_authorized_operations=UNASKED,
        topics=[],
    )


REFUSAL = Refusal(take_out=parts("topics", _places, _no, "topics", always=True), hide=_hide, begin=_begin)


@register(MetadataRequest, 0, 13, needs=NEEDS, refusal=REFUSAL, bound=OF_TOPICS, urgent=True)
async def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Describe the cluster and topics."""
    broker = context.broker
    await broker.topics.leading.current()
    pace = context.pace()
    asked = request.topics
    if asked is None or (context.version == 0 and not asked and not context.taken_out):
        await context.turn()
        await context.reserve(sum(len(live.partitions) for live in broker.topics.with_internal()) * _PARTITION_BYTES)
        one = _Described(context, pace, request)
        found = [await one.described(live) async for live in pace.each(broker.topics.with_internal())]
    else:
        # As in Kafka, each topic once. If it has a name, its id does not count.
        named = {(topic.name, topic.topic_id if _name(topic) is None else _NO_ID): None for topic in asked}
        await context.reserve(_size(broker, named))
        one = _Described(context, pace, request)
        found = [await one.topic(name, topic_id) async for name, topic_id in context.parts(named)]
    if request.include_topic_authorized_operations:
        async for topic in pace.each(found):
            if not topic.error_code and topic.name is not None:
                topic.topic_authorized_operations = authorized(context, ResourceType.TOPIC, topic.name)
    answer = _begin(context)
    if request.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = authorized_on_cluster(context)
    answer.topics = found
    return answer


def _size(broker: Broker, named: Iterable[tuple[str | None, UUID]]) -> int:
    found = (broker.topics.find(name if topic_id == _NO_ID else None, topic_id) for name, topic_id in named)
    return sum(len(live.partitions) for live in found if live is not None) * _PARTITION_BYTES


class _Kept(msgspec.Struct, gc=False):
    """Cached descriptions of a topic, valid until a leader or the membership changes."""

    leaders: list[Leader]
    view: int | None
    """Number of the cluster membership if it determines the replicas, or None for unreplicated topics."""
    encoded: dict[int, Topic] = {}
    """By version."""


def _slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))


class PartitionsEncoder:
    """Encode partitions in one version. Those of one leader differ in index and epoch only."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._of_leaders: dict[int, list[bytes]] = {}
        """Bytes around index and epoch, or around the index alone in versions without epochs."""
        self._of_replicas: dict[tuple[int, ...], list[bytes]] = {}
        """The same, by leader and replicas. Without replicas, there is no leader."""
        self._around: dict[Leader, tuple[bytes, bytes]] = {}
        """Bytes before and after the index."""

    def encode(self, leaders: Sequence[Leader], first: int) -> bytes:
        """Encode consecutive partitions from the index `first` on, given the leader of each."""
        around = self._around
        for leader in set(leaders) - around.keys():
            epoch, node = leader
            before, between, *behind = self._of_leaders.get(node) or self._of_leader(node)
            around[leader] = before, between + b"".join(epoch.to_bytes(4, signed=True) + each for each in behind)
        found = ((index, around[each]) for index, each in enumerate(leaders, first))
        return b"".join([b"%b%b%b" % (before, index.to_bytes(4), behind) for index, (before, behind) in found])

    def encode_replicated(self, leaders: Sequence[Leader], copies: Sequence[list[int]], first: int) -> bytes:
        """As `encode`, with the replicas of each partition, the leader first."""
        made = []
        for index, ((epoch, node), replicas) in enumerate(zip(leaders, copies, strict=True), first):
            # The leader may have changed after the replicas were determined.
            key = (node, *replicas)
            around = self._of_replicas.get(key)
            if around is None:
                around = self._of_replicas[key] = self._encoded_around(node, replicas)
            before, between, *behind = around
            made += [before, index.to_bytes(4), between, *(epoch.to_bytes(4, signed=True) + each for each in behind)]
        return b"".join(made)

    def _of_leader(self, node: int) -> list[bytes]:
        found = self._of_leaders[node] = self._encoded_around(node, [node] if node >= 0 else [])
        return found

    def _encoded_around(self, node: int, replicas: list[int]) -> list[bytes]:
        code = Code.NONE if replicas else Code.LEADER_NOT_AVAILABLE
        partition = Partition(
            error_code=code, leader_id=node, replica_nodes=replicas, isr_nodes=replicas, offline_replicas=[]
        )
        return MetadataResponse.encode_around(partition, ("partition_index", "leader_epoch"), self._version)


class _Described:
    """Describe the topics of one request, and create missing ones."""

    def __init__(self, context: RequestContext, pace: TimeSlice, request: MetadataRequest) -> None:
        self._context = context
        self._broker = context.broker
        self._pace = pace
        self._may_create = context.version < 4 or request.allow_auto_topic_creation
        self._with_operations = request.include_topic_authorized_operations
        """Whether each topic has a part that differs by client."""
        self._created = 0
        self._encoder = PartitionsEncoder(context.version)

    async def topic(self, name: str | None, topic_id: UUID) -> MetadataResponse.MetadataResponseTopic:
        try:
            by_id = name is None or topic_id != _NO_ID
            live = self._broker.topics.by_id(topic_id) if by_id else await self._get(name or "")
        except UnknownTopic as error:
            # Java fails at a null name if it has sent an empty one.
            code = Code.UNKNOWN_TOPIC_ID if by_id else code_of(error)
            return MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=[])
        except TopicError as error:
            return MetadataResponse.MetadataResponseTopic(
                error_code=code_of(error), name=name, topic_id=_NO_ID, partitions=[]
            )
        return await self.described(live)

    async def described(self, live: LiveTopic) -> Topic:
        pace = self._pace
        leaders: list[Leader] = []
        for some in _slices(live.partitions):
            leaders += [each.named for each in some]
            if pace.over:
                await pace.rest()
        kept: _Kept | None = live.described
        view = None if live.topic.replication_factor == 1 else self._broker.ownership.number
        if kept is None or kept.leaders != leaders or kept.view != view:
            kept = live.described = _Kept(leaders, view)
        version = self._context.version
        if version in kept.encoded and not self._with_operations:
            return kept.encoded[version]
        topic = Topic(
            name=live.topic.name,
            topic_id=live.topic.id,
            is_internal=live.internal,
            partitions=await self._partitions(kept, live),
        )
        if self._with_operations:
            return topic
        chunks: list[Chunk] = []
        await pace.drain(MetadataResponse.encode_part(topic, version, chunks))
        topic.partitions = []
        if len(kept.encoded) == _MOST_VERSIONS:
            kept.encoded.clear()
        encoded = kept.encoded[version] = cast("Topic", Encoded(topic, b"".join(chunks)))
        return encoded

    async def _partitions(self, kept: _Kept, live: LiveTopic) -> list[Partition]:
        made: list[bytes] = []
        for number, some in enumerate(_slices(kept.leaders)):
            first = number * _AT_ONCE
            if live.topic.replication_factor == 1:
                made.append(self._encoder.encode(some, first))
            else:
                copies = [live.replicas(self._broker.ownership, index) for index in range(first, first + len(some))]
                made.append(self._encoder.encode_replicated(some, copies, first))
            if self._pace.over:
                await self._pace.rest()
        return cast("list[Partition]", EncodedArray(len(kept.leaders), b"".join(made)))

    async def _get(self, name: str) -> LiveTopic:
        may_create = self._may_create and self._created < _MOST_CREATED
        if self._broker.topics.has(name):
            return self._broker.topics.get(name)
        self._created += 1
        live = await self._broker.topic_or_create(name, may_create=may_create)
        self._context.count_change(len(live.partitions), strict_from=None)
        return live
