"""Stored values: topics, groups and positions as text, and back."""

import msgspec

from headrace.groups.model import GroupHeader, OffsetAndMetadata, StoredBalanced, StoredMember, TopicPartition
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
