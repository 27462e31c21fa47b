"""Stream pools."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import asdict

from headrace.broker.broker import Broker
from headrace.oci import ocids
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import pool, pools_shown, server
from headrace.oci.api.resource_responses import (
    CHANGE_HEADERS,
    LIST_HEADERS,
    ChangeCompartmentDetails,
    DefinedTags,
    FreeformTags,
    IfMatch,
    ListQuery,
    Name,
    Ocid,
    RetryTokenHeader,
    changed,
    given,
    host_of,
    is_in,
    messages_endpoint,
    shown_compartment,
    wanted,
)
from headrace.oci.resources.catalog import TokenUse
from headrace.oci.resources.pools import DEFAULT_NAME
from headrace.oci.resources.records import PoolRecord
from headrace.records.fallback.messages import time_text
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType
from headrace.text.addresses import is_everywhere

_HOUR_MS = 3_600_000
_DEFAULT_RETENTION_MS = "604800000"


class KafkaSettings(msgspec.Struct, rename="camel", omit_defaults=True):
    """Kafka settings of a pool. `bootstrapServers` cannot be set."""

    bootstrap_servers: str | None = None
    auto_create_topics_enable: bool | None = None
    log_retention_hours: Annotated[int, msgspec.Meta(ge=1, le=672)] | None = None
    num_partitions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None


class ShownKafkaSettings(msgspec.Struct, rename="camel"):
    """Kafka settings of a pool. `logRetentionHours` is -1 for unlimited retention."""

    bootstrap_servers: str
    auto_create_topics_enable: bool
    log_retention_hours: int
    num_partitions: int


class CustomEncryptionKey(msgspec.Struct, rename="camel"):
    """The stored key, which encrypts nothing."""

    kms_key_id: str | None
    key_state: str


class CustomEncryptionKeyDetails(msgspec.Struct, rename="camel"):
    """A key to store."""

    kms_key_id: Ocid


class PrivateEndpoint(msgspec.Struct, rename="camel"):
    """The stored private endpoint, which has no effect."""

    subnet_id: str | None = None
    private_endpoint_ip: str | None = None
    nsg_ids: list[str] | None = None


class StreamPoolSummary(msgspec.Struct, rename="camel"):
    """A stream pool in a list."""

    id: str
    compartment_id: str
    name: str
    lifecycle_state: str
    time_created: str
    is_private: bool
    freeform_tags: FreeformTags
    defined_tags: DefinedTags
    security_attributes: DefinedTags


class StreamPool(StreamPoolSummary, rename="camel"):
    """A stream pool."""

    kafka_settings: ShownKafkaSettings
    custom_encryption_key: CustomEncryptionKey
    endpoint_fqdn: str
    private_endpoint_settings: PrivateEndpoint | None = None
    lifecycle_state_details: str | None = None


class CreateStreamPoolDetails(msgspec.Struct, rename="camel"):
    """The new pool."""

    name: Name
    compartment_id: Ocid
    kafka_settings: KafkaSettings | None = None
    custom_encryption_key_details: CustomEncryptionKeyDetails | None = None
    private_endpoint_details: PrivateEndpoint | None = None
    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None
    security_attributes: DefinedTags | None = None


class UpdateStreamPoolDetails(msgspec.Struct, rename="camel"):
    """The fields to change."""

    name: Name | None = None
    kafka_settings: KafkaSettings | None = None
    custom_encryption_key_details: CustomEncryptionKeyDetails | None = None
    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None
    security_attributes: DefinedTags | None = None


class ListStreamPoolsQuery(ListQuery, rename="camel", kw_only=True):
    """The filter of a list."""

    compartment_id: Ocid


@operation(
    "CreateStreamPool",
    "POST",
    "/streampools",
    needs=(server(Operation.CREATE),),
    headers=RetryTokenHeader,
    body=CreateStreamPoolDetails,
    answer=StreamPool,
    answer_headers=CHANGE_HEADERS,
)
async def create_stream_pool(call: Call) -> Answer:
    """Create a stream pool: a virtual Kafka cluster with its own topics and groups."""
    details: CreateStreamPoolDetails = call.body
    private = details.private_endpoint_details or PrivateEndpoint()
    token = TokenUse.of(call.headers.opc_retry_token, "CreateStreamPool", call.principal.name, details)
    record, request = await call.service.catalog.create_pool(
        token,
        details.name,
        details.compartment_id,
        _cluster_settings(details.kafka_settings),
        kms_key=_key(details.custom_encryption_key_details) or "",
        subnet=private.subnet_id or "",
        private_ip=private.private_endpoint_ip or "",
        security_groups=tuple(private.nsg_ids or ()),
        freeform_tags=details.freeform_tags or {},
        defined_tags=details.defined_tags or {},
        security_attributes=details.security_attributes or {},
    )
    return changed(call, request, record, _pool(call, record))


@operation(
    "GetStreamPool",
    "GET",
    "/streampools/{streamPoolId}",
    needs=(pool(Operation.DESCRIBE),),
    answer=StreamPool,
    answer_headers=("etag",),
)
async def get_stream_pool(call: Call) -> Answer:
    """Return a stream pool. A deleted one is returned as DELETED for 90 days."""
    record = call.service.catalog.pools.get(call.path["streamPoolId"])
    return Answer(_pool(call, record), {"etag": record.etag})


_SHOWN = pools_shown()


@operation(
    "ListStreamPools",
    "GET",
    "/streampools",
    needs=(_SHOWN,),
    query=ListStreamPoolsQuery,
    answer=list[StreamPoolSummary],
    answer_headers=LIST_HEADERS,
)
async def list_stream_pools(call: Call) -> Answer:
    """List the stream pools of a compartment, including the default pool and deleted ones."""
    query: ListStreamPoolsQuery = call.query
    asked = query.compartment_id
    async with call.listing() as pace:
        records = [
            each
            async for each in pace.each(call.service.catalog.pools.all())
            if is_in(call, each.compartment, asked)
            and call.may(_SHOWN, Resource(ResourceType.CLUSTER, CLUSTER_NAME, each.cluster))
        ]
        page = wanted(call, records, query, lambda record: _ocid(call, record))
    return Answer([_summary(call, record, asked) for record in page.items], page.headers)


@operation(
    "UpdateStreamPool",
    "PUT",
    "/streampools/{streamPoolId}",
    needs=(
        pool(Operation.ALTER_CONFIGS),
        # Streams without a pool are created in the pool of that name.
        server(Operation.CREATE, lambda call: call.body.name == DEFAULT_NAME, f"to the name {DEFAULT_NAME}"),
    ),
    headers=IfMatch,
    body=UpdateStreamPoolDetails,
    answer=StreamPool,
    answer_headers=CHANGE_HEADERS,
)
async def update_stream_pool(call: Call) -> Answer:
    """Change a stream pool's name, Kafka settings or tags."""
    details: UpdateStreamPoolDetails = call.body
    fields = given(
        name=details.name,
        kms_key=_key(details.custom_encryption_key_details),
        freeform_tags=details.freeform_tags,
        defined_tags=details.defined_tags,
        security_attributes=details.security_attributes,
    )
    record, request = await call.service.catalog.update_pool(
        call.path["streamPoolId"], call.headers.if_match, _cluster_settings(details.kafka_settings), fields
    )
    return changed(call, request, record, _pool(call, record))


