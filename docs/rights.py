"""The matrix of docs/rights.md: what each request does to records, offsets and rights, next to the rights it needs."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from headrace.console import views
from headrace.console.metrics import NEEDS as METRICS
from headrace.console.registry import PAGES
from headrace.kafka import apis
from headrace.kafka.server.registry import APIS
from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS
from headrace.security.access.required_acls import Operation, ResourceType, Rules


class Effect(Enum):
    """What a request does."""

    READS = "reads records"
    WRITES = "writes records"
    ENDS = "ends transactions"
    MOVES = "moves records"
    DELETES = "deletes records"
    EXPIRES = "deletes records by retention"
    ADOPTS = "adopts a Redis Stream"
    SKIPS = "moves committed offsets"
    FORGETS = "deletes committed offsets"
    CREATES = "creates"
    CHANGES = "changes"
    GRANTS = "changes rights"
    SHOWS = "describes"
    LOGS_IN = "logs in"


class Place(NamedTuple):
    """A right: an operation on a type of resources."""

    operation: Operation
    type: ResourceType


_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LEAST: dict[Effect, tuple[frozenset[Place], ...]] = {
    Effect.READS: (frozenset({Place(Operation.READ, _TOPIC)}),),
    Effect.WRITES: (frozenset({Place(Operation.WRITE, _TOPIC)}),),
    Effect.ENDS: (
        frozenset({Place(Operation.ALTER, _CLUSTER)}),
        frozenset({Place(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)}),
    ),
    Effect.MOVES: (frozenset({Place(each, _TOPIC) for each in (Operation.READ, Operation.DELETE, Operation.CREATE)}),),
    # The administrator of a virtual cluster grants themselves what is missing: its Alter has every right there.
    Effect.DELETES: (frozenset({Place(Operation.DELETE, _TOPIC)}), frozenset({Place(Operation.ALTER, _CLUSTER)})),
    Effect.EXPIRES: (
        frozenset({Place(Operation.ALTER_CONFIGS, _TOPIC)}),
        frozenset({Place(Operation.ALTER_CONFIGS, _CLUSTER)}),
    ),
    Effect.ADOPTS: (frozenset({Place(Operation.ALTER, _CLUSTER), Place(Operation.CREATE, _TOPIC)}),),
    Effect.SKIPS: (frozenset({Place(Operation.READ, _GROUP), Place(Operation.READ, _TOPIC)}),),
    Effect.FORGETS: (frozenset({Place(Operation.DELETE, _GROUP)}),),
    Effect.GRANTS: (frozenset({Place(Operation.ALTER, _CLUSTER)}),),
}
"""The rights without which nothing has an effect: one of these sets."""

_E = Effect
EFFECTS: dict[str, dict[str, tuple[Effect, ...]]] = {
    "Kafka": {
        "Produce": (_E.WRITES,),
        "Fetch": (_E.READS,),
        "OffsetCommit": (_E.SKIPS,),
        "TxnOffsetCommit": (_E.SKIPS,),
        "CreateTopics": (_E.CREATES, _E.ADOPTS),
        "CreatePartitions": (_E.CHANGES,),
        "DeleteTopics": (_E.DELETES,),
        "DeleteRecords": (_E.DELETES,),
        "AlterConfigs": (_E.EXPIRES,),
        "IncrementalAlterConfigs": (_E.EXPIRES,),
        "DeleteGroups": (_E.FORGETS,),
        "OffsetDelete": (_E.FORGETS,),
        "CreateAcls": (_E.GRANTS,),
        "DeleteAcls": (_E.GRANTS,),
        "AlterUserScramCredentials": (_E.GRANTS,),
        **dict.fromkeys(
            (
                "AlterClientQuotas", "AlterPartitionReassignments", "AlterReplicaLogDirs", "ElectLeaders",
                "UpdateFeatures",
            ),
            (_E.CHANGES,),
        ),
        "InitProducerId": (_E.CREATES,),
        **dict.fromkeys(("AddPartitionsToTxn", "AddOffsetsToTxn"), (_E.CHANGES,)),
        "EndTxn": (_E.ENDS,),
        "WriteTxnMarkers": (_E.ENDS,),
        "Metadata": (_E.SHOWS, _E.CREATES),
        "ShareFetch": (_E.READS, _E.SKIPS),
        **dict.fromkeys(("ShareAcknowledge", "AlterShareGroupOffsets"), (_E.SKIPS,)),
        "DeleteShareGroupOffsets": (_E.FORGETS,),
        **dict.fromkeys(("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"), (_E.CHANGES,)),
        **dict.fromkeys(("ConsumerGroupHeartbeat", "ShareGroupHeartbeat"), (_E.CHANGES,)),
        **dict.fromkeys(("SaslHandshake", "SaslAuthenticate"), (_E.LOGS_IN,)),
        **dict.fromkeys(
            (
                "ApiVersions", "ConsumerGroupDescribe", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster",
                "DescribeConfigs", "DescribeGroups", "DescribeLogDirs", "DescribeProducers", "DescribeQuorum",
                "DescribeShareGroupOffsets", "ShareGroupDescribe",
                "DescribeTopicPartitions", "DescribeTransactions", "DescribeUserScramCredentials", "FindCoordinator",
                "ListConfigResources", "ListGroups", "ListOffsets", "ListPartitionReassignments", "ListTransactions",
                "OffsetFetch", "OffsetForLeaderEpoch",
            ),
            (_E.SHOWS,),
        ),
    },
    "OCI": {
        "PutMessages": (_E.WRITES,),
        "GetMessages": (_E.READS,),
        "CreateCursor": (_E.READS,),
        "CreateGroupCursor": (_E.READS, _E.SKIPS),
        **dict.fromkeys(("ConsumerCommit", "ConsumerHeartbeat", "UpdateGroup"), (_E.SKIPS,)),
        "UpdateStream": (_E.CHANGES, _E.MOVES),
        "ChangeStreamCompartment": (_E.MOVES,),
        "DeleteStream": (_E.DELETES,),
        "DeleteStreamPool": (_E.DELETES,),
        "UpdateStreamPool": (_E.EXPIRES,),
        **dict.fromkeys(("CreateStream", "CreateStreamPool", "CreateConnectHarness"), (_E.CREATES,)),
        **dict.fromkeys(
            (
                "ChangeStreamPoolCompartment", "UpdateConnectHarness", "DeleteConnectHarness",
                "ChangeConnectHarnessCompartment",
            ),
            (_E.CHANGES,),
        ),
        **dict.fromkeys(
            (
                "GetGroup", "GetStream", "GetStreamPool", "GetConnectHarness", "GetWorkRequest", "ListStreams",
                "ListStreamPools", "ListConnectHarnesses", "ListWorkRequests", "ListWorkRequestErrors",
                "ListWorkRequestLogs",
            ),
            (_E.SHOWS,),
        ),
    },
    "Console": {
        "Records": (_E.READS,),
        "ResetGroup": (_E.SKIPS,),
        "ForgetRun": (_E.CHANGES,),
        "ProduceRecord": (_E.WRITES,),
        "CreateTopic": (_E.CREATES,),
        "AddPartitions": (_E.CHANGES,),
        "AlterTopicConfig": (_E.EXPIRES,),
        "DeleteTopic": (_E.DELETES,),
        **dict.fromkeys(("SaveUser", "DeleteUser", "AddAcl", "RemoveAcl"), (_E.GRANTS,)),
        **dict.fromkeys(("SetQuota", "RemoveQuota"), (_E.CHANGES,)),
        "AbortTransaction": (_E.ENDS,),
        **dict.fromkeys(
            (
                "Overview", "Topics", "Topic", "Produce", "NewTopic", "EditTopic", "Groups", "Group", "Pipeline",
                "Brokers", "Users", "Acls", "Quotas", "Transactions",
            ),
            (_E.SHOWS,),
        ),
        "/metrics": (_E.SHOWS,),
    },
}  # fmt: skip
"""Every request of each interface, and its effects."""


class Route(NamedTuple):
    """One request."""

    interface: str
    name: str
    effects: tuple[Effect, ...]
    needs: Rules


def routes() -> Iterator[Route]:
    """Every registered request. Raises KeyError for one whose effects are missing here."""
    apis.load()
    operations.load()
    views.load()
    registered: dict[str, dict[str, Rules]] = {
        "Kafka": {api.name: api.needs for _, api in sorted(APIS.items())},
        "OCI": {name: each.needs for name, each in OPERATIONS.items()},
        "Console": {name: each.needs for name, each in PAGES.items()} | {"/metrics": (METRICS,)},
    }
    for interface, found in registered.items():
        for name, needs in found.items():
            yield Route(interface, name, EFFECTS[interface][name], needs)


INTRODUCTION = """\
The table lists every request that reads, moves or deletes something, by every interface, and the rights that it needs
where [ACLs](guides/acls.md) hold. A request needs all of its rights. `headrace` commands are requests of the
Kafka protocol and need the same.

- A right is an operation on each resource that the request names, in the virtual cluster of the connection or of the
  stream pool.
- "Of the server" means the resource `kafka-cluster` of the default virtual cluster. Rights in a stream pool never grant
  it.
- "Each one shown" means that a list leaves out what you have no right to.
- `Alter` on the cluster changes ACLs. It therefore has every right in its virtual cluster, and none in another.
- `AlterConfigs` on a topic can delete its records, for example with `retention.ms=1`, as in Kafka.
- `AlterConfigs` and `DescribeConfigs` on a group are for its configuration (resource type GROUP).

Other ways to the same records:

- A request that one broker forwards to another is authorized by the broker that received it. The HMAC signature
  between brokers names the principal. No client can make one.
- Adopting a Redis Stream (`headrace topics adopt`) also needs [`headrace.adopt.prefixes`](settings.md) to include its
  key. Keys of Headrace itself are never adopted.
- Programs that have the password of Redis, and Spark executors that read Redis directly, are not subject to ACLs.
"""
