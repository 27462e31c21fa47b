"""Checks of single records, which a topic's configuration asks for. Pure.

They read the records, unlike `topics.validator`. `scan` can run in a thread, and returns a bounded summary of a batch.
`faults` judges the summary. A batch with one rejected record is rejected as a whole, and the error lists its rejected
records (KIP-467).
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from headrace.records import accelerator
from headrace.records.batch import peek
from headrace.records.compression import LIMIT
from headrace.records.fallback.header import Buffer
from headrace.records.walk import payload
from headrace.topics.errors import InvalidRecords

MOST_LISTED = 100
"""Maximum rejected records of a batch that an error lists."""
MOST_SCHEMAS = 64
"""Maximum schemas of the values, or the keys, of a batch."""
_MOST_SHOWN = 3
"""As in Kafka: records in the text of the error."""
DISABLED = "the schema registry of this server is disabled: set schema.registry.enable=true"


class Part(Enum):
    """A part of a record that can have a schema."""

    KEY = "key"
    VALUE = "value"

    @property
    def validation(self) -> str:
        """The configuration key that asks for schemas."""
        return f"confluent.{self.value}.schema.validation"

    @property
    def strategy(self) -> str:
        """The configuration key of the subject's name."""
        return f"confluent.{self.value}.subject.name.strategy"

    @property
    def header(self) -> bytes:
        """The record header that refers to a schema, instead of the first bytes."""
        return f"__{self.value}_schema_id".encode()


class SubjectNameStrategy(Enum):
    """How the subject of a schema is named, with the names of Confluent's classes."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"


class SchemaCheck(msgspec.Struct, frozen=True):
    """Keys or values refer to a schema that is registered under the right subject, or are null."""

    part: Part
    strategy: SubjectNameStrategy

    def subjects(self, topic: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the subjects in which a schema with these record names may be registered."""
        match self.strategy:
            case SubjectNameStrategy.TOPIC:
                yield f"{topic}-{self.part.value}"
            case SubjectNameStrategy.RECORD:
                yield from names
            case SubjectNameStrategy.TOPIC_RECORD:
                yield from (f"{topic}-{name}" for name in names)


class RecordChecks(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic asks of each record. A topic that asks for nothing has no such object."""

    key: bool = False
    """Each record has a key, as compaction needs one."""
    schemas: tuple[SchemaCheck, ...] = ()

    @property
    def needs_names(self) -> bool:
        """Whether subjects depend on the names of records."""
        return any(each.strategy is not SubjectNameStrategy.TOPIC for each in self.schemas)


class Schemas(Protocol):
    """The schema registry. References are as in `records.fallback.checks.schemas`."""

    def is_registered(self, reference: bytes, subject: str) -> bool:
        """Return whether a subject is known to have a version with a schema."""

    def names(self, reference: bytes) -> frozenset[str]:
        """Return the names of the records that a schema defines, as far as they have been learned."""

    async def learn(self, references: Iterable[bytes], *, names: bool) -> None:
        """Catch up with other brokers, and learn the names of these schemas. Raises TopicError."""


class FoundSchemas(NamedTuple):
    """Schemas to which the keys or values of a batch refer; see `records.fallback.checks.schemas`."""

    schemas: list[tuple[bytes, int, int]]
    malformed: list[int]
    malformed_count: int
    excess: int


class Scanned(NamedTuple):
    """What the checks of a batch depend on."""

    size: int
    """Bytes of its records, decompressed."""
    keyless: list[int]
    keyless_count: int
    schemas: tuple[FoundSchemas, ...]
    """For each of `RecordChecks.schemas`."""


class Faults(NamedTuple):
    """Rejected records of a batch."""

    reasons: Mapping[int, str]
    """Index of a record -> why it is rejected, for the first ones."""
    total: int
    unknown: list[bytes]
    """Schemas that are not registered as far as this broker knows."""


def checks_of(
    *, compacted: bool, key: SubjectNameStrategy | None = None, value: SubjectNameStrategy | None = None
) -> RecordChecks | None:
    """Return the checks of a configuration; None: there are none. `key` and `value` are those that have schemas."""
    parts = ((Part.KEY, key), (Part.VALUE, value))
    schemas = tuple(SchemaCheck(part, strategy) for part, strategy in parts if strategy is not None)
    return RecordChecks(key=compacted, schemas=schemas) if compacted or schemas else None


def scan(checks: RecordChecks, batch: Buffer, *, limit: int = LIMIT) -> Scanned:
    """Read the records of a batch. Other threads can run.

    Raises BatchError if they cannot be read, or take more than `limit` bytes.
    """
    header = peek(batch)
    section = payload(header, batch, limit)
    place = section, header.count, header.last_offset_delta
    keyless, count = accelerator.keyless(*place, MOST_LISTED) if checks.key else ([], 0)
    schemas = tuple(
        FoundSchemas(*accelerator.schemas(*place, each.part is Part.VALUE, each.part.header, MOST_SCHEMAS, MOST_LISTED))
        for each in checks.schemas
    )
    return Scanned(len(section), keyless, count, schemas)


def faults(checks: RecordChecks, topic: str, partition: int, scanned: Scanned, schemas: Schemas | None) -> Faults:
    """Return the rejected records of a batch for a partition. `schemas` is None if the registry is disabled."""
    reason = f"Compacted topic cannot accept message without key in topic partition {topic}-{partition}."
    reasons = dict.fromkeys(scanned.keyless, reason)
    total, unknown = scanned.keyless_count, list[bytes]()
    for check, found in zip(checks.schemas, scanned.schemas, strict=True):
        for index in found.malformed:
            reasons.setdefault(index, _malformed(check))
        total += found.malformed_count
        for reference, first, number in found.schemas:
            if schemas is not None:
                subjects = check.subjects(topic, schemas.names(reference))
                if any(schemas.is_registered(reference, each) for each in subjects):
                    continue
                unknown.append(reference)
            reasons.setdefault(first, DISABLED if schemas is None else _unregistered(check, topic, reference))
            total += number
        if found.excess >= 0:
            reasons.setdefault(found.excess, f"The batch has more than {MOST_SCHEMAS} schemas.")
            total += 1
    return Faults(reasons, total, unknown)


def _malformed(check: SchemaCheck) -> str:
    part = check.part
    return (
        f"The {part.value} has no valid schema ID, which {part.validation}=true requires: it must begin with a zero "
        f"byte and an ID of four bytes, or have the header {part.header.decode()}."
    )


def _unregistered(check: SchemaCheck, topic: str, reference: bytes) -> str:
    by_id = len(reference) == 5
    schema = f"ID {int.from_bytes(reference[1:], 'big')}" if by_id else f"GUID {UUID(bytes=reference[1:])}"
    match check.strategy:
        case SubjectNameStrategy.TOPIC:
            where = f"subject {topic}-{check.part.value}"
        case SubjectNameStrategy.RECORD:
            where = "the subject of its record's name"
        case SubjectNameStrategy.TOPIC_RECORD:
            where = f"subject {topic}- and its record's name"
    return f"The schema with {schema} of the {check.part.value} is not registered in {where}."


def rejected(found: Faults) -> InvalidRecords:
    """Return the error for a batch with rejected records."""
    reasons = dict(sorted(found.reasons.items())[:MOST_LISTED])
    shown = "; ".join(f"record {index}: {reason}" for index, reason in list(reasons.items())[:_MOST_SHOWN])
    return InvalidRecords(
        f"One or more records have been rejected due to {found.total} record errors in total, and only showing the "
        f"first three errors at most: {shown}",
        reasons,
    )