def _partitions(call: Call) -> int:
    catalog = call.service.catalog
    return sum(each.partitions for each in catalog.streams.in_pool(catalog.pools.get(call.path["streamPoolId"])))


@operation(
    "DeleteStreamPool",
    "DELETE",
    "/streampools/{streamPoolId}",
    needs=(pool(Operation.ALTER),),
    mutated=_partitions,
    headers=IfMatch,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def delete_stream_pool(call: Call) -> Answer:
    """Delete a stream pool and its streams. A compartment's default pool cannot be deleted."""
    request = await call.service.catalog.delete_pool(call.path["streamPoolId"], call.headers.if_match)
    return changed(call, request)


@operation(
    "ChangeStreamPoolCompartment",
    "POST",
    "/streampools/{streamPoolId}/actions/changeCompartment",
    # It may become the compartment's default pool.
    needs=(pool(Operation.ALTER), server(Operation.CREATE)),
    headers=IfMatch,
    body=ChangeCompartmentDetails,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def change_stream_pool_compartment(call: Call) -> Answer:
    """Move a stream pool and its streams to another compartment."""
    request = await call.service.catalog.move_pool(
        call.path["streamPoolId"], call.headers.if_match, call.body.compartment_id
    )
    return changed(call, request)


def _ocid(call: Call, record: PoolRecord) -> str:
    return ocids.make(ocids.STREAM_POOL, call.service.settings.region, record.id)


def _key(details: CustomEncryptionKeyDetails | None) -> str | None:
    return details.kms_key_id if details is not None else None


def _cluster_settings(asked: KafkaSettings | None) -> dict[str, str]:
    if asked is None:
        return {}
    found = given(
        **{
            "auto.create.topics.enable": asked.auto_create_topics_enable,
            "log.retention.hours": asked.log_retention_hours,
            "num.partitions": asked.num_partitions,
        }
    )
    return {name: str(value).lower() for name, value in found.items()}


def _summary(call: Call, record: PoolRecord, asked: str | None) -> StreamPoolSummary:
    return StreamPoolSummary(
        id=_ocid(call, record),
        compartment_id=shown_compartment(call, record.compartment, asked),
        name=record.name,
        lifecycle_state=call.service.catalog.state_of(record),
        time_created=time_text(record.created_ms),
        is_private=bool(record.subnet),
        freeform_tags=record.freeform_tags,
        defined_tags=record.defined_tags,
        security_attributes=record.security_attributes,
    )


def _pool(call: Call, record: PoolRecord) -> StreamPool:
    private = None
    if record.subnet:
        private = PrivateEndpoint(record.subnet, record.private_ip or None, list(record.security_groups) or None)
    return StreamPool(
        **asdict(_summary(call, record, None)),
        kafka_settings=_shown_settings(call, record),
        custom_encryption_key=CustomEncryptionKey(record.kms_key or None, "ACTIVE" if record.kms_key else "NONE"),
        endpoint_fqdn=host_of(messages_endpoint(call)),
        private_endpoint_settings=private,
    )


def _shown_settings(call: Call, record: PoolRecord) -> ShownKafkaSettings:
    broker = call.service.catalog.pools.broker_of(record)
    servers = _bootstrap_servers(call, call.service.broker)
    if broker is None:
        return _settings_left(servers, record.kafka_settings)
    settings = broker.settings
    retention_ms = int(settings.topic_defaults.values.get("retention.ms", _DEFAULT_RETENTION_MS))
    return ShownKafkaSettings(
        bootstrap_servers=servers,
        auto_create_topics_enable=settings.auto_create_topics_enable,
        log_retention_hours=-1 if retention_ms < 0 else -(-retention_ms // _HOUR_MS),
        num_partitions=settings.num_partitions,
    )


def _settings_left(servers: str, kafka: Mapping[str, str]) -> ShownKafkaSettings:
    return ShownKafkaSettings(
        bootstrap_servers=servers,
        auto_create_topics_enable=kafka.get("auto.create.topics.enable") == "true",
        log_retention_hours=int(kafka.get("log.retention.hours", 24)),
        num_partitions=int(kafka.get("num.partitions", 1)),
    )


def _bootstrap_servers(call: Call, broker: Broker) -> str:
    """Return the advertised address. For a listener on all addresses it has the client's host."""
    shown = []
    for host, port in broker.advertised.values():
        name = host_of(call.endpoint) if is_everywhere(host) else host
        shown.append(f"[{name}]:{port}" if ":" in name else f"{name}:{port}")
    return ",".join(shown[:1])
