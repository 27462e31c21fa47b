"""Features that the Kafka endpoint of OCI Streaming lacks, for `oci.kafka=strict`.

Oracle documents compacted topics, idempotent producers, transactions, Kafka Streams, added partitions and "some
administrative APIs" as not implemented, and the Admin API from 0.10.1.0 on. Clients report an API that is not
advertised: "The broker does not support INIT_PRODUCER_ID". Retention and partitions of a stream are fixed. The
service's users, policies and limits replace those of a broker.

Sources: Oracle Cloud Infrastructure, "Using Streaming with Apache Kafka"; UpdateStreamDetails; helidon-io/helidon#6718.
"""

from collections.abc import Iterator

import msgspec

from headrace.kafka.apis.find_coordinator import TRANSACTION
from headrace.kafka.denied import No, Place
from headrace.kafka.errors import Code
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.restriction import Restriction
from headrace.protocol.messages import CreateTopicsRequest, FindCoordinatorRequest
from headrace.security.access.required_acls import ResourceType

REASON = "oci.kafka=strict"
_POLICY, _COMPACT = "cleanup.policy", "compact"
_NO_COMPACTION = No(
    Code.INVALID_CONFIG, f"OCI Streaming has no compacted topics ({REASON}): leave {_POLICY} out, or use delete"
)
_NO_TRANSACTIONS = No(
    Code.UNSUPPORTED_VERSION, f"OCI Streaming has no transactions ({REASON}): leave transactional.id out"
)


class Unsupported(msgspec.Struct, frozen=True):
    """A feature that the endpoint lacks."""

    feature: str
    apis: dict[int, str]
    """API key -> name of the withheld APIs."""
    documented: bool
    """Whether Oracle names it. Others are our interpretation of "some administrative APIs"."""


UNSUPPORTED = (
    Unsupported("Idempotent producers", {22: "InitProducerId"}, documented=True),
    Unsupported(
        "Transactions",
        {
            24: "AddPartitionsToTxn",
            25: "AddOffsetsToTxn",
            26: "EndTxn",
            27: "WriteTxnMarkers",
            28: "TxnOffsetCommit",
            61: "DescribeProducers",
            65: "DescribeTransactions",
            66: "ListTransactions",
        },
        documented=True,
    ),
    Unsupported("Adding partitions", {37: "CreatePartitions"}, documented=True),
    Unsupported(
        "Kafka Streams",
        # It purges repartition topics, and compacts changelogs.
        {21: "DeleteRecords", 88: "StreamsGroupHeartbeat", 89: "StreamsGroupDescribe"},
        documented=True,
    ),
    Unsupported(
        "Group protocols newer than the classic one",
        {
            68: "ConsumerGroupHeartbeat",
            69: "ConsumerGroupDescribe",
            76: "ShareGroupHeartbeat",
            77: "ShareGroupDescribe",
            78: "ShareFetch",
            79: "ShareAcknowledge",
            90: "DescribeShareGroupOffsets",
            91: "AlterShareGroupOffsets",
            92: "DeleteShareGroupOffsets",
        },
        documented=False,
    ),
    Unsupported(
        "Changes of configurations",
        {33: "AlterConfigs", 44: "IncrementalAlterConfigs", 74: "ListConfigResources"},
        documented=False,
    ),
    Unsupported("Disks of brokers", {34: "AlterReplicaLogDirs", 35: "DescribeLogDirs"}, documented=False),
    Unsupported(
        "Replicas and controllers",
        {
            43: "ElectLeaders",
            45: "AlterPartitionReassignments",
            46: "ListPartitionReassignments",
            55: "DescribeQuorum",
            57: "UpdateFeatures",
            64: "UnregisterBroker",
        },
        documented=False,
    ),
    Unsupported(
        "Users, ACLs, quotas and delegation tokens",
        {
            29: "DescribeAcls",
            30: "CreateAcls",
            31: "DeleteAcls",
            38: "CreateDelegationToken",
            39: "RenewDelegationToken",
            40: "ExpireDelegationToken",
            41: "DescribeDelegationToken",
            48: "DescribeClientQuotas",
            49: "AlterClientQuotas",
            50: "DescribeUserScramCredentials",
            51: "AlterUserScramCredentials",
        },
        documented=False,
    ),
)
SUPPORTED = frozenset({0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 23, 32, 36, 42, 47, 60, 75})
"""Keys of the remaining APIs: producers, consumers, classic groups, and topics. A test checks that each registered API
is in one of the two.
"""


def _compacted(request: CreateTopicsRequest, context: RequestContext) -> Iterator[tuple[Place, No]]:
    for topic in request.topics:
        if context.broker.topics.has(topic.name):
            continue
        for item in topic.configs:
            if item.name == _POLICY and _COMPACT in (each.strip() for each in (item.value or "").split(",")):
                yield (ResourceType.TOPIC, topic.name), _NO_COMPACTION


def _transactional(request: FindCoordinatorRequest, _: RequestContext) -> Iterator[tuple[Place, No]]:
    if request.key_type == TRANSACTION:
        for key in (request.key, *request.coordinator_keys):
            yield (ResourceType.TRANSACTIONAL_ID, key), _NO_TRANSACTIONS


STRICT = Restriction(
    reason=REASON,
    withheld=frozenset(key for each in UNSUPPORTED for key in each.apis),
    parts={CreateTopicsRequest.API_KEY: _compacted, FindCoordinatorRequest.API_KEY: _transactional},
)
