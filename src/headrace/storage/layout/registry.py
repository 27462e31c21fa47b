"""Encoding of stored values. Decoders raise msgspec.ValidationError."""

import msgspec

from headrace.groups.model import (
    CONSUMER_FIELD,
    GroupHeader,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    StoredBalanced,
    StoredConsumer,
    StoredField,
    StoredMember,
    TopicPartition,
)
from headrace.groups.sharing.model import SHARED_FIELD, SHARER_FIELD, StoredSharer, StoredShareTopic
from headrace.membership.view import Member, View
from headrace.topics.model import Topic

_encoder = msgspec.json.Encoder()
_topic = msgspec.json.Decoder(Topic)
_header = msgspec.json.Decoder(GroupHeader)
_member = msgspec.json.Decoder(StoredMember)
_position = msgspec.json.Decoder(OffsetAndMetadata)
_pending = msgspec.json.Decoder(PendingOffset)
_section = msgspec.json.Decoder(StoredBalanced)
_fields: dict[str, msgspec.json.Decoder[StoredField]] = {
    CONSUMER_FIELD: msgspec.json.Decoder(StoredConsumer),
    SHARER_FIELD: msgspec.json.Decoder(StoredSharer),
    SHARED_FIELD: msgspec.json.Decoder(StoredShareTopic),
}
"""Beginning of a field's name in a group's main hash -> its decoder."""


def encode(
    value: Topic | GroupHeader | StoredMember | OffsetAndMetadata | PendingOffset | StoredBalanced | StoredField,
) -> bytes:
    """Encode as JSON."""
    return _encoder.encode(value)


def topic(text: bytes) -> Topic:
    """Decode a topic."""
    return _topic.decode(text)


def header(text: bytes) -> GroupHeader:
    """Decode a group's header."""
    return _header.decode(text)


def member(text: bytes) -> StoredMember:
    """Decode a group's member."""
    return _member.decode(text)


def position(text: bytes) -> OffsetAndMetadata:
    """Decode a committed offset."""
    return _position.decode(text)


def pending(text: bytes) -> PendingOffset:
    """Decode a pending offset."""
    return _pending.decode(text)


def section(text: bytes) -> StoredBalanced:
    """Decode a balanced section."""
    return _section.decode(text)


def group_field(pair: tuple[bytes, bytes]) -> StoredField | None:
    """Decode a field of a group's main hash. None: a field of another server's version."""
    name, _, _ = pair[0].partition(b":")
    decoder = _fields.get(f"{name.decode()}:")
    return None if decoder is None else decoder.decode(pair[1])


def partition_field(partition: TopicPartition) -> str:
    """Return the field of a partition in a hash of committed offsets."""
    return f"{partition.topic}:{partition.partition}"


def partition(field: bytes) -> TopicPartition:
    """Parse that field. Raises ValueError."""
    topic_name, _, index = field.decode().rpartition(":")
    return TopicPartition(topic_name, int(index))


def pending_field(key: PendingKey) -> str:
    """Return the field of a pending offset."""
    return f"{key.producer_id}:{partition_field(key.partition)}"


def pending_key(field: bytes) -> PendingKey:
    """Parse that field. Raises ValueError."""
    producer_id, _, place = field.partition(b":")
    if not producer_id.isdigit():
        raise ValueError(f"no producer id in {field!r}")
    return PendingKey(int(producer_id), partition(place))


class _Closed(msgspec.Struct, frozen=True):
    """Members that brokers without transactions cannot read: see the script `raise_layout`."""

    members: tuple[Member, ...]


_members = msgspec.json.Decoder(tuple[Member, ...] | _Closed)


class Change(msgspec.Struct, frozen=True):
    """A change, whose value must be loaded."""

    kind: str
    """`view`, `topics`, `documents` or `leaders`."""
    name: str = ""
    """Name of the topic; kinds of documents, separated by spaces; or alternating streams and leaders."""
    cluster: str = ""
    """Virtual cluster of the topic."""


def encode_members(members: tuple[Member, ...]) -> bytes:
    """Encode the members of a view."""
    return msgspec.json.encode(members, order="sorted")


def view(number: bytes | str, members: bytes | str, before: bytes | str) -> View:
    """Decode a view."""
    found = _members.decode(members)
    return View(int(number), found.members if isinstance(found, _Closed) else found, int(before))


def heartbeat_field(member: Member) -> str:
    """Return the field of a broker's heartbeats."""
    return f"{member.node_id}:{member.incarnation}"


def heartbeats(pairs: list[bytes]) -> dict[tuple[int, str], int]:
    """Parse the heartbeats of all brokers."""
    found = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        node, _, incarnation = field.decode().partition(":")
        if node.isdecimal() and counter.isdigit():
            found[int(node), incarnation] = int(counter)
    return found


def change(fields: dict[bytes, bytes]) -> Change:
    """Decode a change."""
    return Change(fields.get(b"k", b"").decode(), fields.get(b"n", b"").decode(), fields.get(b"c", b"").decode())
