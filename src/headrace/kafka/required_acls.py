"""Rules for the ACLs that Kafka APIs require.

Their functions get a request and its context, as a topic may be named by id.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from headrace.kafka.server.request_context import RequestContext
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, Resource, ResourceType, Rule

Names = Callable[[Any, RequestContext], Iterable[str]]
Instead = tuple[Operation, ResourceType] | None


class RequiredAcls(Rule, frozen=True, kw_only=True):
    """A rule for resources of the connection's virtual cluster."""

    names: Names


def topics(
    operation: Operation, names: Names, *, instead: Instead = None, shown: bool = False, when: str = ""
) -> RequiredAcls:
    """Require an operation on topics."""
    return _rule(operation, ResourceType.TOPIC, names, instead, shown, when=when)


def groups(operation: Operation, names: Names, *, instead: Instead = None, shown: bool = False) -> RequiredAcls:
    """Require an operation on groups."""
    return _rule(operation, ResourceType.GROUP, names, instead, shown)


def transactional_ids(operation: Operation, names: Names, *, shown: bool = False) -> RequiredAcls:
    """Require an operation on transactional ids."""
    return _rule(operation, ResourceType.TRANSACTIONAL_ID, names, shown=shown)


def cluster(
    operation: Operation, when: Callable[[Any], bool] = lambda request: True, *, instead: Instead = None
) -> RequiredAcls:
    """Require an operation on the cluster if `when`."""
    return _rule(
        operation, ResourceType.CLUSTER, lambda request, context: (CLUSTER_NAME,) if when(request) else (), instead
    )


def server(operation: Operation, when: Callable[[Any], bool], which: str) -> RequiredAcls:
    """Require an operation on the server if `when`; `which` is for the documentation."""
    return _rule(
        operation,
        ResourceType.CLUSTER,
        lambda request, context: (CLUSTER_NAME,) if when(request) else (),
        of_server=True,
        when=which,
    )


def _rule(
    operation: Operation,
    kind: ResourceType,
    names: Names,
    instead: Instead = None,
    shown: bool = False,
    *,
    of_server: bool = False,
    when: str = "",
) -> RequiredAcls:
    def resources(request: Any, context: RequestContext) -> Iterable[Resource]:
        in_cluster = SERVER if of_server else context.broker.cluster
        return (Resource(kind, name, in_cluster) for name in names(request, context))

    return RequiredAcls(
        operation=operation,
        type=kind,
        resources=resources,
        instead=instead,
        shown=shown,
        of_server=of_server,
        when=when,
        names=names,
    )


def each_topic(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the names of `request.topics`."""
    return (topic.name for topic in request.topics)


def its_group(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the request's group."""
    return (request.group_id,)


def its_transaction(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the request's transactional id, if any."""
    return () if request.transactional_id is None else (request.transactional_id,)


def names_of(asked: Iterable[Any] | None, context: RequestContext) -> Iterable[str]:
    """Yield topic names, looked up by `topic_id` if null, without unknown ids."""
    return referred_names((topic.topic_id if topic.name is None else topic.name for topic in asked or ()), context)


def referred_names(topics: Iterable[str | UUID], context: RequestContext) -> Iterable[str]:
    """Yield the names of topics given by name or id, without unknown ids. An id says nothing about its topic."""
    for topic in topics:
        if isinstance(topic, str):
            yield topic
        elif (live := context.broker.topics.with_id(topic.bytes)) is not None:
            yield live.topic.name
