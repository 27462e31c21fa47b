"""Stored values: topics, groups and positions, the view, heartbeats and changes. As text, and back."""

import msgspec

from headrace.groups.model import GroupHeader, OffsetAndMetadata, StoredBalanced, StoredMember, TopicPartition
from headrace.membership.view import Member, View
from headrace.topics.model import Topic

_encoder = msgspec.json.Encoder()
_topic = msgspec.json.Decoder(Topic)
_header = msgspec.json.Decoder(GroupHeader)
_member = msgspec.json.Decoder(StoredMember)
_position = msgspec.json.Decoder(OffsetAndMetadata)
_section = msgspec.json.Decoder(StoredBalanced)


def encode(value: Topic | GroupHeader | StoredMember | OffsetAndMetadata | StoredBalanced) -> bytes:
    """JSON with the struct's field names."""
    return _encoder.encode(value)


def topic(text: bytes) -> Topic:
    """Raises msgspec.ValidationError for something else."""
    return _topic.decode(text)


def header(text: bytes) -> GroupHeader:
    """Raises msgspec.ValidationError for something else."""
    return _header.decode(text)


def member(text: bytes) -> StoredMember:
    """Raises msgspec.ValidationError for something else."""
    return _member.decode(text)


def position(text: bytes) -> OffsetAndMetadata:
    """Raises msgspec.ValidationError for something else."""
    return _position.decode(text)


def section(text: bytes) -> StoredBalanced:
    """Raises msgspec.ValidationError for something else."""
    return _section.decode(text)


def partition_field(partition: TopicPartition) -> str:
    """A partition as a field of a positions hash."""
    return f"{partition.topic}:{partition.partition}"


def partition(field: bytes) -> TopicPartition:
    """The partition that a field names; raises ValueError for something else."""
    topic_name, _, index = field.decode().rpartition(":")
    return TopicPartition(topic_name, int(index))


_members = msgspec.json.Decoder(tuple[Member, ...])


class Change(msgspec.Struct, frozen=True):
    """Something has changed; what it is now has to be loaded."""

    kind: str
    """`view`, `topics`, `documents` or `leaders`."""
    name: str = ""
    """The topic's name; the kinds of documents, separated by spaces; streams and leaders, in turn."""
    cluster: str = ""
    """The topic's virtual cluster."""


def encode_members(members: tuple[Member, ...]) -> bytes:
    """The members of a view as JSON."""
    return msgspec.json.encode(members, order="sorted")


def view(number: bytes | str, members: bytes | str, before: bytes | str) -> View:
    """A stored view."""
    return View(int(number), _members.decode(members), int(before))


def heartbeat_field(member: Member) -> str:
    """Where a broker's heartbeats are counted."""
    return f"{member.node_id}:{member.incarnation}"


def heartbeats(pairs: list[bytes]) -> dict[tuple[int, str], int]:
    """Return the heartbeats of all brokers from fields and counters in turn. Other fields are skipped."""
    found = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        node, _, incarnation = field.decode().partition(":")
        if node.isdecimal() and counter.isdigit():
            found[int(node), incarnation] = int(counter)
    return found


def change(fields: dict[bytes, bytes]) -> Change:
    """A stored change."""
    return Change(fields.get(b"k", b"").decode(), fields.get(b"n", b"").decode(), fields.get(b"c", b"").decode())
