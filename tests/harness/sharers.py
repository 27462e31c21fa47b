"""A share group on a manual clock: heartbeats of members, all responses, and its storage."""

from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from headrace.groups.configs import Configs, GroupConfig
from headrace.groups.consumers.events import Assign
from headrace.groups.effects import Effect
from headrace.groups.events import DropTopic, Event, TimerFired
from headrace.groups.group import Group
from headrace.groups.model import GroupSettings, TopicFacts
from headrace.groups.sharing.events import AlterShareOffsets, ShareHeartbeat, ShareHeartbeatResult
from headrace.groups.snapshot import Snapshot
from headrace.groups.timers import TimerKey
from headrace.groups.turn import UNBOUNDED
from headrace.machines.effects import CancelTimer, Now, Persist, Reply, SetTimer

NAME = "workers"
SESSION_MS = 45_000


class ShareContext:
    """One group, its storage and its timers. Every change is stored at once, as the running server does it."""

    def __init__(self, settings: GroupSettings | None = None, config: GroupConfig | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.configs = Configs(config)
        self.now_ms = 1_000_000
        self.room = UNBOUNDED
        """The server's free memory."""
        self.storage = Snapshot.empty(NAME)
        self.topics: dict[str, TopicFacts] = {}
        self.timers: dict[TimerKey, int] = {}
        self.writes = 0
        self.assigning: list[Assign] = []
        """Computations of targets outside the event loop."""
        self._results: dict[int, Any] = {}
        self._tokens = count(1)
        self.group = Group(NAME, self.settings, configs=self.configs)

    def topic(self, name: str, partitions: int, number: int = 1) -> None:
        """Create a topic, or give it more partitions. The group learns of it with the next heartbeat that names it."""
        self.topics[name] = TopicFacts(uuid5(NAMESPACE_OID, f"{name} {number}"), partitions)

    def beat(
        self, member: str, epoch: int, *topics: str, rack: str | None = None, named: Sequence[str] | None = None
    ) -> ShareHeartbeatResult:
        """Send a heartbeat. Without `topics` and `named`, the subscription is as before."""
        names = tuple(topics) or (None if named is None else tuple(named))
        facts = {name: self.topics[name] for name in names or () if name in self.topics}
        result = self.ask(
            ShareHeartbeat(
                token=next(self._tokens),
                member_id=member,
                member_epoch=epoch,
                rack_id=rack,
                topics=names,
                client_id=f"client-{member}",
                client_host="/127.0.0.1",
                facts=facts,
            )
        )
        assert isinstance(result, ShareHeartbeatResult)
        return result

    def alter(self, offset: int = 0, **partitions: tuple[int, ...]) -> Any:
        """Alter partitions to the same offset."""
        facts = {name: self.topics[name] for name in partitions}
        offsets = {name: dict.fromkeys(indexes, offset) for name, indexes in partitions.items()}
        return self.ask(AlterShareOffsets(token=next(self._tokens), partitions=offsets, facts=facts))

    def ask(self, request: Any) -> Any:
        """Send a request with a token, and return its result."""
        self.post(request)
        return self._results[request.token]

    @property
    def token(self) -> int:
        """A token for the next request."""
        return next(self._tokens)

    def post(self, event: Event) -> None:
        """Handle an event."""
        self._carry_out(self.group.handle(event, self._now, room=self.room))

    def drop(self, topic: str) -> None:
        """Delete a topic."""
        self.post(DropTopic(topic, self.topics.pop(topic).topic_id))

    def wait(self, ms: int) -> None:
        """Let time pass, and due timers fire in order."""
        end = self.now_ms + ms
        while due := [(at, key) for key, at in self.timers.items() if at <= end]:
            self.now_ms, key = min(due, key=lambda each: each[0])
            del self.timers[key]
            self.post(TimerFired(key))
        self.now_ms = end

    def restart(self) -> None:
        """Load the group again, as another server does after a kill."""
        self.timers.clear()
        self.group, effects = Group.restore(self.storage.stored, self.settings, self._now, self.configs)
        self._carry_out(effects)

    @property
    def _now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(changes):
                    self.storage.apply(changes)
                    self.writes += 1
                case Reply(token, result):
                    assert token not in self._results
                    self._results[token] = result  # type: ignore[index]
                case SetTimer(key, deadline_ms):
                    self.timers[key] = deadline_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Assign():
                    self.assigning.append(effect)
