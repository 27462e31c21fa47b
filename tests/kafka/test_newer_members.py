"""Parts of heartbeats of consumer groups and of share groups. The wire tests of both APIs have the rest."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.model import TopicFacts
from headrace.kafka import newer_members

FLIGHTS = UUID(int=7)


@pytest.mark.parametrize(("given", "stored"), [(None, ""), ("app", "app"), ("x" * 300, "x" * 249)])
def test_a_client_id_is_cut(given: str | None, stored: str) -> None:
    context: Any = SimpleNamespace(client_id=given)
    assert newer_members.client_id(context) == stored


@pytest.mark.parametrize(("given", "checked"), [(None, []), (["a", "b"], ["a", "b"])])
def test_named_topics_are_checked(given: list[str] | None, checked: list[str]) -> None:
    context: Any = None
    assert list(newer_members.subscribed_names(SimpleNamespace(subscribed_topic_names=given), context)) == checked


def test_only_existing_topics_have_facts() -> None:
    known = {"flights": TopicFacts(FLIGHTS, 3)}
    topics = SimpleNamespace(facts=known.get)

    async def ask() -> tuple[dict[str, TopicFacts], list[Any]]:
        context: Any = SimpleNamespace(
            pace=CooperativeScheduler().pace, broker=SimpleNamespace(groups=SimpleNamespace(topics=topics))
        )
        facts = await newer_members.topic_facts(["flights", "missing"], context)
        return facts, await newer_members.topic_partitions(((FLIGHTS, (0, 2)),), dict, context)

    facts, partitions = asyncio.run(ask())
    assert facts == known
    assert partitions == [{"topic_id": FLIGHTS, "partitions": [0, 2]}]
