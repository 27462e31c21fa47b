"""What groups learn about topics: from the server's table, from storage, and with a member's rights."""

from collections.abc import Iterator

import pytest
from tests.harness.guarded import ROOT, Guarded, guarded

from headrace.broker.coordinator.pattern_subscriptions import Subscriber
from headrace.broker.coordinator.subscribed_topics import NoTopics
from headrace.groups.model import TopicFacts
from headrace.security.access.acls import Acl, Pattern
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import Operation, ResourceType

JANE = Subscriber(Principal("jane"), "127.0.0.1")


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as started:
        with started.connect(ROOT) as root:
            root.create("one", 3)
            root.create("two")
        yield started


def test_facts_of_known_and_of_stored_topics(server: Guarded) -> None:
    broker = server.clusters.default
    topics = broker.groups.topics
    assert set(topics.names()) == {"one", "two", "__consumer_offsets"}
    one = TopicFacts(broker.topics.get("one").topic.id, 3)
    assert (topics.facts("one"), topics.facts("none")) == (one, None)
    assert topics.facts("__consumer_offsets") is not None
    assert server.run(topics.stored_facts("one")) == one
    assert server.run(topics.stored_facts("none")) is None


def test_a_member_describes_what_its_principal_may(server: Guarded) -> None:
    may_describe = server.clusters.default.groups.topics.may_describe(JANE)
    assert may_describe is not None
    assert not may_describe("one")
    server.allow(
        Acl(
            principal="User:jane",
            host="*",
            operation=Operation.READ,
            allow=True,
            type=ResourceType.TOPIC,
            name="one",
            pattern=Pattern.LITERAL,
        )
    )
    assert (may_describe("one"), may_describe("two")) == (True, False)


async def test_without_a_server_there_are_no_topics() -> None:
    topics = NoTopics()
    assert (topics.names(), topics.facts("a"), await topics.stored_facts("a")) == ([], None, None)
    assert topics.may_describe(JANE) is None
