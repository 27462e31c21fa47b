"""Turn Protobuf messages into kinds of columns."""

from typing import Any, Final

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.kinds import (
    BOOL,
    BYTES,
    DEEPEST,
    FLOAT,
    INSTANT,
    INT,
    JSON,
    TEXT,
    UINT64,
    Kind,
    array,
    mapping,
    struct,
)
from headrace.lakehouse.write.columns import MOST_COLUMNS

TIMESTAMP: Final = "google.protobuf.Timestamp"


def message_named(pool: Any, files: Any, message: str | None, indexes: tuple[int, ...]) -> Any:
    """Return a message's descriptor by name, or by index in the last file. Raise OptionError."""
    last = files.file[-1]
    names = [f"{last.package}.{one.name}".lstrip(".") for one in last.message_type]
    if message is not None:
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            raise OptionError(f"no message {message!r}; there are: {', '.join(names)}") from None
    if not names:
        raise OptionError("the file has no message")
    if not indexes and len(names) > 1:
        raise OptionError(f"which message? --schema-message NAME; there are: {', '.join(names)}")
    wanted = indexes or (0,)
    if wanted[0] >= len(names):
        raise OptionError(f"message {wanted[0]} of a file that has {len(names)}")
    found = pool.FindMessageTypeByName(names[wanted[0]])
    for place in wanted[1:]:
        if place >= len(found.nested_types):
            raise OptionError(f"message {place} in {found.full_name}, which has {len(found.nested_types)}")
        # The compiler makes a message for each map's entries, which only some producers count.
        if any(one.GetOptions().map_entry for one in found.nested_types[: place + 1]):
            raise OptionError(
                f"message {place} in {found.full_name} may be one of two: producers differ in whether they count its "
                "maps; say which one: --schema-message NAME"
            )
        found = found.nested_types[place]
    return found


def kind_of(descriptor: Any) -> Kind:
    """Return a message's struct. Raise ValueError."""
    if not descriptor.fields:
        raise ValueError(f"{descriptor.full_name} has no fields: columns come from a message's fields")
    return _message(descriptor, ())


def _message(descriptor: Any, above: tuple[str, ...]) -> Kind:
    inside = (*above, descriptor.full_name)
    fields = []
    count = 0
    for one in descriptor.fields:
        fields.append((one.name, _field(one, inside)))
        count += fields[-1][1].leaves
        if count > MOST_COLUMNS:
            raise ValueError(f"field {one.full_name}: a table has at most {MOST_COLUMNS:,} columns")
    return struct(fields)


def _field(one: Any, above: tuple[str, ...]) -> Kind:
    message = one.message_type
    if message is not None and message.GetOptions().map_entry:
        return mapping(_single(message.fields_by_name["key"], above), _single(message.fields_by_name["value"], above))
    kind = _single(one, above)
    return array(kind) if one.is_repeated else kind


def _single(one: Any, above: tuple[str, ...]) -> Kind:
    message = one.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return INSTANT
        return JSON if is_json(message, above) else _message(message, above)
    if one.cpp_type == one.CPPTYPE_STRING:
        return BYTES if one.type == one.TYPE_BYTES else TEXT
    kinds = {
        one.CPPTYPE_BOOL: BOOL,
        one.CPPTYPE_DOUBLE: FLOAT,
        one.CPPTYPE_FLOAT: FLOAT,
        one.CPPTYPE_ENUM: TEXT,
        one.CPPTYPE_UINT64: UINT64,
    }
    return kinds.get(one.cpp_type, INT)


def is_json(message: Any, above: tuple[str, ...]) -> bool:
    """Return whether a message has no fields, contains itself, or is nested too deeply."""
    return not message.fields or message.full_name in above or len(above) >= DEEPEST or _contains_itself(message)


def _contains_itself(message: Any) -> bool:
    seen: set[str] = set()
    left = [message]
    while left:
        for one in left.pop().fields:
            inner = one.message_type
            if inner is None:
                continue
            if inner.full_name == message.full_name:
                return True
            if inner.full_name not in seen:
                seen.add(inner.full_name)
                left.append(inner)
    return False
