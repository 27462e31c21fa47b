"""Hostile requests: from the message tables every array and string at its extremes, and others written by hand.

Each API has a seed, a meaningful request to the attacked server. The corpus derives these from it, for the oldest and
the newest version:

- every array as long as 1 MiB allows, and as long as the server allows
- every string and byte field as long as 1 MiB allows
- every name repeated
- as many requests as 1 MiB holds, sent ahead

Where an API has come to name topics by their ids, the last version with names is attacked, too.
"""

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Any
from uuid import UUID

import msgspec

from headrace.kafka.server.registry import APIS
from headrace.protocol import headers
from headrace.protocol import messages as m
from headrace.protocol.errors import EncodeError
from headrace.protocol.message import Message
from headrace.protocol.messages import REQUESTS, TABLES
from headrace.protocol.notation import ZERO_UUID, Field, Structure

MIB = 1 << 20
ELEMENTS = 10_000
"""The server's `headrace.request.max.elements`."""
TOPIC, WIDE, GROUP = "hostile", "hostile-wide", "hostile-group"
WIDE_PARTITIONS = 200
BY_NAME = {
    m.ProduceRequest.API_KEY: 12,
    m.FetchRequest.API_KEY: 12,
    m.OffsetCommitRequest.API_KEY: 9,
    m.OffsetFetchRequest.API_KEY: 9,
}
"""The last version of an API that names topics, and not their ids."""
IDS: dict[str, UUID] = {}
"""The ids of the attacked server's topics."""
_SIZE = Struct(">i")
_TABLES = {table.root.name: table for table in TABLES}


class Attack(msgspec.Struct, frozen=True):
    """Bytes to send."""

    name: str
    api: int
    frames: bytes | Callable[[], bytes]
    """Whole frames, or the beginning of one; or what makes them, where that takes long."""
    connections: int = 1
    reads: bool = True
    """Whether the client takes the answers."""
    answers: int = 1
    """How many it expects."""

    def made(self) -> bytes:
        """The frames. Call it before anything is measured."""
        return self.frames if isinstance(self.frames, bytes) else self.frames()


def frame(api: int, version: int, body: bytes) -> bytes:
    """Return a request in wire format."""
    head = headers.encode_request_header(api, version, 7, "attacker")
    return _SIZE.pack(len(head) + len(body)) + head + body


def encoded(request: Message, version: int) -> bytes:
    """A request's frame."""
    return frame(request.API_KEY, version, b"".join(request.encode(version)))


def _shares() -> tuple[Callable[[], Message], ...]:
    """What the APIs of share groups are asked."""
    group, member = "hostile-shares", "hostile"
    offsets = m.DescribeShareGroupOffsetsRequest
    altered = m.AlterShareGroupOffsetsRequest

    def fetch() -> Message:
        request = m.ShareFetchRequest
        part = request.FetchPartition(partition_index=0, acknowledgement_batches=[])
        forgotten = request.ForgottenTopic(topic_id=IDS.get(WIDE, ZERO_UUID), partitions=[1])
        return request(
            group_id=group,
            member_id=member,
            share_session_epoch=0,
            max_bytes=64 << 20,
            max_records=1 << 30,
            topics=[request.FetchTopic(topic_id=IDS.get(TOPIC, ZERO_UUID), partitions=[part])],
            forgotten_topics_data=[forgotten],
        )

    def acknowledge() -> Message:
        request = m.ShareAcknowledgeRequest
        batch = request.AcknowledgementBatch(first_offset=0, last_offset=1 << 62, acknowledge_types=[1])
        part = request.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        topic = request.AcknowledgeTopic(topic_id=IDS.get(TOPIC, ZERO_UUID), partitions=[part])
        return request(group_id=group, member_id=member, share_session_epoch=1, topics=[topic])

    def describe() -> Message:
        topic = offsets.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])
        return offsets(groups=[offsets.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=[topic])])

    def alter() -> Message:
        part = altered.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=1)
        topic = altered.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[part])
        return altered(group_id="hostile-altered", topics=[topic])

    def delete() -> Message:
        request = m.DeleteShareGroupOffsetsRequest
        named = request.DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)
        return request(group_id="hostile-altered", topics=[named])

    return (
        lambda: m.ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=0, rack_id="hostile", subscribed_topic_names=[WIDE]
        ),
        lambda: m.ShareGroupDescribeRequest(group_ids=[group]),
        fetch,
        acknowledge,
        describe,
        alter,
        delete,
    )


