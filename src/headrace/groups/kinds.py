"""Parts of a group with members of a newer kind: a consumer group or a share group.

`groups.group` chooses the part for an event. A share group excludes all other members (`sharing.exclusion`).
"""

from collections.abc import Iterable
from typing import Protocol

from headrace.groups.consumers.events import ConsumerNotice, ConsumerRequest
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.description import GroupDescription, Moved
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, TimerFired, TxnOffsetCommit
from headrace.groups.instances.group import BalancedGroup
from headrace.groups.model import GroupHeader, GroupKind, TopicPartition
from headrace.groups.timers import TimerKind
from headrace.groups.turn import Turn

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


class OtherMembers(dict[str, BalancedGroup]):
    """Sections by topic, and the part with consumers (`classic.membership.OtherApis`)."""

    _part: ConsumerGroup | None = None

    @property
    def part(self) -> ConsumerGroup | None:
        """The part with consumers."""
        return self._part

    @part.setter
    def part(self, part: ConsumerGroup | None) -> None:
        self._part = part
        if part is not None:
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
