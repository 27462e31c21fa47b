"""Write a Protobuf file descriptor as the text of a `.proto` file.

Clients in Python register serialized descriptors. Clients in Java and the archive read text. Options that are not built
in, and comments, are left out.

Source: Protocol Buffers, "Language Specification" of proto2 and proto3.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from headrace.schemas.errors import InvalidSchema

_SCALARS: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "", "", "bytes",
    "uint32", "", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
"""By number of `FieldDescriptorProto.Type`."""
GROUP: Final = 10
_LABELS: Final = {1: "optional ", 2: "required ", 3: "repeated "}
_MOST_NUMBER: Final = (1 << 29) - 1
_MOST_ENUM: Final = (1 << 31) - 1


def text_of(descriptor: Any) -> str:
    """Return the text of a FileDescriptorProto. Raises InvalidSchema for editions."""
    syntax = descriptor.syntax or "proto2"
    if syntax not in {"proto2", "proto3"}:
        raise InvalidSchema("A serialized descriptor of a Protobuf edition is not supported: register the .proto text")
    return "\n".join(_file(descriptor, proto3=syntax == "proto3")) + "\n"


def _file(descriptor: Any, *, proto3: bool) -> Iterator[str]:
    yield f"syntax = {_quoted('proto3' if proto3 else 'proto2')};"
    if descriptor.package:
        yield f"package {descriptor.package};"
    yield ""
    public, weak = {*descriptor.public_dependency}, {*descriptor.weak_dependency}
    for place, name in enumerate(descriptor.dependency):
        kind = "public " if place in public else "weak " if place in weak else ""
        yield f"import {kind}{_quoted(name)};"
    for one in _options(descriptor.options):
        yield f"option {one};"
    for one in descriptor.message_type:
        yield from _message(one, "", proto3=proto3)
    for one in descriptor.enum_type:
        yield from _enum(one, "")
    yield from _extensions(descriptor.extension, "", proto3=proto3)
    for one in descriptor.service:
        yield from _service(one)


def _message(message: Any, indent: str, *, proto3: bool, head: str = "") -> Iterator[str]:
    yield f"{indent}{head or f'message {message.name}'} {{"
    inside = indent + "  "
    for one in _options(message.options, without=("map_entry",)):
        yield f"{inside}option {one};"
    nested = {one.name: one for one in message.nested_type}
    places = {name: place for place, name in enumerate(nested)}
    groups = {_last(one.type_name) for one in (*message.field, *message.extension) if one.type == GROUP}
    written = 0
    oneofs: dict[int, list[Any]] = {}
    for field in message.field:
        if field.HasField("oneof_index"):
            oneofs.setdefault(field.oneof_index, []).append(field)
    for field in message.field:
        # A map or a group declares a nested message, too. Their order must not change: records refer to messages by it.
        until = places.get(_last(field.type_name), 0) if _declares(field, nested, groups) else 0
        for one in message.nested_type[written:until]:
            yield from _inner_message(one, inside, groups, proto3=proto3)
        written = max(written, until)
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield from _field(field, inside, nested, proto3=proto3)
        elif field.oneof_index in oneofs:
            yield f"{inside}oneof {message.oneof_decl[field.oneof_index].name} {{"
            for each in oneofs.pop(field.oneof_index):
                yield from _field(each, inside + "  ", nested, proto3=proto3, in_oneof=True)
            yield f"{inside}}}"
    for one in message.nested_type[written:]:
        yield from _inner_message(one, inside, groups, proto3=proto3)
    for one in message.enum_type:
        yield from _enum(one, inside)
    yield from _extensions(message.extension, inside, proto3=proto3, nested=nested)
    for some in message.extension_range:
        yield f"{inside}extensions {_range(some.start, some.end - 1, _MOST_NUMBER)};"
    yield from _reserved(
        inside, (_range(one.start, one.end - 1, _MOST_NUMBER) for one in message.reserved_range), message.reserved_name
    )
    yield f"{indent}}}"


def _declares(field: Any, nested: dict[str, Any], groups: set[str]) -> bool:
    """Return whether a field declares a nested message of its own."""
    name = _last(field.type_name)
    return name in groups or (name in nested and nested[name].options.map_entry)


def _inner_message(message: Any, indent: str, groups: set[str], *, proto3: bool) -> Iterator[str]:
    if not message.options.map_entry and message.name not in groups:
        yield from _message(message, indent, proto3=proto3)


def _field(field: Any, indent: str, nested: dict[str, Any], *, proto3: bool, in_oneof: bool = False) -> Iterator[str]:
    entry = nested.get(_last(field.type_name)) if field.label == 3 else None
    label = _LABELS[field.label]
    if in_oneof or (proto3 and field.label == 1 and not field.proto3_optional):
        label = ""
    if entry is not None and entry.options.map_entry:
        key, value = entry.field
        yield f"{indent}map<{_type(key)}, {_type(value)}> {field.name} = {field.number}{_field_options(field)};"
    elif field.type == GROUP:
        head = f"{label}group {_last(field.type_name)} = {field.number}{_field_options(field)}"
        yield from _message(nested[_last(field.type_name)], indent, proto3=proto3, head=head)
    else:
        yield f"{indent}{label}{_type(field)} {field.name} = {field.number}{_field_options(field)};"


def _type(field: Any) -> str:
    return str(field.type_name) if field.type_name else _SCALARS[field.type]


def _field_options(field: Any) -> str:
    found = [*_options(field.options)]
    if field.HasField("default_value"):
        value = field.default_value
        is_text = field.type == 9
        quoted = _quoted(value) if is_text else f'"{value}"' if field.type == 12 else value
        found.append(f"default = {quoted}")
    if field.HasField("json_name") and field.json_name != json_name(field.name):
        found.append(f"json_name = {_quoted(field.json_name)}")
    return _bracketed(found)


def _bracketed(options: Iterable[str]) -> str:
    text = ", ".join(options)
    return f" [{text}]" if text else ""


def json_name(name: str) -> str:
    """Return the JSON name of a field that has no other."""
    first, *others = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in others)


def _enum(enum: Any, indent: str) -> Iterator[str]:
    yield f"{indent}enum {enum.name} {{"
    for one in _options(enum.options):
        yield f"{indent}  option {one};"
    for value in enum.value:
        yield f"{indent}  {value.name} = {value.number}{_bracketed(_options(value.options))};"
    yield from _reserved(
        indent + "  ", (_range(one.start, one.end, _MOST_ENUM) for one in enum.reserved_range), enum.reserved_name
    )
    yield f"{indent}}}"


def _extensions(
    fields: Iterable[Any], indent: str, *, proto3: bool, nested: dict[str, Any] | None = None
) -> Iterator[str]:
    for field in fields:
        yield f"{indent}extend {field.extendee} {{"
        yield from _field(field, indent + "  ", nested or {}, proto3=proto3)
        yield f"{indent}}}"


def _service(service: Any) -> Iterator[str]:
    yield f"service {service.name} {{"
    for one in _options(service.options):
        yield f"  option {one};"
    for method in service.method:
        asked = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        answered = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        yield f"  rpc {method.name} ({asked}) returns ({answered}) {{"
        for one in _options(method.options):
            yield f"    option {one};"
        yield "  }"
    yield "}"


def _reserved(indent: str, ranges: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    numbers, listed = ", ".join(ranges), ", ".join(_quoted(one) for one in names)
    for one in (numbers, listed):
        if one:
            yield f"{indent}reserved {one};"


def _range(first: int, last: int, most: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last == most else last}"


def _options(options: Any, without: tuple[str, ...] = ()) -> Iterator[str]:
    for field, value in options.ListFields():
        if field.is_extension or field.message_type is not None or field.name in without:
            continue
        for one in value if field.is_repeated else (value,):
            yield f"{field.name} = {_value(field, one)}"


def _value(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