def _seeds() -> dict[int, Callable[[], Message]]:
    """What each API is asked, about things that are there."""
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=64 << 20)
    return {
        made().API_KEY: made
        for made in (
            lambda: m.ProduceRequest(
                acks=1,
                timeout_ms=1,
                topic_data=[
                    m.ProduceRequest.TopicProduceData(
                        name=TOPIC,
                        topic_id=IDS.get(TOPIC, ZERO_UUID),
                        partition_data=[m.ProduceRequest.PartitionProduceData(index=-5, records=b"no batch")],
                    )
                ],
            ),
            lambda: m.FetchRequest(
                replica_id=-1,
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=64 << 20,
                topics=[
                    m.FetchRequest.FetchTopic(topic=TOPIC, topic_id=IDS.get(TOPIC, ZERO_UUID), partitions=[partition])
                ],
            ),
            lambda: m.ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    m.ListOffsetsRequest.ListOffsetsTopic(
                        name=TOPIC,
                        partitions=[m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=1)],
                    )
                ],
            ),
            lambda: m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name=WIDE)], allow_auto_topic_creation=False
            ),
            lambda: m.OffsetCommitRequest(
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    m.OffsetCommitRequest.OffsetCommitRequestTopic(
                        name=WIDE,
                        topic_id=IDS.get(WIDE, ZERO_UUID),
                        partitions=[
                            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                                partition_index=0, committed_offset=0, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            lambda: m.OffsetFetchRequest(
                group_id=GROUP,
                topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic(name=WIDE, partition_indexes=[0])],
                groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=None)],
            ),
            lambda: m.FindCoordinatorRequest(key=GROUP, key_type=0, coordinator_keys=[GROUP]),
            lambda: m.JoinGroupRequest(
                group_id="hostile-joined",
                session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000,
                member_id="",
                protocol_type="consumer",
                protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            lambda: m.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="nobody"),
            lambda: m.LeaveGroupRequest(
                group_id=GROUP,
                member_id="nobody",
                members=[m.LeaveGroupRequest.MemberIdentity(member_id="nobody", reason=None)],
            ),
            lambda: m.SyncGroupRequest(
                group_id=GROUP,
                generation_id=1,
                member_id="nobody",
                assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id="nobody", assignment=b"")],
            ),
            lambda: m.DescribeGroupsRequest(groups=[GROUP]),
            lambda: m.ConsumerGroupHeartbeatRequest(
                group_id="hostile-consumers",
                member_id="hostile",
                member_epoch=0,
                instance_id="hostile",
                rack_id="hostile",
                rebalance_timeout_ms=6_000,
                subscribed_topic_names=[WIDE],
                subscribed_topic_regex="hostile.*",
                server_assignor="uniform",
                topic_partitions=[],
            ),
            lambda: m.ConsumerGroupDescribeRequest(group_ids=["hostile-consumers"]),
            lambda: m.ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"]),
            lambda: m.SaslHandshakeRequest(mechanism="PLAIN"),
            lambda: m.ApiVersionsRequest(client_software_name="a", client_software_version="1"),
            lambda: m.CreateTopicsRequest(
                topics=[
                    m.CreateTopicsRequest.CreatableTopic(
                        name=TOPIC,
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[
                            m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
                        ],
                        configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="1")],
                    )
                ],
                timeout_ms=1,
                validate_only=True,
            ),
            lambda: m.DeleteTopicsRequest(
                topics=[m.DeleteTopicsRequest.DeleteTopicState(name="nothing")], topic_names=["nothing"], timeout_ms=1
            ),
            lambda: m.DeleteRecordsRequest(
                topics=[
                    m.DeleteRecordsRequest.DeleteRecordsTopic(
                        name=WIDE,
                        partitions=[m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)],
                    )
                ],
                timeout_ms=1,
            ),
            lambda: m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
            lambda: m.OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                        topic=WIDE,
                        partitions=[
                            m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                                partition=0, current_leader_epoch=-1, leader_epoch=0
                            )
                        ],
                    )
                ],
            ),
            lambda: m.DescribeConfigsRequest(
                resources=[
                    m.DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=4, resource_name="", configuration_keys=None
                    )
                ],
                include_synonyms=True,
                include_documentation=True,
            ),
            lambda: m.DescribeConfigsRequest(
                resources=[
                    m.DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=32, resource_name=GROUP, configuration_keys=None
                    )
                ],
                include_synonyms=True,
                include_documentation=True,
            ),
            lambda: m.SaslAuthenticateRequest(auth_bytes=b""),
            lambda: m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=WIDE)],
                response_partition_limit=2_000,
                cursor=m.DescribeTopicPartitionsRequest.Cursor(topic_name=WIDE, partition_index=0),
            ),
            lambda: m.DescribeLogDirsRequest(
                topics=[m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=WIDE, partitions=[0])]
            ),
            lambda: m.CreatePartitionsRequest(
                topics=[
                    m.CreatePartitionsRequest.CreatePartitionsTopic(
                        name=TOPIC,
                        count=1,
                        assignments=[m.CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[1])],
                    )
                ],
                timeout_ms=1,
                validate_only=True,
            ),
            lambda: m.DeleteGroupsRequest(groups_names=["nobody"]),
            lambda: m.AlterConfigsRequest(
                resources=[
                    m.AlterConfigsRequest.AlterConfigsResource(
                        resource_type=2,
                        resource_name=TOPIC,
                        configs=[m.AlterConfigsRequest.AlterableConfig(name="retention.ms", value="-1")],
                    )
                ],
                validate_only=True,
            ),
            lambda: m.IncrementalAlterConfigsRequest(
                resources=[
                    m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=2,
                        resource_name=TOPIC,
                        configs=[
                            m.IncrementalAlterConfigsRequest.AlterableConfig(
                                name="retention.ms", config_operation=0, value="-1"
                            )
                        ],
                    )
                ],
                validate_only=True,
            ),
            lambda: m.AlterConfigsRequest(
                resources=[
                    m.AlterConfigsRequest.AlterConfigsResource(
                        resource_type=32,
                        resource_name=GROUP,
                        configs=[m.AlterConfigsRequest.AlterableConfig(name="share.session.timeout.ms", value="50000")],
                    )
                ],
                validate_only=False,
            ),
            lambda: m.IncrementalAlterConfigsRequest(
                resources=[
                    m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=32,
                        resource_name=GROUP,
                        configs=[
                            m.IncrementalAlterConfigsRequest.AlterableConfig(
                                name="share.auto.offset.reset", config_operation=0, value="by_duration:P1DT1H1M1.1S"
                            )
                        ],
                    )
                ],
                validate_only=False,
            ),
            lambda: m.OffsetDeleteRequest(
                group_id=GROUP,
                topics=[
                    m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                        name=WIDE,
                        partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=-1)],
                    )
                ],
            ),
            lambda: m.DescribeClusterRequest(include_cluster_authorized_operations=True),
            lambda: m.DescribeAclsRequest(
                resource_type_filter=1,
                resource_name_filter="nobody",
                pattern_type_filter=1,
                principal_filter="User:nobody",
                host_filter="*",
                operation=1,
                permission_type=1,
            ),
            lambda: m.CreateAclsRequest(
                creations=[
                    m.CreateAclsRequest.AclCreation(
                        resource_type=2,
                        resource_name=TOPIC,
                        principal="User:nobody",
                        host="*",
                        operation=3,
                        permission_type=3,
                    )
                ]
            ),
            lambda: m.DeleteAclsRequest(
                filters=[
                    m.DeleteAclsRequest.DeleteAclsFilter(
                        resource_type_filter=2,
                        resource_name_filter="nobody",
                        principal_filter="User:nobody",
                        host_filter="*",
                        operation=1,
                        permission_type=1,
                    )
                ]
            ),
            lambda: m.DescribeUserScramCredentialsRequest(
                users=[m.DescribeUserScramCredentialsRequest.UserName(name="nobody")]
            ),
            lambda: m.AlterUserScramCredentialsRequest(
                deletions=[m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="nobody", mechanism=1)],
                upsertions=[
                    m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                        name="hostile", mechanism=0, iterations=4096, salt=b"s" * 16, salted_password=b"p"
                    )
                ],
            ),
            lambda: m.DescribeClientQuotasRequest(
                components=[
                    m.DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match="nobody")
                ],
                strict=False,
            ),
            lambda: m.AlterClientQuotasRequest(
                entries=[
                    m.AlterClientQuotasRequest.EntryData(
                        entity=[m.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="nobody")],
                        ops=[m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e12, remove=False)],
                    )
                ],
                validate_only=False,
            ),
            lambda: m.WriteTxnMarkersRequest(
                markers=[
                    m.WriteTxnMarkersRequest.WritableTxnMarker(
                        producer_id=1,
                        producer_epoch=0,
                        transaction_result=True,
                        topics=[
                            m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=WIDE, partition_indexes=[0]),
                        ],
                        coordinator_epoch=0,
                    )
                ]
            ),
            lambda: m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="nothing",
                v3_and_below_producer_id=1,
                v3_and_below_producer_epoch=0,
                v3_and_below_topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])],
            ),
            lambda: m.AddOffsetsToTxnRequest(
                transactional_id="nothing", producer_id=1, producer_epoch=0, group_id=GROUP
            ),
            lambda: m.EndTxnRequest(transactional_id="nothing", producer_id=1, producer_epoch=0, committed=True),
            lambda: m.TxnOffsetCommitRequest(
                transactional_id="nothing",
                group_id=GROUP,
                producer_id=1,
                producer_epoch=0,
                topics=[
                    m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                        name=WIDE,
                        partitions=[
                            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                                partition_index=0, committed_offset=0, committed_metadata="note"
                            )
                        ],
                    )
                ],
            ),
            lambda: m.DescribeTransactionsRequest(transactional_ids=["nothing"]),
            lambda: m.ListTransactionsRequest(
                state_filters=["Ongoing"], producer_id_filters=[1], transactional_id_pattern="(.*a){20}"
            ),
            lambda: m.DescribeProducersRequest(
                topics=[m.DescribeProducersRequest.TopicRequest(name=WIDE, partition_indexes=[0])]
            ),
            lambda: m.ElectLeadersRequest(
                topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic=WIDE, partitions=[0])], timeout_ms=1
            ),
            lambda: m.AlterPartitionReassignmentsRequest(
                topics=[
                    m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                        name=WIDE,
                        partitions=[
                            m.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1])
                        ],
                    )
                ],
                timeout_ms=1,
            ),
            lambda: m.ListPartitionReassignmentsRequest(
                topics=[
                    m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                        name=WIDE, partition_indexes=[0]
                    )
                ],
                timeout_ms=1,
            ),
            lambda: m.AlterReplicaLogDirsRequest(
                dirs=[
                    m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                        path="redis",
                        topics=[m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=WIDE, partitions=[0])],
                    )
                ]
            ),
            lambda: m.DescribeQuorumRequest(
                topics=[
                    m.DescribeQuorumRequest.TopicData(
                        topic_name="__cluster_metadata",
                        partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)],
                    )
                ]
            ),
            lambda: m.UpdateFeaturesRequest(
                feature_updates=[
                    m.UpdateFeaturesRequest.FeatureUpdateKey(feature="transaction.version", max_version_level=1)
                ],
                validate_only=True,
            ),
            lambda: m.ListConfigResourcesRequest(resource_types=[2, 4]),
        )
    } | {made().API_KEY: made for made in _shares()}


