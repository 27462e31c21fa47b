"""DescribeConfigs (32), versions 1-4.

Behavior
- Describes topics, groups and this broker. Another broker id or an unknown resource type is INVALID_REQUEST.
- A group need not exist. Its configuration applies to consumer groups and share groups. As in Kafka, its entries have
  the broker's settings as synonyms.
- A topic has the read-only key `headrace.streams`: the Redis keys of its partitions' streams. `__consumer_offsets` has
  none.
- A native topic has the read-only key `headrace.native` (JSON). It has the number of records by partition, and for each
  Redis consumer group the numbers of undelivered and pending records by partition.
- A topic with offline partitions has the read-only key `headrace.offline` (JSON): the reasons, by partition.
- The broker has the read-only key `headrace.storage.url`: the address of the storage for Spark's executors, without a
  password. Only clients on the same machine get it, and only in the default virtual cluster. With ACLs, which do not
  apply to direct reads, it needs a storage that requires a password.
- Before version 4, strings have at most 32,767 bytes. Longer values, such as `headrace.streams` of 2,000 partitions,
  are omitted.
- A resource that is named more than once is described once.

Version notes
- 1: sources and synonyms. 3: documentation and types. 4: flexible.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from headrace.broker.admin.group_configs import LONGEST_NAME
from headrace.broker.broker import Broker
from headrace.broker.config.keys import BROKER_KEYS
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster, groups, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, ResourceType
from headrace.topics.config import describe
from headrace.topics.config_keys import ConfigEntry, Source
from headrace.topics.errors import TopicError

TOPIC, BROKER, GROUP = 2, 4, 32
STREAMS = "headrace.streams"
"""Name of the read-only topic configuration that holds stream keys in partition order.

They are separated by commas. If a key contains a comma or begins with `[`, the value is a JSON array.
"""
NATIVE = "headrace.native"
OFFLINE = "headrace.offline"
STORAGE_URL = "headrace.storage.url"

_STATIC_BROKER, _DEFAULT = 4, 5
SOURCES = {Source.TOPIC: 1, Source.GROUP: 8, Source.BROKER: _STATIC_BROKER, Source.DEFAULT: _DEFAULT}
"""The protocol's number of each source."""
_STRING, _LIST = 2, 7
_FLEXIBLE = 4
_LONGEST = 32_767
"""Maximum bytes of a string in versions that are not flexible."""
_RESOURCE_BYTES = 32 << 10
"""Memory for the entries of a resource while the response is built, with all optional parts."""
_GROUP_BYTES = 14 << 10
"""The same for a group."""

Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


