"""Check that the modules for an archive's options are installed, before Spark starts."""

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from headrace.cli.command import CommandFailed, Status
from headrace.text import extras

LEAST_SPARK: Final = (4, 2)
"""The oldest tested version."""
_ARCHIVE: Final = ("pyspark", "deltalake", "pyarrow", "pandas")
_DESCRIPTORS: Final = ("google.protobuf",)
"""Modules for compiled descriptors, which need no compiler."""


def check(subject: str, settings: Mapping[str, object]) -> None:
    """Raise CommandFailed, with one line, for the first module that the options need and that is not installed.

    `settings` are those of `headrace.spark.archive.ArchiveSettings`.
    """
    for what, extra, modules in _needed(subject, settings):
        absent = extras.missing(modules)
        if absent:
            raise CommandFailed(extras.needs(what, absent[0], extra))
        if "pyspark" in modules:
            check_spark(subject, extra)


def check_spark(subject: str, extra: str, status: Status = Status.FAILED) -> None:
    """Raise CommandFailed if PySpark is missing or too old."""
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise CommandFailed(extras.needs(subject, "pyspark", extra), status) from None
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_SPARK:
        least = ".".join(map(str, LEAST_SPARK))
        raise CommandFailed(f"{subject} needs Spark {least}, and {found} is installed: {extras.advice(extra)}", status)


def _needed(subject: str, settings: Mapping[str, object]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield subject, "spark", _ARCHIVE
    schema, registry = settings.get("schema"), settings.get("schema_registry")
    if isinstance(schema, str):
        if schema.endswith(".proto"):
            yield f"--schema {schema}", "schemas", extras.MODULES["schemas"]
        elif schema.endswith(".desc"):
            yield f"--schema {schema}", "schemas", _DESCRIPTORS
    # The schemas of a registry's URL are known once records name them.
    if isinstance(registry, str) and "://" not in registry and next(Path(registry).glob("*.proto"), None) is not None:
        yield f"a .proto file in --schema-registry {registry}", "schemas", extras.MODULES["schemas"]
    if settings.get("iceberg") is not None:
        yield "--iceberg", "iceberg", ("pyiceberg",)
    if settings.get("traces") is not None:
        yield "--traces", "otel", extras.MODULES["otel"]