SEEDS = _seeds()


Maker = Callable[[], Attack | None]
"""Makes an attack, which takes long; None where the version has no room for it."""


def attacks(api: int) -> Iterator[Maker]:
    """All attacks by one API, but for those made by hand."""
    known = APIS[api]
    seed = SEEDS[api]
    table = _TABLES[REQUESTS[api].__name__]
    oldest = max(known.oldest, known.refused_below)
    for version in sorted({oldest, BY_NAME.get(api, oldest), known.newest}):
        paths = list(_paths(table.root, version))
        for path in paths:
            yield from _at(api, version, seed, path)
        one = encoded(seed(), version)
        yield partial(_ahead, api, version, one, reads=False)
        yield partial(_ahead, api, version, one, reads=True)
        yield from _no_messages(api, version, one, table.flexible_from)
    yield lambda: Attack("announced and half sent", api, _SIZE.pack(100 << 20) + one[4:], connections=12, reads=False)


def _ahead(api: int, version: int, one: bytes, *, reads: bool) -> Attack:
    """As many requests as 1 MiB holds, without waiting for an answer."""
    count = MIB // len(one)
    if reads:
        return Attack(f"v{version} sent ahead", api, one * count, answers=count)
    return Attack(f"v{version} sent ahead, unread", api, one * count, reads=False)


