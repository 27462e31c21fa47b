"""`headrace archive` names a missing module and its extra before Spark starts."""

from pathlib import Path

import pytest

from headrace.cli.archive import requirements
from headrace.cli.command import CommandFailed
from headrace.text import extras


def lack(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(extras, "missing", lambda modules: [name for name in modules if name in names])


@pytest.mark.parametrize(
    ("settings", "absent", "line"),
    [
        ({}, "pyspark", "the archive needs the Python module pyspark: install the extra `spark`: pip install "),
        ({}, "pandas", "the archive needs the Python module pandas: install the extra `spark`: pip install "),
        ({}, "deltalake", "the archive needs the Python module deltalake: install the extra `spark`: "),
        (
            {"schema": "a.proto"},
            "grpc_tools",
            "--schema a.proto needs the Python module grpc_tools: install the extra ",
        ),
        ({"schema": "a.desc"}, "google.protobuf", "--schema a.desc needs the Python module google.protobuf: install "),
        ({"iceberg": "c:n.t"}, "pyiceberg", "--iceberg needs the Python module pyiceberg: install the extra `iceberg`"),
        (
            {"traces": "x"},
            "opentelemetry.sdk",
            "--traces needs the Python module opentelemetry.sdk: install the extra ",
        ),
    ],
)
def test_each_option_names_its_extra(
    settings: dict[str, object], absent: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements.check("the archive", settings)
    lack(monkeypatch, absent)
    with pytest.raises(CommandFailed) as caught:
        requirements.check("the archive", settings)
    assert str(caught.value).startswith(line)


def test_options_that_need_no_extra_do_not_ask_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch, "grpc_tools", "google.protobuf", "pyiceberg", "opentelemetry.sdk")
    folder = str(tmp_path)
    for schema in (None, "json", "variant", "a.json", "a.avsc"):
        requirements.check("the archive", {"schema": schema, "iceberg": None, "traces": None})
    requirements.check("the archive", {"schema": "confluent", "schema_registry": "http://registry"})
    requirements.check("the archive", {"schema": "confluent", "schema_registry": folder})
    (tmp_path / "7.proto").touch()
    with pytest.raises(CommandFailed, match=r"a \.proto file in --schema-registry .* install the extra `schemas`"):
        requirements.check("the archive", {"schema": "confluent", "schema_registry": folder})


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "3.5.8")
    with pytest.raises(CommandFailed, match=r"needs Spark 4\.2, and 3\.5\.8 is installed: install the extra `spark`"):
        requirements.check("the archive", {})
