"""`headrace archive`: topics into Delta tables, exactly once."""

import ipaddress
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import click

from headrace.cli.archive import reports, requirements
from headrace.cli.archive.messages import Wanted
from headrace.cli.archive.supervisor import ArchiveFailed, Show, Supervisor, Watch, stopping_by_signals
from headrace.cli.client import CA, KAFKA_PROPERTIES, USERNAME, named_server
from headrace.cli.command import CommandFailed, Status, command
from headrace.lakehouse.status.counters import Figures, TopicFigures
from headrace.metrics import families
from headrace.metrics.families import CONTENT_TYPE, Exposition, labels
from headrace.metrics.runs import State
from headrace.server import config
from headrace.storage.redis.url import password_in, with_password
from headrace.text.escaping import shown

_MOST_NAMED = 3
"""Maximum topics in the last line's dead-letter summary."""


def storage_options(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse repeated `NAME=VALUE` options for delta-rs."""
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
    help="Option of delta-rs for the object store, such as aws_endpoint_url=... Repeatable. The "
    "default is environment variables, such as AWS_ACCESS_KEY_ID.",
)


ICEBERG = click.option(
    "--iceberg-option",
    "iceberg_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=storage_options,
    help="Setting of the Iceberg catalog, such as uri=... Repeatable. The default is pyiceberg's configuration.",
)


@command(
    "archive",
    examples="""
    headrace archive --topic flights --table ./flights-table --redis unix:///path/of/the/ready/line
    headrace archive --topic flights --topic orders --table './lake/{topic}' --once
    headrace archive --pattern 'shop[.].*' --table 's3://lake/{topic}' --storage-option aws_region=eu-central-1
    headrace archive --topic flights --table ./flights-table --group archiver --bootstrap 127.0.0.1:9092
    headrace archive --topic flights --table ./flights-table --forget
    """,
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Topic to archive. Repeatable.")
@click.option("--pattern", metavar="REGEX", help="Archive all topics whose full name matches, including future ones.")
@click.option(
    "--table",
    required=True,
    metavar="PLACE",
    help="Delta table, as a directory or a URL of an object store. A missing table is created. "
    "{topic} is replaced by the name of each topic.",
)
@STORAGE
@click.option(
    "--schema",
    metavar="WHAT",
    help="Write typed tables. json: objects with inferred columns. variant: any JSON in one VARIANT column. "
    "variant-struct: the same for readers without that type. confluent: values with a schema id. Or a schema file: "
    ".json (JSON Schema), .avsc, .proto, .desc. Other records go to <table>_dlq.",
)
@click.option("--schema-registry", metavar="URL|DIR", help="With --schema confluent: the schema registry.")
@click.option("--schema-message", metavar="NAME", help="Full name of the Protobuf message.")
@click.option(
    "--iceberg",
    metavar="CATALOG:TABLE",
    help="Also register the files in an Iceberg table, such as lake:archive.flights, in a catalog of "
    "pyiceberg. {topic} is replaced by the topic's name.",
)
@ICEBERG
@click.option("--redis", metavar="URL", help="URL of the server's storage, from its `ready` line. [HEADRACE_REDIS]")
@click.option(
    "--redis-password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the password of the storage in its first line. With ACLs and an embedded Valkey, "
    "it is storage.password in the data directory. [HEADRACE_REDIS_PASSWORD_FILE]",
)
@click.option("--group", metavar="NAME", help="Consumer group whose committed offsets follow the tables.")
@click.option(
    "--bootstrap",
    "--kafka",
    "kafka",
    metavar="HOST:PORT",
    help="Address of the server for commits of the group. [HEADRACE_BOOTSTRAP]",
)
@USERNAME
@CA
@KAFKA_PROPERTIES
@click.option("--profile", metavar="NAME", help="A profile of profiles.toml. [HEADRACE_PROFILE]")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Directory of Spark's checkpoint. It is optional, because the tables store the progress.",
)
@click.option("--once", is_flag=True, help="End when all present records are archived.")
@click.option(
    "--trigger",
    "trigger_s",
    type=click.FloatRange(min=0.01),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time between commits.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus on this loopback address. Port 0 selects a free port.",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Export traces of records to this OpenTelemetry receiver, such as http://127.0.0.1:4318.",
)
@click.option("--skip-lost", is_flag=True, help="Continue if retention removed records before they were archived.")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Continue if a stored batch cannot be read. Its bytes are kept.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Do not archive: remove the cards of these topics and this table from the console's page.",
)
@click.option(
    "--share-table",
    is_flag=True,
    help="Continue if the table belongs to another topic, or to a topic of another server.",
)
def archive(
    *,
    topics: tuple[str, ...],
    redis: str | None,
    redis_password_file: Path | None,
    username: str | None,
    ca: str | None,
    kafka_properties: Path | None,
    profile: str | None,
    once: bool,
    metrics: str | None,
    forget: bool,
    **given: Any,
) -> None:
    """Copy topics into Delta tables, every record exactly once.

    Runs until Ctrl-C or SIGTERM, which let the current batch finish. With --once, ends when all present records are
    archived. You can kill and restart it at any time: it continues after the last commit of each table. It replaces a
    worker process that is killed.
    """
    committing = {"--bootstrap": given["kafka"], "--username": username, "--ca": ca}
    committing["--kafka-properties"] = kafka_properties
    for flag, value in committing.items():
        if value is not None and given["group"] is None:
            raise click.UsageError(f"{flag} is about where --group is committed: give --group too or leave it out")
    names = tuple(name.strip() for text in topics for name in text.split(","))
    if bool(names) == (given["pattern"] is not None) or not all(names):
        raise click.UsageError("name the topics with --topic, or give a --pattern: one of the two")
    try:
        told = config.client(profile)
    except config.SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    redis = _storage(redis or told.redis, redis_password_file or told.redis_password_file)
    if forget:
        reports.forget(redis, names, given["pattern"], given["table"])
        return
    if given["group"] is not None:
        server = named_server(given["kafka"], username, profile, ca)
        given["kafka"], given["login"] = server.address, server.options(kafka_properties)
    settings = {**given, "topics": names, "redis": redis}
    requirements.check("the archive", settings)
    _run(Wanted(settings=settings, once=once), metrics=metrics)


def _storage(redis: str | None, password_file: Path | None) -> str:
    if redis is None:
        raise click.UsageError(
            "no storage named: give --redis URL (the server's `ready` line has it) or HEADRACE_REDIS"
        )
    try:
        return redis if password_file is None else with_password(redis, password_in(password_file))
    except OSError as error:
        raise click.UsageError(f"--redis-password-file {password_file}: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(f"--redis-password-file {password_file}: {error}") from None


def _run(wanted: Wanted, *, metrics: str | None) -> None:
    figures = Figures()
    if metrics is not None:
        try:
            click.echo(f"metrics at http://{serve_metrics(figures, metrics)}/metrics", err=True)
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
            raise CommandFailed(str(error), Status.MISSING if error.missing else Status.FAILED) from None
        topics = figures.topics()
        dead = {name: topic for name, topic in topics.items() if topic.dead}
        if dead and not any(topic.records for topic in topics.values()):
            problem = f"no record could be decoded: {_set_aside(dead)}"
            watch.end(State.FAILED, problem)
            raise CommandFailed(problem, Status.FAILED)
        watch.end(State.DONE if wanted.once and not supervisor.asked else State.STOPPED)
    if not topics:
        click.echo("ended before anything was archived", err=True)
        return
    versions = {topic.version for topic in topics.values()}
    where = f"table version {versions.pop()}" if len(topics) == 1 else f"{len(topics)} tables"
    records = sum(topic.records for topic in topics.values())
    aside = f"; {_set_aside(dead)}" if dead else ""
    click.echo(f"archived {records:,} records in {time.monotonic() - began:.1f} s, {where}{aside}", err=True)


def _set_aside(dead: Mapping[str, TopicFigures]) -> str:
    parts = [
        f"{topic.dead:,} set aside in {topic.dead_table} (the first: {topic.dead_reason})" for topic in dead.values()
    ]
    more = len(parts) - _MOST_NAMED
    return shown("; ".join(parts[:_MOST_NAMED]) + (f"; and those of {more} more topics" if more > 0 else ""))


_MOST_SERIES: Final = 10_000
_PATIENCE_S: Final = 5.0
"""Seconds that a client may take for its request: requests are served one at a time."""


def metrics_page(figures: Figures) -> bytes:
    """Return the page with every metric family of every known topic."""
    made = Exposition(_MOST_SERIES)
    topics = {labels(topic=name): topic for name, topic in figures.topics().items()}
    for family, attribute in (
        (families.ARCHIVE_RECORDS, "records"),
        (families.ARCHIVE_BYTES, "size"),
        (families.ARCHIVE_FILES, "files"),
        (families.ARCHIVE_BATCHES, "batches"),
        (families.ARCHIVE_GROUP_FAILURES, "group_failures"),
        (families.ARCHIVE_VERSION, "version"),
        (families.ARCHIVE_LAG, "lag"),
        (families.ARCHIVE_FRESH, "fresh"),
    ):
        for label, topic in topics.items():
            value = getattr(topic, attribute)
            if value is not None:
                made.sample(family, round(value, 3), label)
    return made.finish()


def serve_metrics(figures: Figures, address: str) -> str:
    """Serve metrics until the process ends. Return the address with its port.

    Raises ValueError for an address that is not loopback, OSError for one in use.
    """
    host, _, port = address.rpartition(":")
    plain = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not port.isdecimal() or not ipaddress.ip_address(plain).is_loopback:
        raise ValueError("expected HOST:PORT with an address of this machine alone, such as 127.0.0.1:9100")

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            # A page in a local browser could send requests under its own host name (DNS rebinding).
            asked = self.headers.get("host", "").rpartition(":")[0].strip("[]")
            found = self.path == "/metrics" and asked in {plain, "localhost"}
            body = metrics_page(figures) if found else b"This archive answers GET /metrics.\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", CONTENT_TYPE if found else "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
            pass

    server = HTTPServer((plain, int(port)), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{host}:{server.server_port}"
