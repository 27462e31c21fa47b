"""The tables say what Kafka's own schema files say (kafka-python ships them): names, types, versions, defaults."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.messages import TABLES
from headrace.protocol.notation import ENDLESS, ZERO_UUID, Field, MessageTable, Structure, Versions, parse
from headrace.protocol.tables import consumer_groups, shares


def load_schema(name: str) -> dict[str, Any]:
    """Load a schema file without kafka-python, whose own loader warns on newer Pythons."""
    spec = importlib.util.find_spec("kafka")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "protocol" / "schemas" / "resources" / f"{name}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    return schema


def snake_case(name: str) -> str:
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


def read_versions(text: str | None) -> Versions | None:
    """`3+`, `3-5`, `3`, `none`."""
    if text is None or text == "none":
        return None
    low, _, high = text.partition("-")
    return Versions(int(low.rstrip("+")), ENDLESS if "+" in text else int(high or low))


def overlap(versions: Versions | None, within: Versions) -> Versions | None:
    if versions is None:
        return None
    both = Versions(max(versions.low, within.low), min(versions.high, within.high))
    return both if both.low <= both.high else None


def read_default(kind: str, text: Any) -> Any:
    if text in ("null", None):
        return None
    return str(text).lower() == "true" if kind == "bool" else int(str(text), 0) if kind.startswith("int") else text


def implied_default(field: Field) -> Any:
    if field.is_array:
        return []
    if field.struct is not None or field.kind == "records":
        return None
    return {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID}.get(field.kind, 0)


def compare(ours: Structure, theirs: list[dict[str, Any]], within: Versions, shared: dict[str, Any]) -> None:
    """Fields, in order, within the versions in which the structure exists."""
    theirs = [field for field in theirs if overlap(read_versions(field["versions"]), within)]
    assert sorted(field.name for field in ours.fields) == sorted(snake_case(field["name"]) for field in theirs)
    by_name = {snake_case(field["name"]): field for field in theirs}
    for field in ours.fields:
        schema = by_name[field.name]
        present = overlap(field.versions, within)
        assert present is not None, field
        assert present == overlap(read_versions(schema["versions"]), within), field
        assert overlap(field.nullable, present) == overlap(read_versions(schema.get("nullableVersions")), present), (
            field
        )
        assert ("[]" if field.is_array else "") + field.kind == schema["type"], field
        assert field.tag == schema.get("tag"), field
        assert field.tag is None or overlap(read_versions(schema["taggedVersions"]), within) == present, field
        expected = read_default(field.kind, schema["default"]) if "default" in schema else implied_default(field)
        assert field.default == expected, field
        if field.struct is not None:
            fields = schema.get("fields") or shared[field.struct.name]
            compare(field.struct, fields, present, shared)


KIO_ONLY = {table.root.name for module in (consumer_groups, shares) for table in parse(module.TABLE)}
"""Messages that kafka-python does not know. `test_messages` compares them with kio."""


def test_kafka_python_does_not_know_the_rest() -> None:
    """Once it does, compare these as well."""
    for name in KIO_ONLY:
        with pytest.raises(FileNotFoundError):
            load_schema(name)


@pytest.mark.parametrize(
    "table", [table for table in TABLES if table.root.name not in KIO_ONLY], ids=lambda table: table.root.name
)
def test_table_is_kafkas(table: MessageTable) -> None:
    schema = load_schema(table.root.name)
    valid = read_versions(schema["validVersions"])
    flexible = read_versions(schema["flexibleVersions"])
    assert valid is not None
    # Kafka 4 has dropped Produce 0-2; they are still advertised to old clients.
    assert table.versions == (Versions(0, valid.high) if table.api_key == 0 else valid)
    assert table.api_key == schema["apiKey"]
    assert table.flexible_from == (ENDLESS if flexible is None else flexible.low)
    shared = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    compare(table.root, schema["fields"], valid, shared)
