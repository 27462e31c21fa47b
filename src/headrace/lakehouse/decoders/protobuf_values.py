"""Decode Protobuf messages of one type, known by its descriptor.

The wire format is checked first: the library accepts fields with another wire type than declared. An empty message of
two bytes takes as much memory as all of its fields.
Source: protobuf.dev, "Encoding"; groups are of proto2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.client.errors import ModuleMissing, OptionError
from headrace.lakehouse.decoders.arrays import Faults, column
from headrace.lakehouse.decoders.cells import FEW_CELLS, most_cells, too_many, within
from headrace.lakehouse.decoders.json_values import placed
from headrace.lakehouse.decoders.protobuf_schema import TIMESTAMP, is_json, kind_of, message_named
from headrace.lakehouse.write.columns import Decoded, first_line
from headrace.text import extras

_MICRO: Final = 1000


class ProtobufDecoder:
    """Decodes messages of one type."""

    def __init__(self, descriptors: bytes, message: str | None, where: str, *, indexes: tuple[int, ...] = ()) -> None:
        """Prepare. Raise OptionError for a message that does not exist or cannot become columns, or ModuleMissing.

        `descriptors` is a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it. `message` is
        a full name, or None to use `indexes`: of the message in the last file, and of nested messages. `where` is the
        schema's name.
        """
        try:
            from google.protobuf import (  # noqa: PLC0415  # an extra
                descriptor_pb2,
                descriptor_pool,
                json_format,  # noqa: F401  # the readers import it
                message_factory,
            )
        except ImportError as error:
            raise ModuleMissing(extras.explained(where, error)) from None
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
            found = message_named(pool, files, message, indexes)
            self._make = message_factory.GetMessageClass(found)
            self.kind = kind_of(found)
            self._take = _reader(found, ())
            self._layout = layout(found)
            self._bound = Bound(self._layout)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
        except Exception as error:  # protobuf raises many types
            raise OptionError(f"{where} has no message that columns can be made of: {first_line(error)}") from None

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values; see `Decoder`."""
        faults: Faults = {}
        found: list[dict[str, Any] | None] = []
        whole = values.to_pylist()
        for row, value in enumerate(whole):
            try:
                if not self._bound.is_within(value):
                    check(value, self._layout)
                message = self._make.FromString(value)
                if not message.IsInitialized():
                    missing = ", ".join(message.FindInitializationErrors()[:3])
                    raise ValueError(f"required fields are missing: {missing}")
                size = message.ByteSize()
                message.DiscardUnknownFields()
                if message.ByteSize() != size:
                    check(value, self._layout)
                found.append(self._take(message))
            except Exception as error:  # malformed bytes may raise anything
                faults[row] = f"not a message of this type: {first_line(error)}"
                found.append(None)
        kind = placed(self.kind, known)
        return Decoded(column(kind, within(kind, found, map(len, whole), faults), faults), faults)


def _reader(descriptor: Any, above: tuple[str, ...]) -> Callable[[Any], dict[str, Any]]:
    inside = (*above, descriptor.full_name)
    takers = [(field.name, _taker(field, inside), field.has_presence) for field in descriptor.fields]

    def take(message: Any) -> dict[str, Any]:
        return {
            name: None if presence and not message.HasField(name) else taker(getattr(message, name))
            for name, taker, presence in takers
        }

    return take


def _taker(field: Any, above: tuple[str, ...]) -> Callable[[Any], Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        one = _one(message.fields_by_name["value"], above)
        return lambda found: {key: one(found[key]) for key in found}
    one = _one(field, above)
    return (lambda found: [one(each) for each in found]) if field.is_repeated else one


def _one(field: Any, above: tuple[str, ...]) -> Callable[[Any], Any]:
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return _microseconds
        return _as_json if is_json(message, above) else _reader(message, above)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda found: names.get(found, str(found))
    return lambda found: found


def _microseconds(found: Any) -> int:
    if not 0 <= found.nanos < 1_000_000_000:
        raise ValueError(f"a Timestamp with {found.nanos} nanoseconds")
    if found.nanos % _MICRO:
        raise ValueError(f"a Timestamp with {found.nanos} nanoseconds has more digits than microseconds")
    return int(found.seconds) * 1_000_000 + int(found.nanos) // _MICRO


def _as_json(found: Any) -> Any:
    from google.protobuf import json_format  # noqa: PLC0415  # an extra

    return json_format.MessageToDict(found, preserving_proto_field_name=True)


_VARINT, _FIXED64, _LENGTH, _GROUP, _END, _FIXED32 = range(6)
_NAMES: Final = ("a varint", "64 bits", "a length", "a group", "the end of a group", "32 bits")
_PACKED: Final = (_VARINT, _FIXED64, _FIXED32)
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}


class WireError(ValueError):
    """A value does not match its descriptor or exceeds a limit."""