def _no_messages(api: int, version: int, usual: bytes, flexible_from: int) -> Iterator[Maker]:
    """Bodies that no table makes: numbers without an end, lengths of what is not there, a mebibyte of tagged fields.

    `usual` is the frame of a request that means something.
    """

    def plain(what: str, body: bytes) -> Attack:
        return Attack(f"v{version} {what}", api, frame(api, version, body))

    def tagged(what: str, begin: bytes) -> Attack:
        # Tags of three bytes without content, in order (KIP-482).
        count = (MIB - 1024) // 4
        tags = b"".join(bytes((each & 127 | 128, each >> 7 & 127 | 128, each >> 14, 0)) for each in range(count))
        made = begin + bytes((count & 127 | 128, count >> 7 & 127 | 128, count >> 14)) + tags
        return Attack(f"v{version} tagged fields {what}", api, _SIZE.pack(len(made)) + made)

    for what, piece, times in (
        ("a number without an end", b"\x80", MIB - 512),
        ("the largest short numbers", b"\xff\xff\xff\xff\x0f", MIB // 5 - 512),
        ("the largest lengths", b"\x7f\xff\xff\xff", MIB // 4 - 512),
        ("zeros", b"\0", MIB - 512),
        ("ones", b"\1", MIB - 512),
        ("twos", b"\2", MIB - 512),
        ("one length", b"\x7f\xff\xff\xff", 1),
    ):
        yield lambda what=what, piece=piece, times=times: plain(what, piece * times)  # type: ignore[misc]
    if version >= flexible_from:
        head = headers.encode_request_header(api, version, 7, "attacker")[:-1]
        yield lambda: tagged("before it", head)
        yield lambda: tagged("behind it", usual[_SIZE.size : -1])


def _paths(struct: Structure, version: int, before: tuple[Field, ...] = ()) -> Iterator[tuple[Field, ...]]:
    """Every field that can be long, with the arrays and structures that contain it."""
    for field in struct.fields:
        if version not in field.versions:
            continue
        path = (*before, field)
        if field.is_array or field.kind in {"string", "bytes", "records"}:
            yield path
        if field.struct is not None:
            yield from _paths(field.struct, version, path)


def _at(api: int, version: int, seed: Callable[[], Message], path: tuple[Field, ...]) -> Iterator[Maker]:
    """What one field can hold at most."""
    name = f"v{version} " + ".".join(field.name for field in path)
    *before, last = path
    holder = _descend(seed(), before)
    if holder is None:
        return

    def framed(what: str, body: bytes) -> Attack:
        return Attack(f"{name}: {what}", api, frame(api, version, body))

    def long(length: int) -> Attack | None:
        body = _encode(_with(seed, before, last, "x" * length if last.kind == "string" else bytes(length)), version)
        return None if body is None else framed(f"{length} bytes", body)

    def many(wanted: int, element: Any, what: str) -> Attack | None:
        body = _encode(_with(seed, before, last, [element] * wanted), version)
        if body is None:
            return None
        # Longer than 1 MiB where the smallest elements are large: cut down to what fits.
        count = wanted if len(body) <= MIB else max(1, wanted * MIB // len(body) - 1)
        if count < wanted:
            body = _encode(_with(seed, before, last, [element] * count), version)
            assert body is not None
        return framed(f"{count} {what}", body)

    def different() -> Attack | None:
        elements = _distinct(last, sample, ELEMENTS - 100, version)
        if elements is None:
            return None
        body = _encode(_with(seed, before, last, elements), version)
        return None if body is None or len(body) > MIB else framed(f"{len(elements)} different ones", body)

    if not last.is_array:
        if last.kind == "string":
            yield lambda: long(32_767)
        yield lambda: long(MIB - 512)
        return
    present = getattr(holder, last.name)
    sample = present[0] if present else _plain(api, last)
    empty = _plain(api, last)
    yield lambda: many(ELEMENTS // 2, sample, "named again")
    yield lambda: many(ELEMENTS - 100, empty, "empty ones")
    yield lambda: many(MIB // 2, empty, "empty ones")
    yield different


def _descend(message: Any, path: list[Field]) -> Any:
    for field in path:
        message = getattr(message, field.name)
        if field.is_array:
            if not message:
                return None
            message = message[0]
        if message is None:
            return None
    return message


def _with(seed: Callable[[], Message], before: list[Field], last: Field, value: Any) -> Message:
    made = seed()
    setattr(_descend(made, before), last.name, value)
    return made


def _plain(api: int, array: Field) -> Any:
    """The smallest element of an array."""
    if array.struct is not None:
        return _empty(api, array.struct)
    return {"string": "", "bytes": b"", "bool": False}.get(array.kind, 0)


def _empty(api: int, struct: Structure) -> Any:
    made: Callable[..., Any] = getattr(REQUESTS[api], struct.name)
    return made(**{field.name: _least(api, field) for field in struct.fields})


def _least(api: int, field: Field) -> Any:
    if field.is_array:
        return []
    if field.struct is not None:
        return _empty(api, field.struct)
    zero = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": field.default}
    return zero.get(field.kind, 0)


def _distinct(array: Field, sample: Any, count: int, version: int) -> list[Any] | None:
    """Elements that differ in what names them."""
    if array.struct is None:
        return [f"n{number}" for number in range(count)] if array.kind == "string" else None
    if array.kind in {"int32", "int64"}:
        return list(range(count))
    there = [field for field in array.struct.fields if version in field.versions]
    for field in there:
        if field.kind == "string" and not field.is_array and isinstance(getattr(sample, field.name), str):
            return [msgspec.structs.replace(sample, **{field.name: f"n{number}"}) for number in range(count // 3)]
        if field.name in {"partition", "partition_index", "index"}:
            return [
                msgspec.structs.replace(sample, **{field.name: number % WIDE_PARTITIONS}) for number in range(count)
            ]
    for field in there:
        if field.kind == "uuid":
            return [msgspec.structs.replace(sample, **{field.name: UUID(int=number)}) for number in range(count)]
    return None


def _encode(message: Message, version: int) -> bytes | None:
    """A body; None when the version has no room for it."""
    try:
        return b"".join(message.encode(version))
    except EncodeError:
        return None
