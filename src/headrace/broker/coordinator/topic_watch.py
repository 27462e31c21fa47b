"""Notices of changed topics for consumer groups whose partitions this server assigns (KIP-848)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import structlog

from headrace.aio.tasks import end
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.consumers.events import TopicsChanged
from headrace.groups.model import StoredConsumer, StoredGroup, TopicFacts
from headrace.groups.sharing.model import StoredSharer, StoredShareTopic
from headrace.topics.errors import UnreadableTopic

_log = structlog.get_logger("headrace.broker.coordinator")


class Watcher(Protocol):
    """A group that reads topics."""

    def watches(self, topic: str) -> bool:
        """Whether a member subscribes to this topic or has partitions of it."""

    def post(self, event: TopicsChanged) -> None:
        """Give the group a notice."""


class TopicWatch:
    """Groups and topics of one virtual cluster.

    `facts` returns those of a known topic, `stored_facts` those of a stored one; it raises TopicError.
    """

    def __init__(
        self,
        facts: Callable[[str], TopicFacts | None],
        stored_facts: Callable[[str], Awaitable[TopicFacts | None]],
        groups: Callable[[], Iterable[Watcher]],
        lane: CooperativeScheduler,
    ) -> None:
        self.facts = facts
        self._stored_facts = stored_facts
        self._groups = groups
        self._lane = lane
        self._changed: dict[str, None] = {}
        self._working: asyncio.Task[None] | None = None

    def changed(self, topic: str) -> None:
        """Note that a topic appeared, grew or disappeared. Groups get their notices soon."""
        self._changed[topic] = None
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._run(), name="topic watch")

    async def _run(self) -> None:
        try:
            while self._changed:
                changed, self._changed = list(self._changed), {}
                try:
                    await self._notify(changed)
                except Exception:  # later changes have their own notices
                    _log.exception("consumer groups did not get a notice of changed topics")
        finally:
            self._working = None

    async def _notify(self, changed: list[str]) -> None:
        pace = self._lane.pace()
        async for group in pace.each(tuple(self._groups())):
            facts = {topic: self.facts(topic) for topic in changed if group.watches(topic)}
            if facts:
                group.post(TopicsChanged(facts))

    async def load(self, stored: StoredGroup) -> Callable[[], TopicsChanged | None]:
        """Look up the topics of a stored group. Return a function that makes its first notice.

        A topic that this server does not know counts as gone only if storage does not have it either: another broker
        may have created it just now. Raises TopicError.
        """
        names = watched_by(stored)
        missing = [topic for topic in names if self.facts(topic) is None]
        unknown: dict[str, TopicFacts | None] = {}
        async for _, found in self._lane.a_few_at_once(missing, self._look_up):
            unknown.update(found)
        return lambda: self.notice(names, unknown)

    async def _look_up(self, topic: str) -> dict[str, TopicFacts | None]:
        try:
            return {topic: await self._stored_facts(topic)}
        except UnreadableTopic:
            # It exists. Its members keep what they have.
            return {}

    def notice(
        self, names: Iterable[str], unknown: Mapping[str, TopicFacts | None] = MappingProxyType({})
    ) -> TopicsChanged | None:
        """Return a notice of these topics. `unknown`: what counts for those that are not known."""
        facts: dict[str, TopicFacts | None] = {}
        for topic in names:
            known = self.facts(topic)
            if known is not None:
                facts[topic] = known
            elif topic in unknown:
                facts[topic] = unknown[topic]
        return TopicsChanged(facts) if facts else None

    async def stop(self) -> None:
        """Send no more notices."""
        if self._working is not None:
            await end(self._working)


def watched_by(stored: StoredGroup) -> list[str]:
    """Return the topics of a stored group's members."""
    names: dict[str, None] = {}
    for member in stored.fields:
        match member:
            case StoredConsumer():
                names.update(dict.fromkeys(member.topics))
                names.update(dict.fromkeys(each.topic for each in member.held))
                names.update(dict.fromkeys(each.topic for each in member.target))
            case StoredSharer():
                names.update(dict.fromkeys(member.topics))
            case StoredShareTopic():
                names[member.topic] = None
    return list(names)