@dataclass(eq=False)
class Layout:
    """Wire types of a message's fields."""

    name: str
    types: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Field number -> accepted wire types."""
    inner: "dict[int, Layout]" = field(default_factory=dict)
    """Field number -> layout of the message."""
    names: dict[int, str] = field(default_factory=dict)
    closed: dict[int, frozenset[int]] = field(default_factory=dict)
    """Field number -> allowed values of a proto2 enum; the library drops all others."""

    @property
    def cells(self) -> int:
        """Return the minimum cells of one message."""
        return max(1, len(self.types))


def layout(descriptor: Any) -> Layout:
    """Return a message's layout, with each nested message once."""
    made = {descriptor.full_name: Layout(descriptor.full_name)}
    left = [descriptor]
    while left:
        one = left.pop()
        here = made[one.full_name]
        for each in one.fields:
            own = _wire_type(each)
            here.types[each.number] = (own, _LENGTH) if each.is_repeated and own in _PACKED else (own,)
            here.names[each.number] = each.name
            if each.message_type is not None:
                name = each.message_type.full_name
                if name not in made:
                    made[name] = Layout(name)
                    left.append(each.message_type)
                here.inner[each.number] = made[name]
            elif each.enum_type is not None and each.enum_type.is_closed:
                here.closed[each.number] = frozenset(value.number for value in each.enum_type.values)
    return made[descriptor.full_name]


def _wire_type(one: Any) -> int:
    if one.type in {one.TYPE_DOUBLE, one.TYPE_FIXED64, one.TYPE_SFIXED64}:
        return _FIXED64
    if one.type in {one.TYPE_FLOAT, one.TYPE_FIXED32, one.TYPE_SFIXED32}:
        return _FIXED32
    if one.type in {one.TYPE_STRING, one.TYPE_BYTES, one.TYPE_MESSAGE}:
        return _LENGTH
    return _GROUP if one.type == one.TYPE_GROUP else _VARINT


class Bound:
    """Decides from the bytes alone whether a value can exceed the limit of messages: most cannot."""

    def __init__(self, whole: Layout) -> None:
        self._cells = 0
        first: set[int] = set()
        seen, left = {whole.name}, [whole]
        while left:
            one = left.pop()
            for number, inner in one.inner.items():
                self._cells = max(self._cells, inner.cells)
                # The first byte of a tag. Bytes above 127 continue a tag, even where it could be shorter.
                first |= {
                    low | high
                    for low in ((number << 3 | wire) & 0x7F for wire in one.types[number])
                    for high in (0, 0x80)
                }
                if inner.name not in seen:
                    seen.add(inner.name)
                    left.append(inner)
        self._first = [bytes([one]) for one in sorted(first)] if self._cells > FEW_CELLS else []

    def is_within(self, data: bytes) -> bool:
        """Return whether the value is within the limit. Otherwise `check` counts its messages."""
        if not self._first or len(data) * self._cells <= most_cells(len(data)):
            return True
        return sum(map(data.count, self._first)) * self._cells <= most_cells(len(data))


def check(data: bytes, whole: Layout) -> None:  # noqa: C901, PLR0912  # one loop, a branch for each wire type
    """Raise WireError for fields of another wire type than declared, and for too many messages.

    The library reports malformed input, which ends the check.
    """
    left = most_cells(len(data))
    # The end and layout of each message. A group ends with a tag; None is an unknown message.
    above: list[tuple[int, Layout | None]] = []
    at, end, here = 0, len(data), whole
    now: Layout | None = here
    try:
        while True:
            while at >= end:
                if at > end or not above:
                    return
                end, now = above.pop()
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            if wire == _END:
                if not above:
                    return
                end, now = above.pop()
                continue
            wanted = None if now is None else now.types.get(number)
            if now is not None and wanted is not None and wire not in wanted:
                what = _NAMES[wire] if wire < len(_NAMES) else f"wire type {wire}"
                raise WireError(f"field {now.name}.{now.names[number]} has {what} where {_NAMES[wanted[0]]} belongs")
            inner = None if now is None else now.inner.get(number)
            if inner is not None:
                left -= inner.cells
                if left < 0:
                    raise WireError(too_many(len(data)))
            if wire == _VARINT:
                value, at = _varint(data, at)
                if now is not None and number in now.closed:
                    _known(now, number, value)
            elif wire in _FIXED:
                at += _FIXED[wire]
            elif wire == _GROUP:
                above.append((end, now))
                now = inner
            elif wire == _LENGTH:
                length, at = _varint(data, at)
                if now is not None and number in now.closed:  # a packed list
                    place = at
                    while place < min(at + length, end):
                        value, place = _varint(data, place)
                        _known(now, number, value)
                if inner is None or at + length > end:
                    at += length
                else:
                    above.append((end, now))
                    end, now = at + length, inner
            else:
                return
    except IndexError:
        return


def _known(now: Layout, number: int, value: int) -> None:
    value = (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    if value not in now.closed[number]:
        raise WireError(f"field {now.name}.{now.names[number]} has {value}, which its enum has not")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = data[at]
    at += 1
    if number >= 0x80:
        number &= 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at
        raise IndexError(at)
    return number, at
