"""Declare the ACLs that APIs need: operations on resources.

Source: Apache Kafka documentation, "Authorization and ACLs": "Operations in Kafka" and the table of protocols.
"""

from collections.abc import Callable, Iterable
from enum import Enum

import msgspec


class ResourceType(Enum):
    """What access rules are about."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"
    USER = "User"


class Operation(Enum):
    """What is done to a resource."""

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
"""Which operations Kafka's access rules know on which resources: a rule with another could never be granted."""

CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type Cluster."""
SERVER = "default"
"""The virtual cluster whose resource of type Cluster stands for the server: the default one."""


class Resource(msgspec.Struct, frozen=True):
    """Something of a virtual cluster that access rules name."""

    type: ResourceType
    name: str
    cluster: str
    """The virtual cluster it is in: a topic's name means something there only."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that requests of an API do, and to which resources. Raises ValueError if Kafka has no such rule."""

    operation: Operation
    type: ResourceType
    resources: Callable[..., Iterable[Resource]]
    """Return the resources of this type in a request, from the handler's arguments."""
    instead: tuple[Operation, ResourceType] | None = None
    """Who may do this to the cluster (or to any resource of another type) need not be granted the rule itself."""
    shown: bool = False
    """Whether it also holds for each resource that the answer would show: what is not granted is left out."""
    of_server: bool = False
    """Whether it is about the server, in whichever virtual cluster a request is made."""
    when: str = ""
    """Which of the requests need it, for the documentation; empty: all that name such a resource."""

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
    """Rules as the tables of the documentation show them."""
    return "; ".join(str(rule) for rule in rules) or "nothing"
