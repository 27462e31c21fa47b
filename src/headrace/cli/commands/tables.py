"""`headrace tables`: maintain the tables that `headrace archive` writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from headrace.cli.command import TeachingGroup
from headrace.cli.commands.archive import ICEBERG, STORAGE
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.lakehouse.write.iceberg import IcebergTwin
    from headrace.lakehouse.write.table import ArchiveTable, Snapshot

_MIB = 1 << 20


@click.group("tables", cls=TeachingGroup)
def tables() -> None:
    """Compact, expire and vacuum archived tables.

    Each of these may run while the archive and readers use the table. Run one of them at a time for a table; a second
    one gives way.
    """


def _table_arguments(wrapped: Callable[..., None]) -> Callable[..., None]:
    return click.argument("place", metavar="TABLE")(STORAGE(ICEBERG(wrapped)))


@tables.command(
    "compact",
    examples="""
    headrace tables compact ./flights-table
    headrace tables compact s3://lake/flights --target 256 --storage-option aws_region=eu-central-1
    """,
)
@_table_arguments
@click.option(
    "--target",
    type=click.IntRange(min=1, max=4096),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Approximate size of merged files.",
)
def compact(*, place: str, storage: dict[str, str], iceberg_options: dict[str, str], target: int) -> None:
    """Merge small neighboring files of each partition, in offset order.

    Readers can use the old files until `vacuum` deletes them.
    """
    with _table(place, storage, iceberg_options) as (table, twin):
        from headrace.lakehouse.write import maintenance  # noqa: PLC0415  # delta-rs, where it is used

        done = maintenance.compact(table, target_bytes=target * _MIB, after_commit=_follow(twin))
        click.echo(f"{place}: {done.before} files became {done.after}, {done.size / _MIB:.1f} MiB")


@tables.command(
    "expire",
    examples="""
    headrace tables expire ./flights-table --older-than 90
    """,
)
@_table_arguments
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    required=True,
    metavar="DAYS",
    help="Age in days. Removes records that are older, and whose predecessors all are.",
)
def expire(*, place: str, storage: dict[str, str], iceberg_options: dict[str, str], older_than: float) -> None:
    """Remove old records from the table, in whole files from the start of each partition.

    A file with a younger record stays, and so do all files after it. `vacuum` frees the disk space.
    """
    with _table(place, storage, iceberg_options) as (table, twin):
        from headrace.lakehouse.write import maintenance  # noqa: PLC0415

        files, rows = maintenance.expire(
            table, before=datetime.now(UTC) - timedelta(days=older_than), after_commit=_follow(twin)
        )
        click.echo(f"{place}: {rows:,} records in {files} files are out of the table")


@tables.command(
    "vacuum",
    examples="""
    headrace tables vacuum ./flights-table --dry-run
    headrace tables vacuum ./flights-table --older-than 48
    """,
)
@_table_arguments
@click.option(
    "--older-than",
    type=click.IntRange(min=1),
    default=168,
    show_default=True,
    metavar="HOURS",
    help="Time for which unlisted files are kept, because queries may still read them.",
)
@click.option("--dry-run", is_flag=True, help="Only list the files to delete.")
def vacuum(
    *, place: str, storage: dict[str, str], iceberg_options: dict[str, str], older_than: int, dry_run: bool
) -> None:
    """Delete files that the table no longer lists, and files of uncommitted batches."""
    with _table(place, storage, iceberg_options) as (table, twin):
        from headrace.lakehouse.write import maintenance  # noqa: PLC0415

        spare: set[str] = set()
        if twin is not None:
            from headrace.lakehouse.write.iceberg import paths_of  # noqa: PLC0415

            spare = paths_of(table.place, twin.listed(since=datetime.now(UTC) - timedelta(hours=older_than)))
        deleted = maintenance.vacuum(table, older_than_h=older_than, spare=spare, dry_run=dry_run)
        for path in deleted if dry_run else ():
            click.echo(path)
        click.echo(f"{place}: {len(deleted)} files {'would be deleted' if dry_run else 'deleted'}", err=dry_run)


def _follow(twin: "IcebergTwin | None") -> "Callable[[Snapshot], None]":
    def follow(snapshot: "Snapshot") -> None:
        if twin is not None:
            twin.sync(snapshot)

    return follow


@contextmanager
def _table(
    place: str, storage: dict[str, str], iceberg_options: dict[str, str]
) -> "Iterator[tuple[ArchiveTable, IcebergTwin | None]]":
    try:
        from headrace.client.errors import SparkError  # noqa: PLC0415
        from headrace.lakehouse.write.iceberg import twin_of  # noqa: PLC0415
        from headrace.lakehouse.write.location import Place  # noqa: PLC0415
        from headrace.lakehouse.write.table import ArchiveTable, Conflict  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(extras.explained("a table's maintenance", error)) from None
    try:
        table = ArchiveTable(Place.of(place, storage), make=False)
        yield table, twin_of(table, iceberg_options)
    except Conflict:
        raise click.ClickException(
            f"{place}: another program changed the same files at the same time; nothing was changed, try again"
        ) from None
    except SparkError as error:
        raise click.ClickException(str(error)) from None
