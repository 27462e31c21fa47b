"""Protobuf schemas: descriptors from text or from their serialized form, and what may change in them.

Source: Confluent's documentation, "Schema Evolution and Compatibility", "Protobuf compatibility rules"; Protocol
Buffers, "Updating A Message Type".
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import msgspec

from headrace.schemas import proto_text
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Difference, Referenced

MISSING_EXTRA: Final = (
    "Protobuf needs grpcio-tools and protobuf on the server: install the extra registry (docs/packages.md)"
)
Compiler = Callable[[str, Mapping[str, str]], bytes]
"""Returns a FileDescriptorSet, with the given file last, of a text and its imports. Raises ValueError."""

MAIN: Final = "value.proto"
MOST_DEFINITIONS: Final = 25_000
"""Maximum messages, fields, values and other named parts of a file. No other thread runs while protobuf checks them."""
_MOST_FOUND: Final = 50
_MESSAGE, _ENUM = 11, 14
_KINDS: Final = {
    1: "double", 2: "float", 3: "number", 4: "number", 5: "number", 6: "fixed64", 7: "fixed32", 8: "number",
    9: "text", 12: "text", 13: "number", 14: "number", 15: "fixed32", 16: "fixed64", 17: "signed", 18: "signed",
}  # fmt: skip
"""Types of fields that may replace one another in the wire format."""
_WELL_KNOWN: Final = re.compile(r"google/(protobuf|type)/([a-z_]+)\.proto")
"""Imports that need no reference."""


class Files(msgspec.Struct, frozen=True):
    """A file with its imports."""

    main: Any
    """Its FileDescriptorProto."""
    messages: Mapping[str, Any]
    """Messages of all files by full name, such as `.package.Message`."""
    packages: Mapping[str, str]
    """Full name of a message -> its package."""


def read(
    text: str, referenced: Sequence[Referenced], steps: Steps, compiler: Compiler | None
) -> tuple[Files, str, bytes]:
    """Return the files of a schema, its text, and its serialized descriptor.

    Args:
        text: a `.proto` file, or a serialized FileDescriptorProto in base64.
        referenced: files that it imports, in order of dependency.
        steps: the budget.
        compiler: compiles text; None: text cannot be compiled.

    Raises:
        InvalidSchema: The schema is invalid; the message quotes the compiler.
    """
    types = _types()
    main = _from_base64(types, text)
    imports = [(one.name, types.FileDescriptorProto.FromString(one.schema.descriptor)) for one in referenced]
    if main is None:
        main = _compiled(types, text, referenced, compiler)
        written = text
        _count(main, steps)
    else:
        _count(main, steps)
        _check(main, imports)
        written = _written(main)
    _strip(main)
    return files(main, imports, steps), written, main.SerializeToString(deterministic=True)


def stored(descriptor: bytes, referenced: Sequence[Referenced], steps: Steps) -> Files:
    """Return the files of a schema that was read before."""
    types = _types()
    imports = [(one.name, types.FileDescriptorProto.FromString(one.schema.descriptor)) for one in referenced]
    return files(types.FileDescriptorProto.FromString(descriptor), imports, steps)


def rewritten(descriptor: bytes) -> str:
    """Return the text of a serialized descriptor."""
    return _written(_types().FileDescriptorProto.FromString(descriptor))


def _written(main: Any) -> str:
    try:
        return proto_text.text_of(main)
    except (IndexError, KeyError, ValueError) as error:
        raise InvalidSchema(f"Invalid Protobuf schema: its descriptor contradicts itself: {error!r:.200}") from None


def descriptor_set(descriptor: bytes, referenced: Sequence[Referenced]) -> bytes:
    """Return a FileDescriptorSet of a stored schema and all that it imports, with the schema last."""
    types = _types()
    given = {one.name: types.FileDescriptorProto.FromString(one.schema.descriptor) for one in referenced}
    main = types.FileDescriptorProto.FromString(descriptor)
    given[MAIN if MAIN not in given else f"{MAIN}.main"] = main
    found = types.FileDescriptorSet()
    added: set[str] = set()

    def add(name: str, file: Any) -> None:
        if file is None or name in added:
            return
        added.add(name)
        for each in file.dependency:
            if each not in given:
                add(each, _well_known(each))
        found.file.add().CopyFrom(file)
        found.file[-1].name = name

    for name, file in given.items():
        add(name, file)
    made: bytes = found.SerializeToString()
    return made


def serialized(descriptor: bytes) -> str:
    """Return a serialized descriptor in base64, as clients get it with `format=serialized`."""
    return base64.b64encode(descriptor).decode()


def message_names(descriptor: bytes) -> Iterator[str]:
    """Yield the full names of the messages of a stored schema. Raises InvalidSchema without the extra."""
    main = _types().FileDescriptorProto.FromString(descriptor)
    for name, _ in _nested(main.message_type, f".{main.package}" if main.package else ""):
        yield name[1:]


def files(main: Any, imports: Sequence[tuple[str, Any]], steps: Steps) -> Files:
    """Index the messages of a file and its imports."""
    messages: dict[str, Any] = {}
    packages: dict[str, str] = {}
    for one in (*(each for _, each in imports), main):
        prefix = f".{one.package}" if one.package else ""
        for name, message in _nested(one.message_type, prefix):
            steps.take(1 + len(message.field))
            messages[name], packages[name] = message, one.package
    return Files(main, messages, packages)


def _nested(found: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for one in found:
        yield f"{prefix}.{one.name}", one
        yield from _nested(one.nested_type, f"{prefix}.{one.name}")


def _count(main: Any, steps: Steps) -> None:
    """Raise InvalidSchema for too many definitions."""
    left = MOST_DEFINITIONS - len(main.extension) - len(main.enum_type) - len(main.service)
    left -= sum(len(one.value) for one in main.enum_type) + sum(len(one.method) for one in main.service)
    for _, one in _nested(main.message_type, ""):
        steps.take()
        left -= 1 + len(one.field) + len(one.oneof_decl) + len(one.extension) + len(one.enum_type)
        left -= sum(len(each.value) for each in one.enum_type)
        if left < 0:
            break
    if left < 0:
        raise InvalidSchema(
            f"The schema is too complex: it has more than {MOST_DEFINITIONS:,} messages, fields and values"
        )


@cache
def _types() -> Any:
    try:
        from google.protobuf import descriptor_pb2  # noqa: PLC0415  # an extra
    except ImportError:
        raise InvalidSchema(MISSING_EXTRA) from None
    return descriptor_pb2


def _from_base64(types: Any, text: str) -> Any:
    """Return the descriptor, or None for text: no `.proto` file is base64."""
    try:
        found = types.FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) if text.strip() else None
    except (binascii.Error, ValueError):
        return None
    except Exception as error:  # protobuf's DecodeError has different bases in its implementations
        if type(error).__name__ != "DecodeError":
            raise
        raise InvalidSchema("Invalid Protobuf schema: it is base64, but not of a FileDescriptorProto") from None
    return found


def _compiled(types: Any, text: str, referenced: Sequence[Referenced], compiler: Compiler | None) -> Any:
    if compiler is None:
        raise InvalidSchema(MISSING_EXTRA)
    try:
        made = compiler(text, {one.name: one.schema.text for one in referenced})
    except ValueError as error:
        raise InvalidSchema(f"Invalid Protobuf schema: {error}") from None
    return types.FileDescriptorSet.FromString(made).file[-1]


def _check(main: Any, imports: Sequence[tuple[str, Any]]) -> None:
    """Have protobuf check a descriptor. Raises InvalidSchema."""
    from google.protobuf import descriptor_pool  # noqa: PLC0415  # an extra

    pool = descriptor_pool.DescriptorPool()
    given = dict(imports)
    try:
        for name in dict.fromkeys(each for one in (*given.values(), main) for each in one.dependency):
            _add_known(pool, name, given)
        for name, one in imports:
            _add(pool, name, one)
        name = MAIN if MAIN not in given else f"{MAIN}.main"
        _add(pool, name, main)
        pool.FindFileByName(name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchema(f"Invalid Protobuf schema: {error!s:.500}") from None


def _add(pool: Any, name: str, descriptor: Any) -> None:
    copied = type(descriptor)()
    copied.CopyFrom(descriptor)
    copied.name = name
    pool.AddSerializedFile(copied.SerializeToString())


def _add_known(pool: Any, name: str, given: Mapping[str, Any]) -> None:
    """Add a well-known file that is imported and not given, after those that it imports."""
    found = None if name in given else _well_known(name)
    if found is not None:
        for each in found.dependency:
            _add_known(pool, each, given)
        pool.AddSerializedFile(found.SerializeToString())


@lru_cache(256)
def _well_known(name: str) -> Any:
    """Return the descriptor of a file that needs no reference, or None."""
    from importlib import import_module  # noqa: PLC0415  # only with the extra

    match = _WELL_KNOWN.fullmatch(name)
    if match is None:
        return None
    try:
        module = import_module(f"google.{match[1]}.{match[2]}_pb2")
    except ImportError:
        return None
    return _types().FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _strip(main: Any) -> None:
    """Remove what differs between clients that describe the same file."""
    main.ClearField("name")
    main.ClearField("source_code_info")
    if main.syntax == "proto2":
        main.ClearField("syntax")
    for _, message in _nested(main.message_type, ""):
        for field in (*message.field, *message.extension):
            _strip_field(field)
    for field in main.extension:
        _strip_field(field)


def _strip_field(field: Any) -> None:
    if field.json_name == proto_text.json_name(field.name):
        field.ClearField("json_name")


class Comparison:
    """Compares two files."""

    def __init__(self, old: Files, new: Files, steps: Steps) -> None:
        """`steps` is the budget."""
        self._old = old
        self._new = new
        self._steps = steps
        self._seen: set[tuple[str, str]] = set()
        self._found: list[Difference] = []

    def differences(self) -> tuple[Difference, ...]:
        """Return why the new schema cannot read data of the old one; empty: it can."""
        before, after = self._old.main, self._new.main
        if before.package != after.package:
            self._add("PACKAGE_CHANGED", "", f"the package was {before.package} and is {after.package}")
        old, new = (f".{one.package}" if one.package else "" for one in (before, after))
        left = [(before.message_type, after.message_type, old, new)]
        while left and len(self._found) < _MOST_FOUND:
            some, others, old, new = left.pop()
            by_name = {one.name: one for one in others}
            for one in some:
                self._steps.take()
                if one.options.map_entry:
                    continue
                name = f"{old}.{one.name}"
                if one.name not in by_name:
                    self._add("MESSAGE_REMOVED", name, f"the message {one.name} was removed")
                    continue
                self._message(name, f"{new}.{one.name}")
                left.append((one.nested_type, by_name[one.name].nested_type, name, f"{new}.{one.name}"))
        return tuple(self._found[:_MOST_FOUND])

    def _add(self, kind: str, path: str, detail: str) -> None:
        self._found.append(Difference(kind, path, detail))

    def _message(self, old: str, new: str) -> None:
        """Compare two messages, and those of their fields."""
        left = [(old, new)]
        while left and len(self._found) < _MOST_FOUND:
            pair = left.pop()
            if pair in self._seen or pair[0] not in self._old.messages or pair[1] not in self._new.messages:
                continue
            self._seen.add(pair)
            left += self._fields(*pair)

    def _fields(self, old: str, new: str) -> Iterator[tuple[str, str]]:
        """Compare the fields of two messages; yields pairs of messages to compare, too."""
        before, after = self._old.messages[old], self._new.messages[new]
        self._steps.take(len(before.field) + len(after.field))
        earlier, later = ({one.number: one for one in each.field} for each in (before, after))
        oneofs = {after.oneof_decl[one.oneof_index].name for one in after.field if _in_oneof(one)}
        for number, field in earlier.items():
            other = later.get(number)
            if other is not None:
                yield from self._field(field, other, f"{old}.{field.name}")
            elif field.label == 2:
                self._add("REQUIRED_FIELD_REMOVED", f"{old}.{field.name}", f"the required field {number} was removed")
            elif _in_oneof(field) and before.oneof_decl[field.oneof_index].name in oneofs:
                self._add(
                    "ONEOF_FIELD_REMOVED", f"{old}.{field.name}", f"the field {number} was removed from its oneof"
                )
        for number, field in later.items():
            if number not in earlier and field.label == 2:
                self._add("REQUIRED_FIELD_ADDED", f"{old}.{field.name}", f"the required field {number} was added")
        self._oneofs(earlier, after, old)

    def _oneofs(self, earlier: dict[int, Any], after: Any, path: str) -> None:
        for place, oneof in enumerate(after.oneof_decl):
            self._steps.take(len(after.field))
            inside = [one.number for one in after.field if _in_oneof(one) and one.oneof_index == place]
            known = [earlier[number] for number in inside if number in earlier]
            moved = sum(not _in_oneof(one) for one in known)
            if moved > 1:
                self._add(
                    "MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}.{oneof.name}", "several fields were moved to a oneof"
                )
            elif moved == 1 and len(known) > 1:
                self._add("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}.{oneof.name}", "a field was moved to a oneof")

    def _field(self, old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
        before, after = self._map_of(old, self._old), self._map_of(new, self._new)
        if (before is None) != (after is None):
            self._add("FIELD_KIND_CHANGED", path, "a map was replaced, or replaces another type")
        elif before is not None and after is not None:
            for one, other in zip(before.field, after.field, strict=False):
                yield from self._field(one, other, f"{path}.{one.name}")
        elif (old.type in _KINDS) != (new.type in _KINDS):
            self._add("FIELD_KIND_CHANGED", path, "a message was replaced by a scalar, or the reverse")
        elif old.type in _KINDS:
            self._scalar(old, new, path)
        elif old.type != new.type:
            self._add("FIELD_KIND_CHANGED", path, "a message was replaced by a group, or the reverse")
        elif self._local(old.type_name, self._old) != self._local(new.type_name, self._new):
            self._add("FIELD_NAMED_TYPE_CHANGED", path, f"the type was {old.type_name} and is {new.type_name}")
        else:
            yield old.type_name, new.type_name

    def _scalar(self, old: Any, new: Any, path: str) -> None:
        if _KINDS[old.type] != _KINDS[new.type]:
            self._add("FIELD_SCALAR_KIND_CHANGED", path, f"the type was {_named(old)} and is {_named(new)}")
        elif (old.label == 3) != (new.label == 3) and _KINDS[old.type] != "text":
            self._add("FIELD_NUMERIC_LABEL_CHANGED", path, "a repeated number was replaced, or replaces a single one")

    def _map_of(self, field: Any, files_of: Files) -> Any:
        found = files_of.messages.get(field.type_name) if field.type == _MESSAGE else None
        return found if found is not None and found.options.map_entry else None

    def _local(self, name: str, files_of: Files) -> str:
        """Return the name of a message within its package."""
        package = files_of.packages.get(name, "")
        return name.removeprefix(f".{package}") if package else name


def _named(field: Any) -> str:
    return str(field.type_name or field.Type.Name(field.type))


def _in_oneof(field: Any) -> bool:
    return bool(field.HasField("oneof_index") and not field.proto3_optional)
