"""`headrace serve`: start the server, and print when it is ready."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import click
import structlog

from headrace.cli import log_output
from headrace.cli.command import CommandFailed, Status, command
from headrace.cli.imports import UNINVITED, lean
from headrace.cli.log_output import StderrWriter
from headrace.server.config import BrokerSettings, OciSettings, ServerOptions, SettingsError, StartError, load
from headrace.server.listeners import AddressTaken
from headrace.server.options import OPTIONS
from headrace.server.process import loop_factory
from headrace.storage.redis.url import has_password, without_password

F = TypeVar("F", bound=Callable[..., object])
_FLUSH_S = 0.5
_log = structlog.get_logger("headrace.cli.commands")


def server_options(function: F) -> F:
    """Add `--config`, `--set` and every server option, as text or None."""
    for option in reversed(OPTIONS):
        default = f", default {option.default}" if option.default is not None else ""
        click.option(
            option.flag, option.field, metavar=option.metavar, help=f"{option.doc} [{option.variable}{default}]"
        )(function)
    click.option(
        "--set",
        "sets",
        metavar="KEY=VALUE",
        multiple=True,
        help="Broker setting with Kafka's name. Repeatable. [HEADRACE_SET, separated by spaces]",
    )(function)
    click.option("--config", metavar="FILE", help="TOML file with these options. [HEADRACE_CONFIG]")(function)
    return function


@command(
    "serve",
    examples="""
    headrace serve
    headrace serve --kafka 0.0.0.0:9092 --advertise broker.example.org:9092 --set headrace.insecure=true
    headrace serve --data /var/lib/headrace --fsync always
    headrace serve --redis redis://localhost:6379/0
    headrace serve --set num.partitions=6 --set log.retention.hours=24
    HEADRACE_KAFKA=127.0.0.1:0 headrace serve --config headrace.toml
    """,
)
@server_options
def serve(config: str | None, sets: tuple[str, ...], **flags: str | None) -> int:
    """Start a server.

    Prints one line that starts with `ready ` once every listener answers, and logs to stderr. A flag overrides its
    environment variable, that overrides the file, and the file overrides the default. In the file, options have the
    names of the flags without dashes in front, and broker settings are in a table [set].
    """
    try:
        given = {name.replace("_", "-"): text for name, text in flags.items()}
        options, broker, oci = load(given, sets, config)
    except SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    log = log_output.configure(options.log_level, options.log_format)
    # Files of the server and its Valkey are private, whatever the caller's umask.
    os.umask(0o077)
    if has_password(flags["redis"] or ""):
        _log.warning(
            "the password in --redis is visible in the process list: set the URL in HEADRACE_REDIS instead, "
            "or the password by --redis-password-file"
        )
    try:
        return run(options, broker, oci, log)
    except AddressTaken as error:
        raise CommandFailed(str(_busy(options) or error)) from None
    except StartError as error:
        mistake = isinstance(error, SettingsError)
        raise CommandFailed(str(error), Status.USAGE if mistake else Status.FAILED) from None
    finally:
        log.end()


def _busy(options: ServerOptions) -> Exception | None:
    from headrace.storage.valkey.datadir import DataDirectoryBusy, user_of  # noqa: PLC0415  # only where a start fails

    user = None if options.redis else user_of(options.data)
    return None if user is None else DataDirectoryBusy(options.data, user)


def run(options: ServerOptions, broker: BrokerSettings, oci: OciSettings, log: StderrWriter) -> int:
    """Run a server until it is stopped and return its exit status. Raise StartError."""
    with lean(*UNINVITED):
        from headrace.server import app  # noqa: PLC0415  # help and mistakes in the options need no server

    def on_ready(ready: app.Ready) -> None:
        # The log of the start must precede the ready line.
        log.flush(_FLUSH_S)
        try:
            more = "".join(f" listener.{name}={address}" for name, address in ready.listeners.items())
            click.echo(f"ready kafka={ready.kafka} http={ready.http} storage={without_password(ready.storage)}{more}")
        except OSError as error:
            # The output is closed, but the server continues to serve clients.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # stays open to the end of the process
            _log.warning("the ready line cannot be written", reason=error.strerror)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if options.brokers > 1:
            from headrace.server import supervisor  # noqa: PLC0415  # few need it

            return runner.run(supervisor.serve(options, broker, oci, on_ready))
        return runner.run(app.serve(options, broker, oci, on_ready, log_lines_lost=lambda: log.lost))
