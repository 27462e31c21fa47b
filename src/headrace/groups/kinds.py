"""Kinds of groups. Each newer kind has a part, a `KindGroup`, that handles its members' requests.

Only this module decides by kind.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.groups.configs import Configs, NewerGroupSettings
from headrace.groups.consumers import heartbeat
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerNotice, ConsumerRequest
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.description import GroupDescription, Moved
from headrace.groups.effects import Result
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, Request, TimerFired, TxnOffsetCommit
from headrace.groups.instances.group import BalancedGroup
from headrace.groups.model import GroupHeader, GroupKind, StoredGroup, TopicPartition
from headrace.groups.timers import TimerKind
from headrace.groups.turn import Turn

KINDS: Mapping[type, GroupKind] = {ConsumerHeartbeat: GroupKind.CONSUMER}
"""Request of members -> kind of their group."""
TIMERS = frozenset({TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.TARGET})
"""Timers of newer kinds. Classic members have some of them, too, but never in the same group."""

KindEvent = ConsumerRequest | ConsumerNotice | TimerFired | DropTopic
"""Events of the parts of newer kinds."""


class KindGroup(Protocol):
    """The part of a group with members of a newer kind."""

    @property
    def kind(self) -> GroupKind:
        """Kind of its members."""

    @property
    def header(self) -> GroupHeader | None:
        """The header as it is or will be stored. None: the group never had a member."""

    @property
    def is_used(self) -> bool:
        """Whether the group remains and excludes members of other kinds."""

    @property
    def size(self) -> int:
        """Number of members."""

    @property
    def epoch(self) -> int:
        """The group's epoch, from which a classic group's generation continues."""

    @property
    def member_bytes(self) -> int:
        """Approximate bytes of members."""

    @property
    def state(self) -> str:
        """State with Kafka's name."""

    def take(self, event: KindEvent, turn: Turn) -> None:
        """Handle one event."""

    def reads(self, topic: str) -> bool:
        """Return whether a member is subscribed to a topic."""

    def subscribed(self) -> Iterable[str]:
        """Return the topics of all members, each once or more."""

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call."""

    def describe(self) -> GroupDescription:
        """Return the description as for a classic group."""

    def check_commit(self, request: Commit | TxnOffsetCommit) -> GroupError | dict[TopicPartition, GroupError]:
        """Return why a commit is rejected: all of it, or which partitions of it. Called only if there are members."""

    def check_fetch(self, member_id: str | None, epoch: int) -> GroupError | None:
        """Return why a fetch of committed offsets is rejected. Called only if there are members."""


def fault(request: ConsumerRequest, limits: NewerGroupSettings) -> tuple[GroupError, str] | None:
    """Return what is wrong with a member's request in any group, and Kafka's message."""
    return heartbeat.fault(request, limits)


def at_once(part: KindGroup | None, request: Request) -> Result | None:
    """Return the result of a request that changes nothing. None: it may."""
    if isinstance(part, ConsumerGroup) and isinstance(request, ConsumerHeartbeat):
        return part.may_go_on(request)
    return None


def part_for(kind: GroupKind, name: str, limits: NewerGroupSettings, configs: Configs, epoch: int) -> KindGroup:
    """Return the part of a group without members. `epoch`: its generation or epoch so far."""
    assert kind is GroupKind.CONSUMER, kind
    return ConsumerGroup(name, limits, configs, epoch)


def restored(stored: StoredGroup, limits: NewerGroupSettings, configs: Configs, turn: Turn) -> KindGroup | None:
    """Return the part of a stored group. None: the group is classic."""
    header = stored.header
    if header is None or header.kind is GroupKind.CLASSIC:
        return None
    assert header.kind is GroupKind.CONSUMER, header.kind
    return ConsumerGroup.restore(stored, header, limits, configs, turn)


class OtherMembers(dict[str, BalancedGroup]):
    """Sections by topic, and the part of a newer kind (`classic.membership.OtherApis`)."""

    _part: KindGroup | None = None

    @property
    def part(self) -> KindGroup | None:
        """The part of a newer kind."""
        return self._part

    @part.setter
    def part(self, part: KindGroup | None) -> None:
        self._part = part
        if isinstance(part, ConsumerGroup):
            part.instances.sections = self

    def has_section(self, topic: str) -> bool:
        """Whether offsets of the topic are kept."""
        return topic in self or (self.part is not None and self.part.reads(topic))

    def is_read(self, topic: str) -> bool:
        """Whether the topic has readers."""
        if self.part is not None and self.part.reads(topic):
            return True
        return topic in self and self[topic].has_instances

    @property
    def has_sections(self) -> bool:
        """Whether the group remains without committed offsets."""
        return bool(self) or (self.part is not None and self.part.is_used)

    @property
    def any_read(self) -> bool:
        """Whether there are members."""
        return (self.part is not None and self.part.size > 0) or self.has_instances

    @property
    def has_instances(self) -> bool:
        """Whether any section has instances."""
        return any(section.has_instances for section in self.values())
