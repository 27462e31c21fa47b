"""Records whose values cannot be decoded, by the archive as users run it: what is said of them, and where they are."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.harness.storage import BareStorage

from headrace.cli import main
from headrace.records.build import build

from .conftest import DAY

pytestmark = pytest.mark.spark

HOSTILE = [
    b"null",
    b'{"a": 1}{"a": 2}',
    b'{"a": ' * 20_000 + b"1" + b"}" * 20_000,
    b"[" * 1_000 + b"]" * 1_000,
    b'{"a": 12345678901234567890123456789012345678901234567890}',
    b'{"a": "\xff"}',
    b'{"a": 1e999}',
    b"",
]


def fill(storage: BareStorage, name: str, values: Sequence[bytes | None]) -> None:
    topic = storage.create_topic(name)
    storage.append_batch(topic, 0, bytes(build([(None, value, DAY, ()) for value in values])))


def counts(table: Path) -> tuple[int, int]:
    return DeltaTable(table).count(), DeltaTable(f"{table}_dlq").count()


def test_hostile_values_of_one_topic_stop_none(
    storage: BareStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(storage, "dead-mixed", [b'{"a": 1}', *HOSTILE, b'{"A": 2, "a b": {"x": []}}', None])
    fill(storage, "dead-none", [b'{"b": "x"}', b'{"b": "y"}'])
    fill(storage, "dead-all", HOSTILE)
    topics = "dead-mixed,dead-none,dead-all"
    command = ["archive", "--topic", topics, "--table", str(tmp_path / "{topic}"), "--redis", storage.url]
    assert main.run([*command, "--schema", "json", "--once"]) == 0
    said = capfd.readouterr().err
    last = said.splitlines()[-1]
    assert last.startswith("archived 5 records in "), said
    assert f"8 set aside in {tmp_path / 'dead-mixed'}_dlq (the first: the value is JSON, but no object)" in last
    assert f"8 set aside in {tmp_path / 'dead-all'}_dlq" in last
    assert [counts(tmp_path / name) for name in ("dead-mixed", "dead-none", "dead-all")] == [(3, 8), (2, 0), (0, 8)]
    names = DeltaTable(tmp_path / "dead-none").to_pyarrow_table().schema.names
    assert "b" in names
    assert "a" not in names


def test_an_archive_of_dead_letters_alone_fails(tmp_path: Path, storage: BareStorage) -> None:
    fill(storage, "dead-alone", HOSTILE)
    schema = tmp_path / "value.json"
    schema.write_text(json.dumps({"properties": {"a": {"type": "integer"}}}))
    command = [sys.executable, "-m", "headrace", "archive", "--topic", "dead-alone", "--table", str(tmp_path / "t")]
    command += ["--redis", storage.url, "--once", "--schema", str(schema)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last == (
        f"headrace: no record could be decoded: 8 set aside in {tmp_path / 't'}_dlq "
        "(the first: the value is JSON, but no object)"
    )
    assert counts(tmp_path / "t") == (0, 8)


def test_a_schema_that_cannot_be_used_is_one_line(
    storage: BareStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(storage, "dead-schema", [b"{}"])
    schema = tmp_path / "value.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "nowhere"}]}')
    command = ["archive", "--topic", "dead-schema", "--table", str(tmp_path / "t"), "--redis", storage.url]
    assert main.run([*command, "--schema", str(schema), "--once"]) == 1
    said = [line for line in capfd.readouterr().err.splitlines() if not line.endswith("starting Spark")]
    assert said == [
        (
            f"headrace: {schema} is not an Avro schema that columns can be made of: "
            "field a: type 'nowhere' is not defined here or before"
        )
    ]
