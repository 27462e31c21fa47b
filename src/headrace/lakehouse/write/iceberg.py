"""Mirror a Delta table's files as an Iceberg table in a standard catalog.

After each Delta commit, one Iceberg commit applies the difference, which is always computed again. The next commit thus
repairs an interrupted one, and of two concurrent commits one finds nothing to do.
"""

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.client.errors import ModuleMissing, OptionError, SparkError, TableError, one_line
from headrace.lakehouse.paths import iceberg_location
from headrace.lakehouse.status.document import TOPIC
from headrace.lakehouse.write import data_files
from headrace.lakehouse.write.data_files import field_ids
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import COLUMNS, ArchiveTable, Snapshot
from headrace.text import extras

PROPERTY: Final = "headrace.iceberg"
"""Property of the Delta table: the Iceberg table that lists its files."""
_DELTA: Final = "headrace.delta"
"""Property of the Iceberg table: the Delta table whose files it lists."""
_ATTEMPTS: Final = 10
_FORM: Final = re.compile(r"([^:]+):((?:[^.:]+[.])+)([^.:]+)")
_S3: Final = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_region": "s3.region",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
}
"""delta-rs' storage options, as pyiceberg names them."""


# It warns about every column without statistics in every file.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)


class CatalogUnavailable(SparkError):
    """The Iceberg catalog does not answer or refuses; the Delta table is ahead until it does."""


@dataclass(frozen=True)
class IcebergName:
    """A catalog and a table in it, with pyiceberg's or the user's settings."""

    text: str
    """`CATALOG:NAMESPACE.TABLE`; `{topic}` in it is replaced by the topic's name."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the catalog (`type`, `uri`, `warehouse`, `credential` and so on). They override pyiceberg's
    configuration."""

    def check(self) -> None:
        """Raise OptionError for an invalid name."""
        if _FORM.fullmatch(self.text.replace(TOPIC, "topic")) is None:
            raise OptionError(f"--iceberg must be CATALOG:NAMESPACE.TABLE, such as lake:archive.{TOPIC}: {self.text!r}")

    def of(self, topic: str) -> "IcebergName":
        """Return a topic's name, with `_` for characters that tables may not have."""
        return IcebergName(self.text.replace(TOPIC, re.sub(r"[^A-Za-z0-9_]", "_", topic)), self.options)


