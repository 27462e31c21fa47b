"""A group's stored form, updated without reading storage."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from headrace.groups.model import (
    DropBalanced,
    DropField,
    DropGroup,
    DropMember,
    DropOffsets,
    DropPending,
    GroupChange,
    GroupHeader,
    OffsetAndMetadata,
    SaveBalanced,
    SaveField,
    SaveHeader,
    SaveMember,
    SaveOffsets,
    SavePending,
    StoredBalanced,
    StoredField,
    StoredGroup,
    StoredMember,
    TopicPartition,
)
from headrace.groups.pending_offsets import PendingOffsets


class Snapshot:
    """State of a group in storage after every accepted change."""

    def __init__(self, stored: StoredGroup) -> None:
        self._name = stored.name
        self._header: GroupHeader | None = stored.header
        self._members: dict[str, StoredMember] = {member.member_id: member for member in stored.members}
        self._positions: dict[TopicPartition, OffsetAndMetadata] = dict(stored.positions)
        self.pending = PendingOffsets(stored.pending)
        """Durable pending offsets."""
        self._sections: dict[str, StoredBalanced] = {section.topic: section for section in stored.balanced}
        self._fields: dict[str, StoredField] = {value.field: value for value in stored.fields}

    @classmethod
    def empty(cls, name: str) -> "Snapshot":
        """Return a group without stored state."""
        return cls(StoredGroup(name=name, header=None, members=(), positions={}))

    def apply(self, changes: Iterable[GroupChange]) -> None:
        """Apply changes that storage has accepted."""
        for change in changes:
            match change:
                case SavePending(pending):
                    self.pending.put(pending)
                case DropPending(keys):
                    self.pending.remove(keys)
                case SaveField(value):
                    self._fields[value.field] = value
                case DropField(field):
                    self._fields.pop(field, None)
                case _:
                    self._apply(change)

    def _apply(self, change: GroupChange) -> None:
        match change:
            case SaveHeader(header):
                self._header = header
            case SaveMember(member):
                self._members[member.member_id] = member
            case DropMember(member_id):
                self._members.pop(member_id, None)
            case SaveOffsets(positions):
                self._positions.update(positions)
            case DropOffsets(partitions):
                for partition in partitions:
                    self._positions.pop(partition, None)
            case SaveBalanced(section):
                self._sections[section.topic] = section
            case DropBalanced(topic):
                self._sections.pop(topic, None)
            case DropGroup():
                self._header = None
                self._members.clear()
                self._positions.clear()
                self.pending.clear()
                self._sections.clear()
                self._fields.clear()

    @property
    def stored(self) -> StoredGroup:
        """The stored form."""
        return StoredGroup(
            name=self._name,
            header=self._header,
            members=tuple(self._members.values()),
            positions=dict(self._positions),
            balanced=tuple(self._sections[topic] for topic in sorted(self._sections)),
            pending=dict(self.pending.all()),
            fields=tuple(self._fields.values()),
        )

    @property
    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """View of the durable offsets."""
        return MappingProxyType(self._positions)

    @property
    def sections(self) -> Mapping[str, StoredBalanced]:
        """View of the durable balanced sections by topic."""
        return MappingProxyType(self._sections)

    def rewrite(self) -> tuple[GroupChange, ...]:
        """Return changes that make storage equal to this, whatever it has."""
        changes: list[GroupChange] = [DropGroup()]
        if self._header is not None:
            changes.append(SaveHeader(self._header))
        changes += [SaveMember(member) for member in self._members.values()]
        if self._positions:
            changes.append(SaveOffsets(dict(self._positions)))
        if len(self.pending):
            changes.append(SavePending(dict(self.pending.all())))
        changes += [SaveBalanced(section) for section in self._sections.values()]
        changes += [SaveField(value) for value in self._fields.values()]
        return tuple(changes)

    @property
    def nothing(self) -> bool:
        """Whether storage has nothing of the group."""
        some = self._members or self._positions or self._sections or len(self.pending) or self._fields
        return self._header is None and not some
