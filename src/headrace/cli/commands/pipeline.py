"""`headrace pipeline`: create and run declared pipelines on Spark."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.archive.requirements import check_spark
from headrace.cli.client import KAFKA_PROPERTIES, named_server, server_flags
from headrace.cli.command import CommandFailed, Status, TeachingGroup
from headrace.cli.output import print_table
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.client.offsets import TopicPartition
    from headrace.spark.pipelines.status import Flow

_LAST_LINES = 200


@click.group(cls=TeachingGroup)
def pipeline() -> None:
    """Create, check and run Spark pipelines."""


@pipeline.command(
    "init",
    examples="""
    headrace pipeline init orders --topic orders
    headrace pipeline init orders --topic orders --bootstrap broker-1:9092,broker-2:9092
    """,
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--topic", required=True, metavar="NAME", help="The first topic; its columns come from a sample.")
@server_flags
@KAFKA_PROPERTIES
def init(
    folder: Path,
    topic: str,
    bootstrap: str | None,
    username: str | None,
    profile: str | None,
    ca: str | None,
    kafka_properties: Path | None,
) -> None:
    """Create a pipeline project with bronze, silver and gold tables of a topic.

    Writes a login to conf/login.properties, which only you can read and git ignores.
    """
    _need_spark()
    from headrace.client import errors  # noqa: PLC0415  # Spark is an extra, and slow to import
    from headrace.spark.pipelines import project  # noqa: PLC0415

    server = named_server(bootstrap, username, profile, ca)
    login = server.options(kafka_properties) if kafka_properties or server.username or server.ca else None
    try:
        made = project.create(folder, topic, server.address, login)
    except errors.UnknownTopic as error:
        raise CommandFailed(f"{error}; `headrace topics list` shows the existing ones", Status.MISSING) from None
    except errors.ServerUnavailable as error:
        raise CommandFailed(str(error), Status.UNREACHABLE) from None
    except errors.LoginRefused as error:
        raise CommandFailed(str(error), Status.REFUSED) from None
    except errors.SparkError as error:
        raise CommandFailed(str(error)) from None
    columns = f"{len(made.columns)} columns from a sample" if made.columns else "text: the sample has no JSON objects"
    if not made.sampled:
        columns = "text: the topic has no records yet to make columns of"
    if login is not None:
        click.echo(f"{folder / project.LOGIN} has the login: only you may read it, and git leaves it out")
    run_it = f"headrace pipeline run {shlex.quote(str(folder))}"
    click.echo(f"{folder}: {made.dataset}_bronze, _silver ({columns}), _gold. Run it: {run_it}")


@pipeline.command(
    "run",
    examples="""
    headrace pipeline run orders
    headrace pipeline run orders --full-refresh-all
    headrace pipeline run orders --dry-run
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--dry-run", is_flag=True, help="Only check whether the project can run.")
@click.option("--refresh", metavar="TABLES", help="Update only these tables, separated by commas.")
@click.option("--full-refresh", metavar="TABLES", help="Recompute these tables, separated by commas.")
@click.option("--full-refresh-all", is_flag=True, help="Recompute everything.")
@click.option("--verbose", is_flag=True, help="Show Spark's whole output.")
def run(
    folder: Path, dry_run: bool, refresh: str | None, full_refresh: str | None, full_refresh_all: bool, verbose: bool
) -> None:
    """Update all tables and sinks of a project, and report the result.

    Sets the environment (Java, Python, a local port for Spark Connect) and starts Spark's `spark-pipelines`.
    """
    _need_spark()
    from headrace.client.errors import SparkError  # noqa: PLC0415
    from headrace.spark.pipelines import check, status  # noqa: PLC0415
    from headrace.spark.pipelines import run as runner  # noqa: PLC0415

    folder = folder.absolute()
    arguments = ["--refresh", refresh] if refresh else []
    arguments += ["--full-refresh", full_refresh] if full_refresh else []
    arguments += ["--full-refresh-all"] if full_refresh_all else []
    said: list[str] = []
    try:
        runner.prepare(folder)
        with status.Teller(folder, [] if dry_run else status.storages(folder)) as teller:

            def tell(line: str) -> None:
                said.append(line)
                del said[:-_LAST_LINES]
                teller.said(line)
                # Spark's lines for users have a time; others are logs and traces.
                if verbose or line[:2] == "20":
                    click.echo(line, err=True)

            ended = runner.start(folder, arguments, output=tell, dry=dry_run, verbose=verbose)
            if ended.status:
                raise CommandFailed(
                    f"the pipeline failed: {status.failure(said)} (--verbose shows Spark's whole output)"
                )
            flows = [] if dry_run else status.of_run(ended.log)
            ends = check.ends(folder, {partition.topic for flow in flows for partition in flow.positions})
            teller.done([flow.told(ends, teller.state_of(flow.name)) for flow in flows])
    except SparkError as error:
        raise CommandFailed(str(error)) from None
    if not dry_run and ended.log is not None:
        _show(flows, ends)


def _show(flows: "list[Flow]", ends: "dict[TopicPartition, int]") -> None:
    if not flows:
        click.echo("nothing new to read")
        return
    rows = [
        (
            flow.name,
            f"{flow.read:,}",
            f"{flow.written:,}" if flow.written else None,
            flow.batches,
            f"{flow.seconds:.1f}",
            None if (behind := flow.behind(ends)) is None else f"{behind:,}",
        )
        for flow in flows
    ]
    print_table(("FLOW", ">READ", ">WRITTEN", ">BATCHES", ">SECONDS", ">BEHIND"), rows)
    for flow in flows:
        for name, counts in flow.observed.items():
            click.echo(f"{flow.name}: {name} " + ", ".join(f"{key}={value}" for key, value in counts.items()))


def _need_spark() -> None:
    absent = extras.missing(("pyspark", "deltalake", "pyarrow", "pandas"))
    if absent:
        raise CommandFailed(extras.needs("a pipeline", absent[0], "pipelines"), Status.USAGE)
    check_spark("a pipeline", "pipelines", Status.USAGE)
