"""`headrace demo`: run a year of flights through a server."""

from pathlib import Path

import click

from headrace.cli import log_output
from headrace.cli.command import CommandFailed, command
from headrace.cli.output import console
from headrace.text import extras


@command(
    "demo",
    examples="""
    headrace demo
    headrace demo --exit
    headrace demo --cluster
    headrace demo --rate 0
    headrace demo --kafka 127.0.0.1:19092 --http 127.0.0.1:18080
    """,
)
@click.option("--exit", "leave", is_flag=True, help="End when done. The status is 0 only if all figures agree.")
@click.option("--cluster", is_flag=True, help="Use three brokers over a Redis Cluster, and kill one of them.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default="./.headrace-demo",
    show_default=True,
    metavar="DIR",
    help="Directory for data, table and logs. The demo empties it at the start.",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="Address of the Kafka listener (default: 127.0.0.1:9092, or a free port).",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address of the OCI API and the web console (default: 127.0.0.1:8080, or a free port).",
)
@click.option(
    "--rate",
    type=click.IntRange(min=0),
    default=20_000,
    show_default=True,
    metavar="N",
    help="Flights sent per second. 0: as fast as possible.",
)
@click.option("--flights", type=click.IntRange(min=1), metavar="N", hidden=True, help="Only the first N flights.")
def demo(
    leave: bool, cluster: bool, data: Path, kafka: str | None, http: str | None, rate: int, flights: int | None
) -> int:
    """Run a year of flights through a server, a consumer group and Spark, and check every figure.

    Starts its own server. The 336,776 flights that left New York in 2013 go into a topic. Three processes read them as
    a consumer group; one is killed half way and another one joins. Spark archives the topic into a Delta table and
    computes flights and mean departure delay, next to the same figures from the data's package. Then the server stays
    up for you to try things, until Ctrl-C.
    """
    try:
        from headrace.demo import run  # noqa: PLC0415  # needs extras, and help does not
    except ImportError as error:
        raise CommandFailed(extras.needs("the demo", error.name or "", "demo")) from None
    log_output.configure("warning", "text")
    try:
        options = run.Options(
            leave=leave, cluster=cluster, data=data, kafka=kafka, http=http, rate=rate, flights=flights
        )
        return run.run(options, console())
    except run.DemoFailed as error:
        raise CommandFailed(str(error)) from None
