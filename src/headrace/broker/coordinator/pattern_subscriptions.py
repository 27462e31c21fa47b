"""Topics of regular expressions to which members of consumer groups subscribe (KIP-848).

Patterns match whole names. Many names are matched in slices, not in the turn in which a member joins.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

import structlog

from headrace.aio.tasks import end
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.consumers.events import Resolved, ResolvedPattern
from headrace.groups.model import TopicFacts
from headrace.security.access.principal import Principal
from headrace.text.patterns import InvalidPattern, Pattern

_log = structlog.get_logger("headrace.broker.coordinator")


class Subscriber(NamedTuple):
    """The principal of a member at its host."""

    principal: Principal
    host: str


Member = tuple[str, str]
"""Group and member ID."""
MayDescribe = Callable[[Subscriber], Callable[[str], bool] | None]
"""Returns a function that decides about topic names, or None without an authorizer."""


class _Subscription:
    __slots__ = ("pattern", "topics")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.topics: frozenset[str] | None = None
        """Topics in the last event. None: there was none."""


class PatternSubscriptions:
    """Patterns of all members of one virtual cluster that this server coordinates.

    `names` returns all topics. `post` gets an event for a group. Everything is matched again every `refresh_ms`,
    because ACLs may have changed.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        facts: Callable[[str], TopicFacts | None],
        may_describe: MayDescribe,
        post: Callable[[str, Resolved], None],
        clock: Clock,
        lane: CooperativeScheduler,
        refresh_ms: int,
    ) -> None:
        self._names = names
        self._facts = facts
        self._may_describe = may_describe
        self._post = post
        self._clock = clock
        self._lane = lane
        self._refresh_ms = refresh_ms
        self._groups: dict[str, dict[str, _Subscription]] = {}
        self._subscribers: dict[Member, Subscriber] = {}
        self._matches: dict[str, frozenset[str]] = {}
        """Pattern -> all matching topics."""
        self._sets: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()
        """By their hashes: many members have the same topics."""
        self._used: dict[str, int] = {}
        """Pattern -> number of members."""
        self._due: dict[str, dict[str, None]] = {}
        """Group -> members whose topics are to be found."""
        self._changed: dict[str, None] = {}
        """Topics that appeared or disappeared since patterns were matched."""
        self._working: asyncio.Task[None] | None = None
        self._refresh: Timer | None = None

    def knows(self, group: str, member_id: str) -> bool:
        """Whether a member has a pattern."""
        members = self._groups.get(group)
        return members is not None and member_id in members

    def note(self, group: str, member_id: str, subscriber: Subscriber) -> Subscriber | None:
        """Record the sender of a heartbeat of a member that has a pattern, or is about to. Return the one before."""
        member = group, member_id
        before = self._subscribers.get(member)
        if before != subscriber:
            self._subscribers[member] = subscriber
            if self.knows(group, member_id):
                self._look_at(group, member_id)
        return before

    def settle(self, group: str, member_id: str, subscriber: Subscriber | None) -> None:
        """Record the sender of the last accepted heartbeat if the member has a pattern, and forget it otherwise."""
        if subscriber is None or not self.knows(group, member_id):
            self._subscribers.pop((group, member_id), None)
        else:
            self.note(group, member_id, subscriber)

    def resolve(self, group: str, patterns: Mapping[str, str]) -> None:
        """Find the topics of these members' patterns, now and after each change (`Resolve`)."""
        members = self._groups.setdefault(group, {})
        for member_id, pattern in patterns.items():
            before = members.pop(member_id, None)
            if before is not None:
                self._release(before.pattern)
            if pattern:
                members[member_id] = _Subscription(pattern)
                self._used[pattern] = self._used.get(pattern, 0) + 1
                self._look_at(group, member_id)
            else:
                self._subscribers.pop((group, member_id), None)
        if not members:
            del self._groups[group]
        self._set_refresh()

    def forget(self, group: str) -> None:
        """Forget the members of a group that moved or ended."""
        for member_id, subscription in self._groups.pop(group, {}).items():
            self._release(subscription.pattern)
            self._subscribers.pop((group, member_id), None)
        self._set_refresh()

    def _release(self, pattern: str) -> None:
        self._used[pattern] -= 1
        if not self._used[pattern]:
            del self._used[pattern]
            self._matches.pop(pattern, None)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Match topics that appeared, changed or disappeared."""
        if self._groups:
            self._changed.update(dict.fromkeys(names))
            self._work()

    def refresh(self) -> None:
        """Match all topics again."""
        self._matches.clear()
        for group, members in self._groups.items():
            self._due[group] = dict.fromkeys(members)
        self._work()

    def _set_refresh(self) -> None:
        if self._groups and self._refresh is None:
            self._refresh = self._clock.call_at(self._clock.ticks_ms() + self._refresh_ms, self._refreshed)
        elif not self._groups and self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None

    def _refreshed(self) -> None:
        self._refresh = None
        self._set_refresh()
        self.refresh()

    def _look_at(self, group: str, member_id: str) -> None:
        self._due.setdefault(group, {})[member_id] = None
        self._work()

    def _work(self) -> None:
        if self._working is None and (self._due or self._changed):
            self._working = asyncio.get_running_loop().create_task(self._run(), name="patterns")

    async def _run(self) -> None:
        try:
            while self._due or self._changed:
                try:
                    if self._changed:
                        await self._match_changed()
                    if self._due:
                        await self._answer()
                except Exception:  # other groups wait for their topics
                    _log.exception("patterns of consumer groups could not be matched: the next change retries")
        finally:
            self._working = None

    async def _match_changed(self) -> None:
        changed, self._changed = self._changed, {}
        pace = self._lane.pace()
        affected: set[str] = set()
        for pattern, found in list(self._matches.items()):
            matcher = Pattern(pattern)
            gained, lost = set(), set()
            async for name in pace.each(changed):
                if self._facts(name) is None:
                    lost.add(name)
                elif name not in found and matcher.matches(name):
                    gained.add(name)
            now = (found | gained) - lost
            # It may have been dropped, or matched again with all topics.
            if now != found and self._matches.get(pattern) is found:
                self._matches[pattern] = self._shared(now)
                affected.add(pattern)
        for group, members in self._groups.items():
            due = [member_id for member_id, each in members.items() if each.pattern in affected]
            if due:
                self._due.setdefault(group, {}).update(dict.fromkeys(due))

    async def _answer(self) -> None:
        group = next(iter(self._due))
        found: dict[str, ResolvedPattern] = {}
        for member_id in self._due.pop(group):
            subscription = self._groups.get(group, {}).get(member_id)
            if subscription is None:
                continue
            pattern = subscription.pattern
            topics = await self._topics(pattern, self._subscribers.get((group, member_id)))
            if topics is not None and topics != subscription.topics:
                subscription.topics = topics
                found[member_id] = ResolvedPattern(pattern, topics)
        if found:
            self._tell(group, found)

    def _tell(self, group: str, found: dict[str, ResolvedPattern]) -> None:
        names = frozenset().union(*(each.topics for each in found.values()))
        facts = {name: each for name in names if (each := self._facts(name)) is not None}
        self._post(group, Resolved(found, facts))

    async def _topics(self, pattern: str, subscriber: Subscriber | None) -> frozenset[str] | None:
        """Return the topics of a pattern that a member may describe. None: they cannot be found now."""
        may_describe = self._may_describe(subscriber or _UNKNOWN)
        if may_describe is not None and subscriber is None:
            # After a takeover, the next heartbeat of the member has its principal.
            return None
        pace = self._lane.pace()
        found = self._matches.get(pattern)
        if found is None:
            try:
                matcher = Pattern(pattern)
            except InvalidPattern as error:
                # Another version of the library has accepted it.
                _log.warning("a stored pattern is invalid: its topics stay as they are", reason=str(error))
                return None
            found = self._shared({name async for name in pace.each(list(self._names())) if matcher.matches(name)})
            if pattern in self._used:
                self._matches[pattern] = found
        if may_describe is None:
            return found
        return self._shared({name async for name in pace.each(found) if may_describe(name)})

    def _shared(self, topics: Iterable[str]) -> frozenset[str]:
        made = frozenset(topics)
        key = hash(made)
        known = self._sets.get(key)
        if known is not None and known == made:
            return known
        self._sets[key] = made
        return made

    async def stop(self) -> None:
        """Stop matching."""
        if self._refresh is not None:
            self._refresh.cancel()
        if self._working is not None:
            await end(self._working)


_UNKNOWN = Subscriber(Principal(""), "")