def topics_in(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the topics of a request about configurations."""
    return (each.resource_name for each in request.resources if each.resource_type == TOPIC)


def groups_in(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the groups of a request about configurations."""
    return (each.resource_name for each in request.resources if each.resource_type == GROUP)


def names_broker(request: Any) -> bool:
    """Return whether a request names a broker."""
    return any(each.resource_type == BROKER for each in request.resources)


def places_of(resource: Any, _: Any, __: RequestContext) -> Iterator[Place]:
    """Yield the resources for which a request about a configuration needs rights."""
    if resource.resource_type == TOPIC:
        yield ResourceType.TOPIC, resource.resource_name
    elif resource.resource_type == GROUP:
        yield ResourceType.GROUP, resource.resource_name
    elif resource.resource_type == BROKER:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _key_of(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _refused(resource: DescribeConfigsRequest.DescribeConfigsResource, code: Code, message: str | None) -> Result:
    return Result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


@register(
    DescribeConfigsRequest,
    1,
    4,
    needs=(
        topics(Operation.DESCRIBE_CONFIGS, topics_in),
        groups(Operation.DESCRIBE_CONFIGS, groups_in),
        cluster(Operation.DESCRIBE_CONFIGS, names_broker),
    ),
    each=Each("resources", "results", _refused, places_of, key=_key_of),
)
async def handle(request: DescribeConfigsRequest, context: RequestContext) -> AnswerItem:
    """Describe the configuration of topics, of groups and of the broker."""
    named = {_key_of(resource): resource for resource in request.resources}
    known = sum(1 for kind, name in named if kind == BROKER or (kind == TOPIC and context.broker.topics.has(name)))
    of_groups = sum(1 for kind, _ in named if kind == GROUP)
    natives: dict[str, str | TopicError] = {}
    async for resource in context.pace().each(named.values()):
        if _is_native(context.broker, resource):
            natives[resource.resource_name] = await _native(context.broker, resource.resource_name)
    told = sum(len(each) for each in natives.values() if isinstance(each, str))
    await context.reserve(known * _RESOURCE_BYTES + of_groups * _GROUP_BYTES + told)

    def show(resource: DescribeConfigsRequest.DescribeConfigsResource) -> Result:
        entries = _entries(
            context, resource, natives, synonyms=request.include_synonyms, doc=request.include_documentation
        )
        if context.version < _FLEXIBLE:
            entries = [entry for entry in entries if len((entry.value or "").encode()) <= _LONGEST]
        return Result(resource_type=resource.resource_type, resource_name=resource.resource_name, configs=entries)

    return show


def _is_native(broker: Broker, resource: DescribeConfigsRequest.DescribeConfigsResource) -> bool:
    wanted = resource.configuration_keys
    known = resource.resource_type == TOPIC and broker.native_groups.has(resource.resource_name)
    return known and (wanted is None or NATIVE in wanted)


async def _native(broker: Broker, topic: str) -> str | TopicError:
    try:
        return await broker.native_groups.describe(topic)
    except TopicError as error:
        return error


def _entries(
    context: RequestContext,
    resource: DescribeConfigsRequest.DescribeConfigsResource,
    natives: Mapping[str, str | TopicError],
    *,
    synonyms: bool,
    doc: bool,
) -> list[Entry]:
    broker = context.broker
    if resource.resource_type == TOPIC:
        entries = list(_topic(broker, resource.resource_name, synonyms=synonyms, doc=doc))
        told = natives.get(resource.resource_name)
        if isinstance(told, TopicError):
            raise told
        if told is not None:
            entries.append(_shown(NATIVE, told, _STRING, "Records and consumer groups in Redis." if doc else None))
    elif resource.resource_type == GROUP:
        check_group_name(resource.resource_name)
        described = broker.group_configs.describe(resource.resource_name)
        entries = [_entry(found, synonyms=synonyms, doc=doc) for found in described]
    elif resource.resource_type == BROKER and resource.resource_name in ("", str(broker.node_id)):
        entries = list(_broker(broker, synonyms=synonyms, doc=doc))
        if broker.storage_url is not None and _is_near(context.channel.client_host):
            entries.append(_shown(STORAGE_URL, broker.storage_url, _STRING, "The storage, for Spark." if doc else None))
    else:
        raise RequestError(
            Code.INVALID_REQUEST,
            f"resource {resource.resource_name!r} of type {resource.resource_type}: "
            f"there are topics, groups and broker {broker.node_id}",
        )
    wanted = resource.configuration_keys
    if wanted is None:
        return entries
    names = frozenset(wanted)
    return [entry for entry in entries if entry.name in names]


def check_group_name(name: str) -> None:
    """Raise RequestError for a group that cannot have a configuration."""
    if not name:
        raise RequestError(Code.INVALID_REQUEST, "the name of a group must not be empty")
    if len(name) > LONGEST_NAME:
        raise RequestError(
            Code.INVALID_REQUEST, f"the name of a group with a configuration has at most {LONGEST_NAME} characters"
        )


def _is_near(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _topic(broker: Broker, name: str, *, synonyms: bool, doc: bool) -> Iterable[Entry]:
    live = broker.topics.get(name)
    for found in describe(live.topic.config, broker.settings.topic_defaults):
        yield _entry(found, synonyms=synonyms, doc=doc)
    if not broker.topics.is_stored(live):
        return
    streams = live.topic.streams
    plain = not any("," in stream or stream.startswith("[") for stream in streams)
    text = ",".join(streams) if plain else msgspec.json.encode(streams).decode()
    yield _shown(STREAMS, text, _LIST, "Redis keys of the partitions' streams." if doc else None)
    offline = {str(each.index): each.offline for each in live.partitions if each.offline is not None}
    if offline:
        reasons = msgspec.json.encode(offline).decode()
        yield _shown(OFFLINE, reasons, _STRING, "Why partitions are offline, by number." if doc else None)


def _entry(found: ConfigEntry, *, synonyms: bool, doc: bool) -> Entry:
    return Entry(
        name=found.key.name,
        value=found.value,
        read_only=False,
        config_source=SOURCES[found.source],
        is_sensitive=False,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=SOURCES[source])
            for name, value, source in found.synonyms
        ]
        if synonyms
        else [],
        config_type=int(found.key.type),
        documentation=found.key.doc if doc else None,
    )


def _shown(name: str, value: str, kind: int, doc: str | None) -> Entry:
    return Entry(
        name=name,
        value=value,
        read_only=True,
        config_source=_DEFAULT,
        is_sensitive=False,
        synonyms=[],
        config_type=kind,
        documentation=doc,
    )


def _broker(broker: Broker, *, synonyms: bool, doc: bool) -> Iterable[Entry]:
    settings = broker.settings
    for key in BROKER_KEYS:
        source = _STATIC_BROKER if key.name in settings.given else _DEFAULT
        value = settings.value(key)
        layers = [(value, source)]
        if source == _STATIC_BROKER and key.default is not None:
            layers.append((key.default, _DEFAULT))
        yield Entry(
            name=key.name,
            value=value,
            read_only=True,
            config_source=source,
            is_sensitive=False,
            synonyms=[
                DescribeConfigsResponse.DescribeConfigsSynonym(name=key.name, value=text, source=layer)
                for text, layer in layers
            ]
            if synonyms
            else [],
            config_type=int(key.type),
            documentation=key.doc if doc else None,
        )
