"""Compares the rules with those of Apache Avro's own package."""

import itertools
import json
from typing import Any

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse as apache

from headrace.schemas import avro
from headrace.schemas.avro_compatibility import Comparison
from headrace.schemas.errors import InvalidSchema, Steps


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


SCHEMAS: list[Any] = [
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
    ["null", "int"], ["null", "string"], ["int", "string", "null"], ["null", "long", "string"], ["int"],
    {"type": "array", "items": "int"}, {"type": "array", "items": "long"}, {"type": "array", "items": ["null", "int"]},
    {"type": "map", "values": "int"}, {"type": "map", "values": "double"},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
    {"type": "enum", "name": "E2", "symbols": ["A", "B"]},
    {"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8},
    record(), record(field("x", "int")), record(field("x", "long")), record(field("x", "int", default=1)),
    record(field("x", "int"), field("y", "string")), record(field("x", "int"), field("y", "string", default="")),
    record(field("x", "int"), field("y", ["null", "string"], default=None)),
    record(field("x", "int"), name="Other"), record(field("x", "int"), name="Other", aliases=["R"]),
    record(field("x", "int"), namespace="elsewhere"),
    record(field("z", "int", aliases=["x"])),
    record(field("next", ["null", "R"], default=None)),
    record(field("next", ["null", "R"], default=None), field("value", "int")),
    record(field("next", ["null", "R"], default=None), field("value", "int", default=0)),
    [record(field("x", "int")), "null"], [record(field("x", "int"), name="Other"), record(field("x", "string"))],
]  # fmt: skip


def differences(reader: Any, writer: Any, steps: Steps | None = None) -> list[str]:
    budget = steps or Steps()
    read, written = avro.parse(reader, (), budget), avro.parse(writer, (), budget)
    return [one.kind for one in Comparison(budget).differences(read, written)]


def test_every_pair_is_judged_as_by_apache_avro() -> None:
    wrong = []
    for reader, writer in itertools.product(SCHEMAS, repeat=2):
        checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        result = checker.get_compatibility(apache(json.dumps(reader)), apache(json.dumps(writer)))
        if (not differences(reader, writer)) != (result.compatibility is SchemaCompatibilityType.compatible):
            wrong.append((reader, writer))
    assert wrong == []


@pytest.mark.parametrize(
    ("reader", "writer", "kinds"),
    [
        (record(field("y", "int")), record(), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
        ("int", "string", ["TYPE_MISMATCH"]),
        ("int", ["null", "int"], ["TYPE_MISMATCH"]),
        (["null", "int"], "string", ["MISSING_UNION_BRANCH"]),
        (SCHEMAS[18], SCHEMAS[19], ["MISSING_ENUM_SYMBOLS"]),
        ({**SCHEMAS[18], "default": "A"}, SCHEMAS[19], []),
        (SCHEMAS[21], SCHEMAS[22], ["FIXED_SIZE_MISMATCH"]),
        (record(name="A"), record(name="B"), ["NAME_MISMATCH"]),
    ],
)
def test_differences_are_named(reader: Any, writer: Any, kinds: list[str]) -> None:
    assert differences(reader, writer) == kinds


def test_large_unions_cost_bounded_steps() -> None:
    one, other = ([record(name=f"{letter}{place}") for place in range(2_000)] for letter in "AB")
    with pytest.raises(InvalidSchema, match="too complex"):
        differences(one, other, Steps(100_000))


def test_long_chains_of_types_are_refused() -> None:
    fields = [field("f0", record(name="A0"))]
    fields += [field(f"f{place}", record(field("x", f"A{place - 1}"), name=f"A{place}")) for place in range(1, 400)]
    whole = record(
        field("names", ["null", record(*fields, name="Names")], default=None), field("x", "A399"), name="Top"
    )
    budget = Steps()
    # The comparison starts at the last type, which leads through all others.
    read, written = (avro.parse(whole, (), budget).fields[1].type for _ in range(2))
    with pytest.raises(InvalidSchema, match="nested in one another"):
        Comparison(budget).differences(read, written)
