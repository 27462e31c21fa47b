"""The rules by which Kafka's APIs say what they need: each takes a function that finds names in a request.

The functions get the request and its context, because a topic may be named by its id.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from headrace.kafka.server.request_context import RequestContext
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, Resource, ResourceType, Rule
from headrace.topics.errors import UnknownTopic

Names = Callable[[Any, RequestContext], Iterable[str]]
Instead = tuple[Operation, ResourceType] | None


class RequiredAcls(Rule, frozen=True, kw_only=True):
    """A rule whose resources are all in the virtual cluster of the connection: their names tell them."""

    names: Names


def topics(
    operation: Operation, names: Names, *, instead: Instead = None, shown: bool = False, when: str = ""
) -> RequiredAcls:
    """An operation on topics."""
    return _rule(operation, ResourceType.TOPIC, names, instead, shown, when=when)


def groups(operation: Operation, names: Names, *, instead: Instead = None, shown: bool = False) -> RequiredAcls:
    """An operation on groups."""
    return _rule(operation, ResourceType.GROUP, names, instead, shown)


def transactional_ids(operation: Operation, names: Names) -> RequiredAcls:
    """An operation on transactional ids."""
    return _rule(operation, ResourceType.TRANSACTIONAL_ID, names)


def cluster(
    operation: Operation, when: Callable[[Any], bool] = lambda request: True, *, instead: Instead = None
) -> RequiredAcls:
    """An operation on the cluster; `when` tells whether a request does it."""
    return _rule(
        operation, ResourceType.CLUSTER, lambda request, context: (CLUSTER_NAME,) if when(request) else (), instead
    )


def server(operation: Operation, when: Callable[[Any], bool], which: str) -> RequiredAcls:
    """An operation on the server, whichever virtual cluster the connection is for.

    Args:
        operation: the operation.
        when: whether a request does it.
        which: those requests, for the documentation.
    """
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
    """The names of `request.topics`."""
    return (topic.name for topic in request.topics)


def its_group(request: Any, _: RequestContext) -> Iterable[str]:
    """The group that a request is about."""
    return (request.group_id,)


def its_transaction(request: Any, _: RequestContext) -> Iterable[str]:
    """The transactional id of a request that has one."""
    return () if request.transactional_id is None else (request.transactional_id,)


def names_of(asked: Iterable[Any] | None, context: RequestContext) -> Iterable[str]:
    """The names of topics that are asked for by `name` or, where that is null, by `topic_id`; unknown ids have none."""
    for topic in asked or ():
        name = topic.name if topic.name is not None else _name(topic.topic_id, context)
        if name is not None:
            yield name


def _name(topic_id: UUID, context: RequestContext) -> str | None:
    try:
        return context.broker.topics.by_id(topic_id).topic.name
    except UnknownTopic:
        return None
