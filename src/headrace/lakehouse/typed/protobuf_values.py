"""Values that are Protobuf messages of one type, known by its descriptor."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.typed import protobuf_schema, protobuf_wire
from headrace.lakehouse.typed.arrays import Faults, column
from headrace.lakehouse.typed.cells import within
from headrace.lakehouse.typed.json_values import placed
from headrace.lakehouse.typed.protobuf_schema import TIMESTAMP, is_json
from headrace.lakehouse.write.columns import Decoded, first_line

_MICRO: Final = 1000


class ProtobufDecoder:
    """Decodes messages of one type."""

    def __init__(self, descriptors: bytes, message: str | None, where: str, *, indexes: tuple[int, ...] = ()) -> None:
        """Prepare.

        Args:
            descriptors: a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it.
            message: the message's full name; None: the one that `indexes` lead to.
            where: for messages to people.
            indexes: place of the message in the last file, and of nested ones below it.

        Raises:
            OptionError: no such message, or one that has no columns.
        """
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415  # an extra

        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
            found = protobuf_schema.message_named(pool, files, message, indexes)
            self._make = message_factory.GetMessageClass(found)
            self.kind = protobuf_schema.kind_of(found)
            self._take = _reader(found, ())
            self._layout = protobuf_wire.layout(found)
            self._bound = protobuf_wire.Bound(self._layout)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
        except Exception as error:  # protobuf has many
            raise OptionError(f"{where} has no message that columns can be made of: {first_line(error)}") from None

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Values without nulls, in columns for a table with those that are `known`."""
        faults: Faults = {}
        found: list[dict[str, Any] | None] = []
        whole = values.to_pylist()
        for row, value in enumerate(whole):
            try:
                if not self._bound.is_within(value):
                    protobuf_wire.check(value, self._layout)
                message = self._make.FromString(value)
                if not message.IsInitialized():
                    missing = ", ".join(message.FindInitializationErrors()[:3])
                    raise ValueError(f"required fields are missing: {missing}")
                size = message.ByteSize()
                message.DiscardUnknownFields()
                if message.ByteSize() != size:
                    protobuf_wire.check(value, self._layout)
                found.append(self._take(message))
            except Exception as error:  # whatever bytes make a reader say
                faults[row] = f"not a message of this type: {first_line(error)}"
                found.append(None)
        kind = placed(self.kind, known)
        return Decoded(column(kind, within(kind, found, map(len, whole), faults), faults), faults)


def _reader(descriptor: Any, above: tuple[str, ...]) -> Callable[[Any], dict[str, Any]]:
    """A function that gives a message's values."""
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
