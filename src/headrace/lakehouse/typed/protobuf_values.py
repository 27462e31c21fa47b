"""Values that are Protobuf messages of one type, known by its descriptor."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.write.columns import Decoded, column_name, first_line, rows

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DEEPEST: Final = 20


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
            found = _named(pool, files, message, indexes)
            self._make = message_factory.GetMessageClass(found)
            self._take = _reader(found)
            self.columns = pa.schema([pa.field(column_name(field.name), _arrow(field, 0)) for field in found.fields])
        except OptionError:
            raise
        except Exception as error:  # protobuf has many
            raise OptionError(f"{where} has no message that columns can be made of: {first_line(error)}") from None
        self._renamed = {field.name: column_name(field.name) for field in found.fields}

    def decode(self, values: pa.Array) -> Decoded:
        """Values without nulls."""
        reasons: dict[int, str] = {}
        found: list[dict[str, Any] | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                record = self._take(self._make.FromString(value))
            except Exception as error:  # whatever bytes make a reader say
                reasons[row] = f"not a message of this type: {first_line(error)}"
                found.append(None)
            else:
                found.append({self._renamed[name]: each for name, each in record.items()})
        return rows(found, self.columns, reasons)


def compiled(text: str, where: str) -> bytes:
    """The descriptors of a `.proto` file's text. Raises OptionError for what is not one."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415  # an extra
    except ImportError:
        raise OptionError(f"{where}: reading .proto needs grpcio-tools: pip install 'headrace[schemas]'") from None
    include = str(Path(protoc.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as folder:
        source, target = Path(folder) / "value.proto", Path(folder) / "value.desc"
        source.write_text(text, "utf-8")
        status = protoc.main(
            [
                "protoc",
                f"-I{folder}",
                f"-I{include}",
                "--include_imports",
                f"--descriptor_set_out={target}",
                str(source),
            ]
        )
        if status != 0:
            raise OptionError(f"{where} is not a .proto file that stands alone (imports of google/protobuf are found)")
        return target.read_bytes()


def _named(pool: Any, files: Any, message: str | None, indexes: tuple[int, ...]) -> Any:
    last = files.file[-1]
    names = [f"{last.package}.{one.name}".lstrip(".") for one in last.message_type]
    if message is not None:
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            raise OptionError(f"no message {message!r}; there are: {', '.join(names)}") from None
    if not indexes and len(names) > 1:
        raise OptionError(f"which message? --schema-message NAME; there are: {', '.join(names)}")
    found = pool.FindMessageTypeByName(names[(indexes or (0,))[0]])
    for place in indexes[1:]:
        found = found.nested_types[place]
    return found


def _arrow(field: Any, depth: int) -> pa.DataType:
    if depth > _DEEPEST:
        raise ValueError(f"{field.full_name} contains itself")
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return pa.map_(
            _arrow(message.fields_by_name["key"], depth + 1), _arrow(message.fields_by_name["value"], depth + 1)
        )
    kind = _single(field, depth)
    return pa.list_(kind) if field.is_repeated else kind


def _single(field: Any, depth: int) -> pa.DataType:
    kinds = {
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float64(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
    }
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return pa.struct([pa.field(one.name, _arrow(one, depth + 1)) for one in field.message_type.fields])
    if field.cpp_type == field.CPPTYPE_STRING:
        return pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    return kinds.get(field.cpp_type, pa.int64())


def _reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """A function that makes of a message what pyarrow takes."""
    takers = [(field.name, _taker(field), field.has_presence) for field in descriptor.fields]

    def take(message: Any) -> dict[str, Any]:
        return {
            name: None if presence and not message.HasField(name) else taker(getattr(message, name))
            for name, taker, presence in takers
        }

    return take


def _taker(field: Any) -> Callable[[Any], Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        one = _one(message.fields_by_name["value"])
        return lambda found: [(key, one(found[key])) for key in found]
    one = _one(field)
    return (lambda found: [one(each) for each in found]) if field.is_repeated else one


def _one(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda found: found.ToMicroseconds()
        return _reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda found: names.get(found, str(found))
    return lambda found: found
