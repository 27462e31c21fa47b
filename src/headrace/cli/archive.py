"""`headrace archive`: topics into Delta tables, exactly once."""

import importlib.util
import time
from typing import Any

import click

from headrace import settings as environment
from headrace.archiving.figures import Figures
from headrace.cli.archiving.messages import Wanted
from headrace.cli.archiving.metrics import serve
from headrace.cli.archiving.show import Show
from headrace.cli.archiving.supervisor import ArchiveFailed, Supervisor, stopping_by_signals
from headrace.cli.archiving.watch import Watch
from headrace.cli.commands import CommandFailed, Status, command
from headrace.metrics.archive import State


def storage_options(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, several times, as delta-rs takes them."""
    options = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"expected NAME=VALUE, such as aws_region=us-east-1, not {text!r}")
        options[name.strip().lower()] = value
    return options


STORAGE = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="NAME=VALUE",
    callback=storage_options,
    help="An option of the tables' object store, as delta-rs has it, such as aws_endpoint_url=...; several times. "
    "Without them: its environment variables, such as AWS_ACCESS_KEY_ID.",
)


ICEBERG = click.option(
    "--iceberg-option",
    "iceberg_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=storage_options,
    help="A setting of the Iceberg catalog, such as uri=...; several times. Others: pyiceberg's configuration.",
)


@command(
    "archive",
    examples="""
    headrace archive --topic flights --table ./flights-table --redis unix:///path/of/the/ready/line
    headrace archive --topic flights --topic orders --table './lake/{topic}' --once
    headrace archive --pattern 'shop[.].*' --table 's3://lake/{topic}' --storage-option aws_region=eu-central-1
    headrace archive --topic flights --table ./flights-table --group archiver --bootstrap 127.0.0.1:9092
    """,
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic to archive; several times.")
@click.option(
    "--pattern", metavar="REGEX", help="Archive all topics whose whole name matches, those created later too."
)
@click.option(
    "--table",
    required=True,
    metavar="PLACE",
    help="The Delta table: a directory or the URL of an object store; created when it is not there. {topic} stands for "
    "the topic's name: a table for each.",
)
@STORAGE
@click.option(
    "--schema",
    metavar="WHAT",
    help="Typed tables: json (objects, their columns as they are found), variant (any JSON, in one VARIANT column; "
    "variant-struct: for readers without that type), confluent (values that name a schema), or a schema file: .json "
    "(JSON Schema), .avsc, .proto, .desc. What cannot be decoded goes to <table>_dlq.",
)
@click.option("--schema-registry", metavar="URL|DIR", help="With --schema confluent: where schemas are by their id.")
@click.option("--schema-message", metavar="NAME", help="Protobuf: the message's full name.")
@click.option(
    "--iceberg",
    metavar="CATALOG:TABLE",
    help="Register the same files in an Iceberg table too, such as lake:archive.flights, under a catalog of "
    "pyiceberg's; {topic} stands for the topic's name.",
)
@ICEBERG
@click.option("--redis", metavar="URL", help="The server's storage URL (its `ready` line). [HEADRACE_REDIS]")
@click.option("--group", metavar="NAME", help="A consumer group whose positions follow the tables.")
@click.option(
    "--bootstrap", "--kafka", "kafka", metavar="HOST:PORT", help="Where the group is committed. [HEADRACE_BOOTSTRAP]"
)
@click.option("--profile", metavar="NAME", help="A profile of profiles.toml. [HEADRACE_PROFILE]")
@click.option(
    "--checkpoint", metavar="DIR", help="Keep Spark's checkpoint there; not needed, the tables know their place."
)
@click.option("--once", is_flag=True, help="End when everything there is now has been archived.")
@click.option(
    "--trigger",
    "trigger_s",
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
    *,
    topics: tuple[str, ...],
    redis: str | None,
    profile: str | None,
    once: bool,
    metrics: str | None,
    **given: Any,
) -> None:
    """Archive topics into Delta tables, every record exactly once.

    Runs until Ctrl-C or SIGTERM, which end it with the batch that is under way, or with --once until everything there
    is now has been archived. Killed at any moment and started again, it goes on where the tables stand; a process of
    it that is killed is replaced.
    """
    if given["kafka"] is not None and given["group"] is None:
        raise click.UsageError("--bootstrap is where --group is committed: give --group too or leave it out")
    names = tuple(name.strip() for text in topics for name in text.split(","))
    if bool(names) == (given["pattern"] is not None) or not all(names):
        raise click.UsageError("name the topics with --topic, or give a --pattern: one of the two")
    try:
        told = environment.client(profile)
    except environment.SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    redis = redis or told.redis
    if redis is None:
        raise click.UsageError(
            "no storage named: give --redis URL (the server's `ready` line has it) or HEADRACE_REDIS"
        )
    if given["group"] is not None and given["kafka"] is None:
        given["kafka"] = told.bootstrap
    try:
        if given["traces"] is not None:
            import headrace.tracing  # noqa: F401, PLC0415  # an extra: whether it is there
    except ImportError as error:
        raise click.ClickException(f"--traces needs {error.name}: pip install 'headrace[otel]'") from None
    settings = {**given, "topics": names, "redis": redis}
    missing = [name for name in ("pyspark", "deltalake", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{missing[0]} is not installed: pip install 'headrace[spark]'")
    _run(Wanted(settings=settings, once=once), metrics=metrics)


def _run(wanted: Wanted, *, metrics: str | None) -> None:
    figures = Figures()
    if metrics is not None:
        try:
            click.echo(f"metrics at http://{serve(figures, metrics)}/metrics", err=True)
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--metrics {metrics}: {error}") from None
    began = time.monotonic()
    with Show(figures) as show:
        watch = Watch(wanted, figures, show)
        supervisor = Supervisor(wanted, watch)
        try:
            with stopping_by_signals(supervisor):
                supervisor.run()
        except ArchiveFailed as error:
            watch.end(State.FAILED, str(error))
            raise click.ClickException(str(error)) from None
        watch.end(State.DONE if wanted.once and not supervisor.asked else State.STOPPED)
    topics = figures.topics()
    versions = {topic.version for topic in topics.values()}
    where = f"table version {versions.pop()}" if len(topics) == 1 else f"{len(topics)} tables"
    records = sum(topic.records for topic in topics.values())
    click.echo(f"archived {records:,} records in {time.monotonic() - began:.1f} s, {where}", err=True)