class IcebergTwin:
    """The Iceberg table of a Delta table."""

    def __init__(self, name: IcebergName, table: ArchiveTable) -> None:
        """Open or create the Iceberg table, and record it in the Delta table.

        Raise CatalogUnavailable, ModuleMissing, TableError.
        """
        name.check()
        self._place = table.place
        catalog, _, identifier = name.text.partition(":")
        namespace, _, own = identifier.rpartition(".")
        self._text = name.text
        self._identifier = (*namespace.split("."), own)
        self._delta = file_url(self._place, "").rstrip("/")
        self._default_location = file_url(self._place, "_iceberg")
        options = {_S3[key]: value for key, value in self._place.storage if key in _S3} | dict(name.options)
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise ModuleMissing(extras.explained("--iceberg", error)) from None
        try:
            self._catalog = load_catalog(catalog, **options)
            self._table = self._take(table.snapshot())
        except SparkError:
            raise
        except Exception as error:  # pyiceberg and its dependencies raise many types
            raise self._unavailable(error) from error
        table.note({PROPERTY: name.text})

    def _take(self, snapshot: Snapshot) -> Any:
        from pyiceberg.exceptions import (  # noqa: PLC0415
            CommitFailedException,
            NamespaceAlreadyExistsError,
            TableAlreadyExistsError,
        )

        with contextlib.suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self._identifier[:-1])
        try:
            # Some catalogs return an existing table.
            found = self._create()
        except TableAlreadyExistsError:
            found = self._catalog.load_table(self._identifier)
        if found.properties.get(_DELTA) != self._delta and found.location() != self._default_location:
            raise TableError(f"Iceberg table {self._text} is there and lists other files than {self._place.name}'s")
        columns = snapshot.arrow()
        if _missing(columns, found.schema().as_arrow()):
            with contextlib.suppress(CommitFailedException), found.transaction() as transaction:
                _widen(transaction, columns)
            found.refresh()
        self._check_ids(found.schema(), columns)
        return found

    def _check_ids(self, schema: Any, columns: pa.Schema) -> None:
        wanted = dict(field_ids(data_files.with_field_ids(columns)))
        for names, number in field_ids(schema.as_arrow()):
            if wanted.get(names, number) != number:
                raise TableError(
                    f"Iceberg table {self._text} gives column {'.'.join(names)!r} another ID ({number}) than the files "
                    f"of {self._place.name} have ({wanted[names]}): drop it from the catalog without its files, and it "
                    "is made again"
                )

    def _check_files(self, paths: Iterable[str], columns: pa.Schema) -> None:
        """Check the field IDs of files. Older files have none and are read by column name."""
        wanted = dict(field_ids(data_files.with_field_ids(columns)))
        for path in paths:
            with self._table.io.new_input(path).open() as file:
                found = dict(field_ids(pq.read_schema(file)))
            if any(wanted.get(names) != number for names, number in found.items()):
                raise TableError(f"{path} has other field IDs than the table's columns: headrace did not write it")

    def _create(self) -> Any:
        """Create a table, with its metadata next to Delta's log or where the catalog keeps all metadata.

        It starts with one column, because catalogs number several columns in different orders.
        """
        from pyiceberg.exceptions import BadRequestError, ForbiddenError  # noqa: PLC0415

        create = partial(
            self._catalog.create_table,
            self._identifier,
            data_files.with_field_ids(pa.schema([COLUMNS.field(0)])),
            properties={
                _DELTA: self._delta,
                # After a conflict the commit is computed again, never resent.
                "commit.retry.num-retries": "0",
                # The files belong to the Delta table, too.
                "gc.enabled": "false",
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "20",
            },
        )
        try:
            return create(location=self._default_location)
        except (BadRequestError, ForbiddenError):  # "table location must be within ..."
            return create()

    def sync(self, snapshot: Snapshot) -> int:
        """List the Delta table's files in Iceberg. Return the number of changes. Raise CatalogUnavailable."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        wanted = {file_url(self._place, path) for path in snapshot.paths()}
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._table.refresh()
                listed = set(self._table.inspect.data_files()["file_path"].to_pylist())
                come, gone = sorted(wanted - listed), listed - wanted
                if come or gone:
                    self._commit(snapshot, come, gone)
                return len(come) + len(gone)
            except CommitFailedException as error:
                failure = error
            except SparkError:
                raise
            except Exception as error:
                raise self._unavailable(error) from error
        assert failure is not None
        raise self._unavailable(failure) from failure

    def _commit(self, snapshot: Snapshot, come: list[str], gone: set[str]) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415

        properties = {"headrace.delta-version": str(snapshot.version)}
        columns = _missing(snapshot.arrow(), self._table.schema().as_arrow())
        with self._table.transaction() as transaction:
            if columns:
                _widen(transaction, snapshot.arrow())
            self._check_ids(transaction.table_metadata.schema(), snapshot.arrow())
            self._check_files(come, snapshot.arrow())
            if not gone:
                transaction.add_files(come, properties, check_duplicate_files=False)
                return
            old = {file.file.file_path: file.file for file in self._table.scan().plan_files()}
            with transaction.update_snapshot(properties).overwrite() as swap:
                for path in gone:
                    swap.delete_data_file(old[path])
                for path in come:
                    swap.append_data_file(parquet_file_to_data_file(self._table.io, transaction.table_metadata, path))

    def listed(self, *, since: datetime) -> set[str]:
        """Return the URLs of files in snapshots, after expiring those older than `since`. Raise CatalogUnavailable."""
        try:
            self._table.refresh()
            self._table.maintenance.expire_snapshots().older_than(since).commit()
            self._table.refresh()
            if self._table.current_snapshot() is None:
                return set()
            return set(self._table.inspect.all_files()["file_path"].to_pylist())
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> CatalogUnavailable | ModuleMissing:
        from pyiceberg.exceptions import NotInstalledError  # noqa: PLC0415

        if isinstance(error, ImportError):
            return ModuleMissing(extras.explained(f"Iceberg table {self._text}", error))
        if isinstance(error, NotInstalledError):  # it names the package for this kind of catalog
            return ModuleMissing(f"Iceberg table {self._text}: {one_line(error)[:300]}")
        return CatalogUnavailable(f"Iceberg table {self._text}: {type(error).__name__}: {one_line(error)[:300]}")


def twin_of(table: ArchiveTable, options: Mapping[str, str]) -> IcebergTwin | None:
    """Return a Delta table's Iceberg mirror, or None. Raise as IcebergTwin."""
    name = table.noted(PROPERTY)
    return None if name is None else IcebergTwin(IcebergName(name, options), table)


def file_url(place: Place, relative: str) -> str:
    """Return a file's URL as Iceberg lists it."""
    root = place.url if place.path is None else iceberg_location(place.path)
    return f"{root}/{relative}"


def _widen(transaction: Any, columns: pa.Schema) -> None:
    from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415
    from pyiceberg.table import TableProperties  # noqa: PLC0415
    from pyiceberg.table.update import (  # noqa: PLC0415
        AddSchemaUpdate,
        AssertCurrentSchemaId,
        SetCurrentSchemaUpdate,
        SetPropertiesUpdate,
    )

    before = transaction.table_metadata
    number = max(schema.schema_id for schema in before.schemas) + 1
    schema = pyarrow_to_schema(data_files.with_field_ids(columns)).model_copy(update={"schema_id": number})
    names = schema.name_mapping.model_dump_json()
    # pyiceberg's public method chooses field IDs itself.
    transaction._apply(  # noqa: SLF001
        (
            AddSchemaUpdate(schema=schema),
            SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
            SetPropertiesUpdate(updates={TableProperties.DEFAULT_NAME_MAPPING: names}),
        ),
        (
            AssertCurrentSchemaId.model_validate(
                {"type": "assert-current-schema-id", "current-schema-id": before.current_schema_id}
            ),
        ),
    )


def _missing(wanted: pa.Schema, there: pa.Schema) -> list[str]:
    return [name for name in wanted.names if name not in there.names]


def paths_of(place: Place, urls: Iterable[str]) -> set[str]:
    """Return paths of files relative to the table."""
    root = file_url(place, "")
    return {url.removeprefix(root) for url in urls if url.startswith(root)}
