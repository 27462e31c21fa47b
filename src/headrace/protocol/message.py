"""Turns message tables into classes whose codecs are compiled at first use of each version."""

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
"""What a records field takes: one buffer, or several that are sent one after the other."""

NO_LIMIT = 1 << 62

T = TypeVar("T")


class Message(msgspec.Struct, gc=False):
    """A request or response body, the same class for all of its versions.

    A field that a version lacks is not written, and reads as its default. Structures are mutable and compare by value.
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, -1)
    """The lowest and highest version this codec speaks; which of them a server offers is the server's affair."""
    FLEXIBLE_FROM: ClassVar[int] = 0
    """The first version with compact types and tagged fields; above all versions when there is none."""
    _decoders: ClassVar["_Codecs[Decode]"]
    _encoders: ClassVar["_Codecs[Encode]"]
    _pieces_encoders: ClassVar["_Codecs[EncodePieces]"]
    _part_encoders: ClassVar["_PartEncoders"]

    @classmethod
    def decode(cls, buffer: Buffer, position: int, version: int, most: int = NO_LIMIT) -> Self:
        """The body from `position` to the end of the buffer, whose bytes the records fields go on viewing.

        Raises DecodeError for every other sequence of bytes, and for more than `most` elements in its arrays, and
        tagged fields, together;
        UnsupportedVersionError for a version not in VERSIONS.
        """
        decoder = cls._decoders[version]
        try:
            return decoder(buffer, position, most)  # type: ignore[no-any-return]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from error

    def encode(self, version: int) -> list[Chunk]:
        """The body as a list of chunks: records as they were given, everything between them joined.

        Raises EncodeError when a value does not fit its type, UnsupportedVersionError for a version not in VERSIONS.
        """
        encoder = self._encoders[version]
        chunks: list[Chunk] = []
        try:
            encoder(self, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error
        return chunks

    def encode_in_pieces(self, version: int, chunks: list[Chunk]) -> Iterator[None]:
        """Append what `encode` returns to `chunks`, in many small steps: each is one of the iterator's.

        Nothing may change the message in between. Raises as `encode`.
        """
        try:
            yield from self._pieces_encoders[version](self, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error

    @classmethod
    def encode_part(cls, part: Any, version: int, chunks: list[Chunk]) -> Iterator[None]:
        """As `encode_in_pieces`, of one structure of the message alone: for `encoder.Encoded`."""
        try:
            yield from cls._part_encoders[type(part).__name__, version](part, chunks)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise EncodeError(f"{type(part).__name__} v{version}: {error}") from error

    @classmethod
    def encode_around(cls, part: Any, fields: Collection[str], version: int) -> list[bytes]:
        """What `encode_part` makes of a structure, cut where some of its fields were: numbers of 8 bits or more.

        `fields` are in their order in the structure; one that the version lacks makes no cut. With the pieces,
        structures that differ in those numbers only are encoded at a fraction of the cost.
        """
        zeros = cls._encoded(msgspec.structs.replace(part, **dict.fromkeys(fields, 0)), version)
        pieces, begun = [], 0
        for field in fields:
            other = cls._encoded(msgspec.structs.replace(part, **dict.fromkeys(fields, 0) | {field: -1}), version)
            # Every byte of -1 differs from that of 0, and nothing else does.
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
    """Name of a structure and version -> its encoder, compiled when first asked for."""

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
    """Version -> codec, compiled when first asked for."""

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
    """The class of a message, with its structures as attributes; `module` is where users import it from."""
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
    """A field as `defstruct` takes it. The types are for type checkers, which read messages.pyi."""
    if field.struct is not None and not field.is_array and not field.may_be_none:
        return field.name, Any, msgspec.field(default_factory=classes[field.kind])
    return field.name, Any, field.default
