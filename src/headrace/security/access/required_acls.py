"""ACLs that APIs need: operations on resources.

Source: Apache Kafka documentation, "Authorization and ACLs": "Operations in Kafka" and the table of protocols.
"""

from collections.abc import Callable, Iterable
from enum import Enum

import msgspec


class ResourceType(Enum):
    """Types of resources."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"
    USER = "User"


class Operation(Enum):
    """Operations on resources."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    CREATE_TOKENS = "CreateTokens"
    DESCRIBE_TOKENS = "DescribeTokens"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"


SUPPORTED: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}  # fmt: skip
"""Operations of each resource type in Kafka. ACLs with others are refused."""

CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of type Cluster."""
SERVER = "default"
"""The default virtual cluster, whose Cluster resource is the server."""


class Resource(msgspec.Struct, frozen=True):
    """A resource of a virtual cluster."""

    type: ResourceType
    name: str
    cluster: str
    """The virtual cluster that contains it."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of an API's requests, and its resources. Raises ValueError if Kafka does not have it."""

    operation: Operation
    type: ResourceType
    resources: Callable[..., Iterable[Resource]]
    """Return the resources of this type in a request, from the handler's arguments."""
    instead: tuple[Operation, ResourceType] | None = None
    """An alternative: this operation on the cluster, or on any resource of another type."""
    shown: bool = False
    """Whether it also applies to each resource in the response. Others are omitted."""
    of_server: bool = False
    """Whether it concerns the server, from any virtual cluster."""
    when: str = ""
    """The requests that need it, for the documentation; empty: all that name such a resource."""

    def __post_init__(self) -> None:
        for operation, kind in ((self.operation, self.type), self.instead or (self.operation, self.type)):
            if operation not in SUPPORTED[kind]:
                raise ValueError(f"Kafka's access rules have no {operation.value} on {kind.value}")

    def __str__(self) -> str:
        text = f"{self.operation.value} {self.type.value}"
        if self.of_server:
            text += " of the server"
        if self.shown:
            text += " (each one shown)"
        if self.instead is not None:
            text += f", or {self.instead[0].value} {self.instead[1].value}"
        return f"{text} ({self.when})" if self.when else text


Rules = tuple[Rule, ...]

ANYBODY: tuple[()] = ()
"""Needs no ACL."""


def told(rules: Rules) -> str:
    """Return rules as text for the documentation."""
    return "; ".join(str(rule) for rule in rules) or "nothing"
