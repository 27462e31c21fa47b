"""Declare the ACLs of OCI operations: those of their Kafka counterparts.

A stream is a topic, a pool is a cluster. For an unknown path or an invalid cursor, look-ups raise the operation's own
error.
"""

from collections.abc import Callable, Iterable

from headrace.oci.api.registry import Call
from headrace.oci.api.registry import Operation as ApiOperation
from headrace.oci.cursors import InstanceCursor
from headrace.oci.errors import OciError
from headrace.oci.resources.records import PoolRecord
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, Resource, ResourceType, Rule
from headrace.topics.errors import UnknownTopic

Place = Callable[[Call], tuple[str, PoolRecord | None] | None]


def live_stream(operation: Operation) -> Rule:
    """Return the rule for messages of the stream."""

    def topic(call: Call) -> Iterable[Resource]:
        broker, live = call.service.stream(call.path["streamId"])
        yield Resource(ResourceType.TOPIC, live.topic.name, broker.cluster)

    return Rule(operation=operation, type=ResourceType.TOPIC, resources=topic)


def stream(operation: Operation) -> Rule:
    """Return the rule for the stream, which may be deleted."""

    def topic(call: Call) -> Iterable[Resource]:
        record = call.service.catalog.streams.get(call.path["streamId"])
        yield Resource(ResourceType.TOPIC, record.name, call.service.catalog.pools.cluster_name(record.pool))

    return Rule(operation=operation, type=ResourceType.TOPIC, resources=topic)


def moved_stream(operation: Operation, moves: Callable[[Call], bool], when: str = "") -> Rule:
    """Return the rule for a call that moves the stream to another pool.

    `when`: the condition, for the documentation.
    """
    found = stream(operation)
    return Rule(
        operation=operation,
        type=ResourceType.TOPIC,
        resources=lambda call: found.resources(call) if moves(call) else (),
        when=when,
    )


def streams_shown() -> Rule:
    """Return the rule for each stream of a list."""
    return Rule(operation=Operation.DESCRIBE, type=ResourceType.TOPIC, resources=lambda call: (), shown=True)


def new_topic(place: Place) -> tuple[Rule, Rule]:
    """Return the rules for creating a topic, and its pool if necessary.

    `place` returns its name and its existing pool, or None for no topic.
    """

    def topic(call: Call) -> Iterable[Resource]:
        found = place(call)
        if found is not None and found[1] is not None:
            yield Resource(ResourceType.TOPIC, found[0], found[1].cluster)

    def makes_pool(call: Call) -> bool:
        found = place(call)
        return found is not None and found[1] is None

    made = Rule(
        operation=Operation.CREATE,
        type=ResourceType.TOPIC,
        resources=topic,
        instead=(Operation.CREATE, ResourceType.CLUSTER),
    )
    return made, server(Operation.CREATE, makes_pool, "where it makes the compartment's default pool")


def group(operation: Operation, name: Callable[[Call], str]) -> Rule:
    """Return the rule for a group of the stream."""

    def resources(call: Call) -> Iterable[Resource]:
        broker, _ = call.service.stream(call.path["streamId"])
        yield Resource(ResourceType.GROUP, name(call), broker.cluster)

    return Rule(operation=operation, type=ResourceType.GROUP, resources=resources)


def group_of_cursor() -> Rule:
    """Return the rule for the cursor's group. A partition cursor has no group."""

    def resources(call: Call) -> Iterable[Resource]:
        broker, topic = call.service.stream(call.path["streamId"])
        cursor = call.service.read_cursor(topic, call.query.cursor)
        if isinstance(cursor, InstanceCursor):
            yield Resource(ResourceType.GROUP, cursor.group, broker.cluster)

    return Rule(operation=Operation.READ, type=ResourceType.GROUP, resources=resources)


def pool(operation: Operation) -> Rule:
    """Return the rule for the pool."""

    def cluster(call: Call) -> Iterable[Resource]:
        yield Resource(
            ResourceType.CLUSTER, CLUSTER_NAME, call.service.catalog.pools.get(call.path["streamPoolId"]).cluster
        )

    return Rule(operation=operation, type=ResourceType.CLUSTER, resources=cluster)


def pools_shown() -> Rule:
    """Return the rule for each pool of a list."""
    return Rule(operation=Operation.DESCRIBE, type=ResourceType.CLUSTER, resources=lambda call: (), shown=True)


def server(operation: Operation, when: Callable[[Call], bool] = lambda call: True, which: str = "") -> Rule:
    """Return the rule for the server, represented by the default virtual cluster.

    `when`: the condition; `which`: the same for the documentation.
    """
    return Rule(
        operation=operation,
        type=ResourceType.CLUSTER,
        resources=lambda call: (Resource(ResourceType.CLUSTER, CLUSTER_NAME, SERVER),) if when(call) else (),
        of_server=True,
        when=which,
    )


NOT_AUTHORIZED = "Authorization failed or requested resource not found."
"""The service's message, the same for missing and for unauthorized resources."""


def admit(operation: ApiOperation, call: Call) -> None:
    """Raise OciError 404 for a missing or unauthorized resource."""
    if not call.authorizes:
        return
    try:
        granted = all(_may(operation, call, rule, resource) for rule, resource in operation.needed(call))
    except UnknownTopic:
        granted = False
    except OciError as error:
        if error.status != 404:
            raise
        granted = False
    if not granted:
        raise OciError(404, NOT_AUTHORIZED)


def _may(operation: ApiOperation, call: Call, rule: Rule, resource: Resource) -> bool:
    if call.may(rule, resource):
        return True
    reason = f"{rule.operation.value} {rule.type.value}"
    what = f"{call.principal} may not {reason} {resource.name}"
    call.service.broker.access.audit.refused(str(call.principal), call.host, reason, what, operation=operation.name)
    return False
