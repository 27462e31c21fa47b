"""`headrace archive`: a topic into a Delta table, exactly once."""

import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from headrace import settings as environment
from headrace import times
from headrace.cli.commands import CommandFailed, Status, command

if TYPE_CHECKING:
    from types import FrameType

    from headrace.spark.archive import ArchiveSettings, Progress


@command(
    "archive",
    examples="""
    headrace archive --topic flights --table ./flights-table --redis unix:///path/of/the/ready/line
    headrace archive --topic flights --table ./flights-table --once
    headrace archive --topic flights --table ./flights-table --group archiver --bootstrap 127.0.0.1:9092
    """,
)
@click.option("--topic", required=True, metavar="NAME", help="The topic to archive.")
@click.option("--table", required=True, metavar="DIR", help="The Delta table; created when it is not there.")
@click.option("--redis", metavar="URL", help="The server's storage URL (its `ready` line). [HEADRACE_REDIS]")
@click.option("--group", metavar="NAME", help="A consumer group whose positions follow the table.")
@click.option(
    "--bootstrap", "--kafka", "kafka", metavar="HOST:PORT", help="Where the group is committed. [HEADRACE_BOOTSTRAP]"
)
@click.option("--profile", metavar="NAME", help="A profile of profiles.toml. [HEADRACE_PROFILE]")
@click.option(
    "--checkpoint", metavar="DIR", help="Keep Spark's checkpoint there; not needed, the table knows its place."
)
@click.option("--once", is_flag=True, help="End when everything there is now has been archived.")
@click.option(
    "--trigger",
    type=click.FloatRange(min=0.01),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest that records wait for their commit.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Answer Prometheus at /metrics of this loopback address (port 0: a free one), as long as it runs.",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Continue the traces of records to this OpenTelemetry receiver, such as http://127.0.0.1:4318.",
)
@click.option("--skip-lost", is_flag=True, help="Go on where retention took records before they were archived.")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Go on where a stored batch cannot be read; its bytes are kept.",
)
def archive(
    topic: str,
    table: str,
    redis: str | None,
    group: str | None,
    kafka: str | None,
    profile: str | None,
    checkpoint: str | None,
    once: bool,
    trigger: float,
    metrics: str | None,
    traces: str | None,
    skip_lost: bool,
    skip_unreadable: bool,
) -> None:
    """Archive a topic into a Delta table, every record exactly once.

    Runs until Ctrl-C, or with --once until everything there is now has been archived. Killed at any moment and started
    again, it goes on where the table stands.
    """
    if kafka is not None and group is None:
        raise click.UsageError("--bootstrap is where --group is committed: give --group too or leave it out")
    try:
        told = environment.client(profile)
    except environment.SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    redis = redis or told.redis
    if redis is None:
        raise click.UsageError(
            "no storage named: give --redis URL (the server's `ready` line has it) or HEADRACE_REDIS"
        )
    if group is not None and kafka is None:
        kafka = told.bootstrap
    try:
        if traces is not None:
            import headrace.tracing  # noqa: F401, PLC0415  # an extra: whether it is there
    except ImportError as error:
        raise click.ClickException(f"--traces needs {error.name}: pip install 'headrace[otel]'") from None
    try:
        from headrace.spark.archive import ArchiveSettings  # noqa: PLC0415  # Spark is an extra, and slow to import
    except ImportError as error:
        raise click.ClickException(f"{error.name} is not installed: pip install 'headrace[spark]'") from None
    _run(
        ArchiveSettings(
            topic=topic,
            table=table,
            redis=redis,
            kafka=kafka,
            group=group,
            checkpoint=checkpoint,
            trigger_s=trigger,
            skip_lost=skip_lost,
            skip_unreadable=skip_unreadable,
            traces=traces,
        ),
        once=once,
        metrics=metrics,
    )


def _run(settings: "ArchiveSettings", *, once: bool, metrics: str | None) -> None:
    from headrace.spark.archive import run  # noqa: PLC0415
    from headrace.spark.archive.metrics import ArchiveMetrics, serve  # noqa: PLC0415
    from headrace.spark.errors import SparkError  # noqa: PLC0415

    counted = ArchiveMetrics(settings.topic)
    if metrics is not None:
        try:
            click.echo(f"metrics at http://{serve(counted, metrics)}/metrics", err=True)
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--metrics {metrics}: {error}") from None

    def progressed(progress: "Progress") -> None:
        counted.took(progress)
        _show(progress)

    previous = signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        progress = run(settings, once=once, on_progress=progressed, on_start=counted.watch)
    except SparkError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return
    finally:
        signal.signal(signal.SIGTERM, previous)
    click.echo(
        f"archived {progress.rows:,} records in {time.monotonic() - began:.1f} s, table version {progress.version}",
        err=True,
    )


def _interrupt(_signal: int, _frame: "FrameType | None") -> None:
    raise KeyboardInterrupt


def _show(progress: "Progress") -> None:
    """One line per batch on standard error, so that standard output stays free."""
    rate = progress.batch_rows / progress.batch_s if progress.batch_s else 0.0
    click.echo(
        f"{times.clock()} archived {progress.rows:,} (+{progress.batch_rows:,} at {rate:,.0f}/s, "
        f"{progress.batch_bytes / 1e6:.1f} MB), lag {progress.lag:,}, table version {progress.version}",
        err=True,
    )
    for line in progress.unreadable:
        click.echo(line, err=True)
    sys.stderr.flush()
