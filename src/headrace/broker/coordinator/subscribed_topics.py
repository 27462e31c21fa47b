"""Topics of a virtual cluster, as members of the newer groups subscribe to them."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from headrace.broker.admin.acl_authorizer import AclAuthorizer
from headrace.broker.coordinator.pattern_subscriptions import Subscriber
from headrace.broker.topics.table import TopicTable
from headrace.groups.model import TopicFacts
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.model import Topic


class SubscribedTopics(Protocol):
    """Topics, for a coordinator."""

    def names(self) -> list[str]:
        """Return all names, with internal topics."""

    def facts(self, name: str) -> TopicFacts | None:
        """Return those of a known topic."""

    async def stored_facts(self, name: str) -> TopicFacts | None:
        """Return those of a stored topic. Raises TopicError."""

    def may_describe(self, subscriber: Subscriber) -> Callable[[str], bool] | None:
        """See `PatternSubscriptions`."""


class NoTopics:
    """`SubscribedTopics` of a coordinator without a server."""

    def names(self) -> list[str]:
        """Return none."""
        return []

    def facts(self, name: str) -> TopicFacts | None:
        """Return nothing."""
        del name
        return None

    async def stored_facts(self, name: str) -> TopicFacts | None:
        """Return nothing."""
        del name
        return None

    def may_describe(self, subscriber: Subscriber) -> Callable[[str], bool] | None:
        """Return nothing."""
        del subscriber
        return None


class BrokerSubscribedTopics:
    """`SubscribedTopics` of a broker."""

    def __init__(
        self,
        topics: TopicTable,
        find: Callable[[str], Awaitable[Topic | None]],
        access: AclAuthorizer,
        cluster: str,
    ) -> None:
        """`find` returns a stored topic."""
        self._topics = topics
        self._find = find
        self._access = access
        self._cluster = cluster

    def names(self) -> list[str]:
        """See `SubscribedTopics`."""
        return [*self._topics.names(), *self._topics.internal]

    def facts(self, name: str) -> TopicFacts | None:
        """See `SubscribedTopics`."""
        live = self._topics.find_referred(name)
        return None if live is None else TopicFacts(live.topic.id, len(live.partitions))

    async def stored_facts(self, name: str) -> TopicFacts | None:
        """See `SubscribedTopics`."""
        topic = await self._find(name)
        return None if topic is None else TopicFacts(topic.id, topic.partitions)

    def may_describe(self, subscriber: Subscriber) -> Callable[[str], bool] | None:
        """See `SubscribedTopics`."""
        grants = self._access.grants(subscriber.principal, subscriber.host, self._cluster)
        if grants is None:
            return None
        return lambda name: grants.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
