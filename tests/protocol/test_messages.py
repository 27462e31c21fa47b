"""Every message in every version is what kio, an independent codec made from Kafka's own schemas, says it is."""

import dataclasses
import importlib
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import kio.schema.index
import kio.serial
import pytest
from hypothesis import HealthCheck, given, settings
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from headrace.protocol import messages
from headrace.protocol.notation import Field, MessageTable, Structure

EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def find_kio_path(table: MessageTable, version: int) -> str | None:
    """Where Kio's class of a message is, or None when it no longer has that version."""
    kind: Any = EntityType.request if table.root.name.endswith("Request") else EntityType.response
    name = kio.schema.index.api_key_map[table.api_key]
    versions = kio.schema.index.schema_name_map[name]
    if version not in versions:
        return None
    return str(versions[version][kind])


CASES = [
    pytest.param(table, version, kio_path, id=f"{table.root.name}-{version}")
    for table in messages.TABLES
    for version in range(table.versions.low, table.versions.high + 1)
    if (kio_path := find_kio_path(table, version)) is not None
]
"""Without the classes: making all 386 takes two seconds of a core, and every process of tests collects this file."""


def kio_name(field: Field, kio_fields: dict[str, Any]) -> str:
    """The name kio gives a field: times lose their unit."""
    return field.name if field.name in kio_fields else field.name.removesuffix("_ms")


def inner_class(kio_type: Any) -> Any:
    """The class inside `tuple[X, ...] | None`."""
    while get_args(kio_type):
        kio_type = next(argument for argument in get_args(kio_type) if argument is not type(None))
    return kio_type


def to_kio(structure: Structure, version: int, ours: Any, kio_class: Any) -> Any:
    """Kio's instance with the same values."""
    kio_fields = {field.name: field for field in dataclasses.fields(kio_class)}
    given_values = {}
    for field in structure.fields:
        if version in field.versions:
            name = kio_name(field, kio_fields)
            given_values[name] = to_kio_value(field, version, getattr(ours, field.name), kio_fields[name])
    assert list(given_values) == list(kio_fields)
    return kio_class(**given_values)


def to_kio_value(field: Field, version: int, value: Any, kio_field: Any) -> Any:
    if value is None:
        return kio_field.default if field.tag is not None else None
    if field.struct is not None:
        cls = inner_class(kio_field.type)
        if field.is_array:
            return tuple(to_kio(field.struct, version, item, cls) for item in value)
        return to_kio(field.struct, version, value, cls)
    if field.is_array:
        return tuple(value)
    convert: dict[str, Callable[[Any], Any]] = {
        "error_code": ErrorCode,
        "timedelta_i32": lambda ms: timedelta(milliseconds=ms),
        "timedelta_i64": lambda ms: timedelta(milliseconds=ms),
        "datetime_i64": lambda ms: None if ms == -1 else datetime.fromtimestamp(ms / 1000, UTC),
        "uuid": lambda value: None if value == UUID(int=0) else value,
    }
    return convert.get(kio_field.metadata["kafka_type"], lambda same: same)(value)


@pytest.mark.parametrize(("table", "version", "kio_path"), CASES)
def test_agrees_with_kio(table: MessageTable, version: int, kio_path: str, messages_of: Any) -> None:
    """Same bytes from same values, and each side reads what the other wrote."""
    module, _, name = kio_path.partition(":")
    kio_class = getattr(importlib.import_module(module), name)
    cls = getattr(messages, table.root.name)
    assert (version >= cls.FLEXIBLE_FROM) is kio_class.__flexible__
    assert kio_class.__api_key__ == cls.API_KEY

    @EXAMPLES
    @given(messages_of(table, version))
    def agrees(message: Any) -> None:
        ours = b"".join(message.encode(version))
        theirs = to_kio(table.root, version, message, kio_class)
        buffer = io.BytesIO()
        kio.serial.entity_writer(kio_class)(buffer, theirs)
        assert ours == buffer.getvalue()
        assert cls.decode(ours, 0, version) == message
        assert kio.serial.entity_reader(kio_class)(ours, 0) == (theirs, len(ours))

    agrees()


def test_covers_every_version_kio_has() -> None:
    """A version kio knows and the tables do not would go untested."""
    for table in messages.TABLES:
        theirs = kio.schema.index.schema_name_map[kio.schema.index.api_key_map[table.api_key]]
        assert set(theirs) <= set(range(table.versions.low, table.versions.high + 1)), table.root.name
