"""Schemas, references, versions and differences as values."""

from enum import Enum
from typing import Any, Final

import msgspec

TYPES: Final = ("JSON", "PROTOBUF", "AVRO")
"""The types of schemas, in Confluent's order."""
DEFAULT_TYPE: Final = "AVRO"


class Level(Enum):
    """Compatibility levels."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Return whether all versions count, not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Return whether the new schema must read data of earlier ones."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Return whether earlier schemas must read data of the new one."""
        return self.value.startswith(("FORWARD", "FULL"))


class Mode(Enum):
    """Modes of the registry or of a subject."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


class Reference(msgspec.Struct, frozen=True):
    """A reference of a schema to a version of a subject."""

    name: str
    """The name by which the schema imports the other one."""
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True):
    """A schema as it is stored."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    descriptor: bytes = b""
    """Protobuf: the serialized FileDescriptorProto."""


class Referenced(msgspec.Struct, frozen=True):
    """A schema that another one imports."""

    name: str
    schema: Schema


class Parsed(msgspec.Struct, frozen=True):
    """A parsed schema."""

    type: str
    text: str
    """Canonical text, as clients get it."""
    guid: str
    """The same for equal schemas with the same references, in every registry."""
    content: Any
    """What comparisons use; it depends on the type."""
    descriptor: bytes = b""


class Difference(msgspec.Struct, frozen=True):
    """An incompatible difference between two schemas."""

    kind: str
    """Such as `TYPE_MISMATCH`."""
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.kind}', description:'{self.detail}', additionalInfo:'path {self.path or '/'}'}}"


class Version(msgspec.Struct, frozen=True):
    """A version of a subject, without its text."""

    subject: str
    version: int
    id: int
    guid: str
    type: str
    size: int
    """Bytes of text and descriptor."""
    references: tuple[Reference, ...] = ()
    deleted: bool = False
