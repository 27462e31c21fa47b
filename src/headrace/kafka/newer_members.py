"""What the heartbeats of consumer groups (KIP-848) and of share groups (KIP-932) have in common."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from headrace.groups.model import Assignment, TopicFacts
from headrace.kafka.server.request_context import RequestContext

_MOST_CLIENT_ID = 249
"""Maximum stored characters of a client ID, the same as of a topic's name."""
R = TypeVar("R")


class Heartbeat(Protocol):
    """A heartbeat that may subscribe to topics."""

    subscribed_topic_names: list[str] | None


def subscribed_names(request: Heartbeat, _: RequestContext) -> Iterable[str]:
    """Return the topics that a heartbeat names, which the client must be allowed to describe."""
    return request.subscribed_topic_names or ()


def client_id(context: RequestContext) -> str:
    """Return the client ID to store."""
    return (context.client_id or "")[:_MOST_CLIENT_ID]


async def topic_facts(names: Iterable[str], context: RequestContext) -> dict[str, TopicFacts]:
    """Return the facts of existing topics, by name."""
    facts = context.broker.groups.topics.facts
    return {name: found async for name in context.pace().each(names) if (found := facts(name)) is not None}


async def topic_partitions(assigned: Assignment, of: Callable[..., R], context: RequestContext) -> list[R]:
    """Return the topics of an assignment for a response.

    Args:
        assigned: partitions by topic ID.
        of: class of the response, with `topic_id` and `partitions`.
        context: the request.
    """
    pace = context.pace()
    return [of(topic_id=topic_id, partitions=list(partitions)) async for topic_id, partitions in pace.each(assigned)]
