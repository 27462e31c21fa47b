"""Classes of messages. The codec of a version is compiled at its first use."""

import struct
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from headrace.protocol.decoder import Decode, build_decoder
from headrace.protocol.encoder import Classes, Encode, EncodePieces, build_encoder, build_pieces_encoder
from headrace.protocol.errors import DecodeError, EncodeError, UnsupportedVersionError
from headrace.protocol.notation import Field, MessageTable
from headrace.protocol.wire import Buffer

Chunk = bytes | bytearray | memoryview
Records = bytes | bytearray | memoryview | list[Chunk] | tuple[Chunk, ...]
"""A records field: one buffer, or several to concatenate."""

NO_LIMIT = 1 << 62

T = TypeVar("T")


class Message(msgspec.Struct, gc=False):
    """A request or response body of any version.

    Fields that a version lacks are not written, and have their default when read.
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, -1)
    """Lowest and highest version of this codec. A server may offer fewer."""
    FLEXIBLE_FROM: ClassVar[int] = 0
    """The first version with compact types and tagged fields; above all versions when there is none."""
    _decoders: ClassVar["_Codecs[Decode]"]
    _encoders: ClassVar["_Codecs[Encode]"]
    _pieces_encoders: ClassVar["_Codecs[EncodePieces]"]
    _part_encoders: ClassVar["_PartEncoders"]

    @classmethod
    def decode(cls, buffer: Buffer, position: int, version: int, most: int = NO_LIMIT) -> Self:
        """Decode a body up to the end of the buffer; records fields are views of it.

        Raises DecodeError for invalid bytes or more than `most` elements in total, and UnsupportedVersionError.
        """
        decoder = cls._decoders[version]
        try:
            return decoder(buffer, position, most)  # type: ignore[no-any-return]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from error

    def encode(self, version: int) -> list[Chunk]:
        """Return the body as chunks. Raises EncodeError, UnsupportedVersionError."""
        encoder = self._encoders[version]
        chunks: list[Chunk] = []
        try:
            encoder(self, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error
        return chunks

    def encode_in_pieces(self, version: int, chunks: list[Chunk]) -> Iterator[None]:
        """As `encode`, but append to `chunks` in small steps. The message must not change in between."""
        try:
            yield from self._pieces_encoders[version](self, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error

    @classmethod
    def encode_part(cls, part: Any, version: int, chunks: list[Chunk]) -> Iterator[None]:
        """As `encode_in_pieces`, for one structure of the message."""
        try:
            yield from cls._part_encoders[type(part).__name__, version](part, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(part).__name__} v{version}: {error}") from error

    @classmethod
    def encode_around(cls, part: Any, fields: Collection[str], version: int) -> list[bytes]:
        """Return an encoded structure, cut at numbers of 8 bits or more.

        `fields` are in the order of the structure. With the pieces, structures that differ only in these numbers are
        much faster to encode.
        """
        zeros = cls._encoded(msgspec.structs.replace(part, **dict.fromkeys(fields, 0)), version)
        pieces, begun = [], 0
        for field in fields:
            other = cls._encoded(msgspec.structs.replace(part, **dict.fromkeys(fields, 0) | {field: -1}), version)
            # All bytes of -1 differ from those of 0, and no others.
            differ = [at for at, (zero, one) in enumerate(zip(zeros, other, strict=True)) if zero != one]
            if differ:
                pieces.append(zeros[begun : differ[0]])
                begun = differ[-1] + 1
        return [*pieces, zeros[begun:]]

    @classmethod
    def _encoded(cls, part: Any, version: int) -> bytes:
        chunks: list[Chunk] = []
        for _ in cls.encode_part(part, version, chunks):
            pass
        return b"".join(chunks)


class _PartEncoders(dict[tuple[str, int], EncodePieces]):
    def __init__(self, table: MessageTable, classes: Classes) -> None:
        super().__init__()
        self._table = table
        self._classes = classes

    def __missing__(self, key: tuple[str, int]) -> EncodePieces:
        name, version = key
        [part] = [each for each in self._table.root.nested() if each.name == name]
        encoder = self[key] = build_pieces_encoder(self._table, version, self._classes, part)
        return encoder


class _Codecs(dict[int, T]):
    def __init__(self, table: MessageTable, build: Callable[[MessageTable, int, Classes], T], classes: Classes) -> None:
        super().__init__()
        self._table = table
        self._build = build
        self._classes = classes

    def __missing__(self, version: int) -> T:
        if version not in self._table.versions:
            raise UnsupportedVersionError(f"{self._table.root.name} has no version {version}")
        codec = self[version] = self._build(self._table, version, self._classes)
        return codec


def build_message(table: MessageTable, module: str) -> type[Message]:
    """Return the class of a message, with its structures as attributes, for the importing `module`."""
    name = table.root.name
    classes: Classes = {}
    for structure in table.root.nested():
        classes[structure.name] = msgspec.defstruct(
            structure.name,
            [_field(field, classes) for field in structure.fields],
            namespace={"__qualname__": f"{name}.{structure.name}"},
            module=module,
            gc=False,
        )
    message: Any = msgspec.defstruct(
        name,
        [_field(field, classes) for field in table.root.fields],
        bases=(Message,),
        namespace={
            "API_KEY": table.api_key,
            "VERSIONS": (table.versions.low, table.versions.high),
            "FLEXIBLE_FROM": table.flexible_from,
            **classes,
        },
        module=module,
        gc=False,
    )
    classes[name] = message
    message._decoders = _Codecs(table, build_decoder, classes)
    message._encoders = _Codecs(table, build_encoder, classes)
    message._pieces_encoders = _Codecs(table, build_pieces_encoder, classes)
    message._part_encoders = _PartEncoders(table, classes)
    finished: type[Message] = message
    return finished


def _field(field: Field, classes: Classes) -> tuple[str, Any, Any]:
    if field.struct is not None and not field.is_array and not field.may_be_none:
        return field.name, Any, msgspec.field(default_factory=classes[field.kind])
    return field.name, Any, field.default
