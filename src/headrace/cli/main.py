"""Find the subcommand, and turn errors into one line and an exit status."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

from headrace.cli.command import CommandFailed, Status, called_here
from headrace.cli.imports import UNINVITED, lean
from headrace.records.errors import NoRecordCode
from headrace.text.escaping import shown

# Commands are imported when they run or show their own help, so `headrace serve` does not load Kafka's client library
# and `headrace --help` loads nothing.
COMMANDS = {
    "serve": ("headrace.cli.commands.serve:serve", "Start a server."),
    "demo": (
        "headrace.cli.commands.demo:demo",
        "Run the demo: a year of flights, all checked.",
    ),
    "topics": ("headrace.cli.commands.topics:topics", "Create, list, describe and change topics."),
    "groups": (
        "headrace.cli.commands.groups:groups",
        "List, describe, alter, reset and delete groups.",
    ),
    "transactions": (
        "headrace.cli.commands.transactions:transactions",
        "List, describe and abort transactions.",
    ),
    "acls": ("headrace.cli.commands.acls:acls", "List, create and delete ACLs."),
    "quotas": ("headrace.cli.commands.quotas:quotas", "List, set and delete quotas."),
    "records": ("headrace.cli.commands.records:records", "Produce, show and delete records."),
    "brokers": ("headrace.cli.commands.brokers:brokers", "List the brokers of the cluster."),
    "archive": (
        "headrace.cli.commands.archive:archive",
        "Copy topics into Delta tables, exactly once.",
    ),
    "tables": ("headrace.cli.commands.tables:tables", "Compact, expire and vacuum archived tables."),
    "pipeline": (
        "headrace.cli.commands.pipeline:pipeline",
        "Create, check and run Spark pipelines.",
    ),
    "users": ("headrace.cli.commands.users:users", "Create, list and delete users with a password."),
    "tls": ("headrace.cli.commands.tls:tls", "Create certificates for servers and clients."),
    "oci-config": ("headrace.cli.commands.oci_config:oci_config", "Write a profile for Oracle's tools and SDKs."),
    "doctor": ("headrace.cli.commands.doctor:doctor", "Check whether a server can run on this machine."),
    "backup": ("headrace.cli.commands.backup:backup", "Copy the data of a running or stopped server."),
    "completion": ("headrace.cli.commands.completion:completion", "Print a script for shell completion."),
}


_PLAINER = {
    ". Did you mean": ", did you mean",
    "is not a valid integer range": "is not a whole number",
    "is not a valid float range": "is not a number",
}
"""click's phrases and their replacements."""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        with lean(*UNINVITED if cmd_name == "serve" else ()):
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. click cannot find the nearest one before the import."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            nearest = click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx)
            raise called_here(error, {*COMMANDS, "--version", "--help"}, ctx) or nearest from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions without importing any command."""
        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, incomplete)


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from headrace.cli.version import describe  # noqa: PLC0415  # starts a process: only when asked

        click.echo(describe())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  headrace serve                                        a server on 127.0.0.1:9092, data in ./.headrace
  headrace topics create flights --partitions 6
  echo 'hello' | headrace records produce flights
  headrace records tail flights --from-beginning
  headrace groups describe billing                      members, committed offsets and lag
  eval "$(headrace oci-config)"                         use this server with the oci command""",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions and exit."
)
def root() -> None:
    """A Kafka-compatible streaming server with an OCI Streaming API.

    Speaks the Kafka protocol; keeps its data in Redis Streams, in a private Valkey that it starts itself or in your own
    Redis. `headrace COMMAND --help` shows each command with examples.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status. Errors go to stderr as one line each."""
    try:
        result: Any = root.main(
            args=None if arguments is None else list(arguments), prog_name="headrace", standalone_mode=False
        )
    except CommandFailed as error:
        _complain(f"headrace: {error}")
        return error.status
    except (NoRecordCode, AttributeError) as error:
        _complain(f"headrace: {_not_built(error)}")
        return Status.FAILED
    except click.ClickException as error:
        return _refuse(error)
    except (click.Abort, KeyboardInterrupt):
        return Status.INTERRUPTED
    except OSError as error:
        return _unwritten(error)
    return result if isinstance(result, int) else 0


def _not_built(error: NoRecordCode | AttributeError) -> str:
    if isinstance(error, NoRecordCode):
        return str(error)
    found = error.obj
    if not isinstance(found, ModuleType) or not isinstance(found.__loader__, ExtensionFileLoader):
        raise error
    if not found.__name__.startswith("headrace."):
        raise error
    return f"{found.__name__} was built from other sources than these, and has no {error.name!r}: run `make setup`"


def _refuse(error: click.ClickException) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        _complain(f"headrace: {error.format_message()}")
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(context.get_help())
        return 0
    else:
        text = " ".join(_message(error).split()).rstrip(".")
        for theirs, plain in _PLAINER.items():
            text = text.replace(theirs, plain)
        text = shown(text)
        more = f"{' See' if text.endswith('?') else '; see'} {context.command_path} --help"
        _complain(f"{context.command_path}: {text[0].lower()}{text[1:]}{more}")
    return error.exit_code


def _message(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        # Kafka's tools have options for actions: kafka-topics --list.
        name = error.option_name.lstrip("-")
        if name in error.ctx.command.commands:
            return f"{error.message.rstrip('.')}, it is the command '{error.ctx.command_path} {name}'"
    if isinstance(error, click.NoSuchOption | click.NoSuchCommand) and error.possibilities:
        return f"{error.message.rstrip('.')}, did you mean {error.possibilities[0]!r}?"
    return error.format_message()


def _unwritten(error: OSError) -> int:
    # Otherwise Python's flush at exit would fail and complain again.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # stays open to the end of the process
    if not isinstance(error, BrokenPipeError):
        _complain(f"headrace: cannot write the answer: {error.strerror or error}")
    return Status.FAILED


def _complain(text: str) -> None:
    """Print an error to stderr. If that fails, as on a full disk, only the exit status reports it."""
    try:
        click.echo(text, err=True)
    except OSError:
        # Otherwise Python's flush at exit would change the exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # stays open to the end of the process


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # In any locale: half an answer would break JSON.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run())
