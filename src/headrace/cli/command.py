"""Shared parts of commands: exit statuses, one-line errors, and help that ends with examples."""

import sys
from collections.abc import Callable, Container
from enum import IntEnum
from typing import Any, Self

import click
from confluent_kafka import KafkaError

from headrace.text.escaping import shown

# Confirmation before permanent deletion.
YES = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Implied if standard input is not a terminal."
)
"""The flag of a command that deletes; it gets `yes`."""


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set or there is no terminal. Raise click.Abort if denied."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True)


class Status(IntEnum):
    """Exit statuses. Scripts depend on the documented numbers (docs/commands.md), so they never change."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """Create a status with its meaning for the manual."""
        made = int.__new__(cls, value)
        made._value_ = value
        made.meaning = meaning
        return made

    DONE = 0, "Done. `tail` and `--watch` end so on Ctrl-C too."
    FAILED = 1, "It could not be done, for another reason than these."
    USAGE = 2, "The command line, a variable or a profile is not right; nothing was tried."
    UNREACHABLE = 3, "No server answers there, or it went away."
    MISSING = 4, "The topic, partition or group does not exist."
    REFUSED = 5, "The server does not let this user in, or not do this."
    INTERRUPTED = 130, "Ctrl-C."


_OTHERS = {
    **dict.fromkeys(("consume", "read", "cat"), ("tail", "list", "records tail")),
    "get": ("tail", "list"),
    **dict.fromkeys(("send", "put", "write"), ("produce", "records produce")),
    "produce": ("records produce",),
    "tail": ("records tail",),
    **dict.fromkeys(("add", "new", "make"), ("create", "set", "init")),
    **dict.fromkeys(("ls", "show"), ("list",)),
    **dict.fromkeys(("remove", "rm", "drop"), ("delete",)),
    **dict.fromkeys(("info", "describe"), ("describe", "list")),
    **dict.fromkeys(("update", "configure"), ("alter", "set")),
    "offsets": ("describe",),
    "cluster": ("brokers",),
    **dict.fromkeys(("start", "run"), ("serve",)),
    "version": ("--version",),
    "help": ("--help",),
}
"""Names of commands in other tools, or at likely places, and their names here."""


class CommandFailed(Exception):
    """The command cannot continue. The message is one line with the request, the finding and a suggestion."""

    def __init__(self, message: str, status: Status = Status.FAILED) -> None:
        super().__init__(message)
        self.status = status


class TeachingCommand(click.Command):
    """A command whose help ends with its `examples`, unchanged."""

    def __init__(self, *arguments: Any, examples: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = tuple(line.strip() for line in examples.strip().splitlines())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one per line, without wrapping."""
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for line in self.examples:
            formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)


class TeachingGroup(click.Group):
    """A group of commands that each have examples."""

    command_class = TeachingCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return names in the order of definition, which is by use."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error suggests the name here for another tool's name."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise called_here(error, {*self.commands, "--help"}, ctx) or error from None


def called_here(error: click.NoSuchCommand, there: Container[str], ctx: click.Context) -> click.NoSuchCommand | None:
    """Return an error with the first alternative that exists in `there`, or None."""
    name = error.command_name
    here = next((each for each in _OTHERS.get(name, ()) if each.split()[0] in there), None)
    if here is None:
        return None
    return click.NoSuchCommand(name, f"No such command {name!r}, it is {f'{ctx.command_path} {here}'!r}", ctx=ctx)


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a `click.command` decorator for a command with examples."""
    return click.command(name, cls=TeachingCommand, examples=examples)


LOST = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
"""Codes for a server that does not answer."""
NO_RULES = (
    "no access rules hold at this server: it has to be started with "
    "--set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
)

_MOST = 600
_SENTENCES: dict[int, tuple[str, Status]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("there is no such topic or partition", Status.MISSING),
    KafkaError._UNKNOWN_TOPIC: ("there is no such topic", Status.MISSING),
    KafkaError._UNKNOWN_PARTITION: ("there is no such partition", Status.MISSING),
    KafkaError.GROUP_ID_NOT_FOUND: ("there is no such group", Status.MISSING),
    KafkaError.TOPIC_EXCEPTION: (
        (
            "a topic name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', differs from others in more than "
            "'.' and '_', and is none of Kafka's internal topics"
        ),
        Status.FAILED,
    ),
    KafkaError.TOPIC_ALREADY_EXISTS: ("it exists already", Status.FAILED),
    KafkaError.NON_EMPTY_GROUP: ("it has members: stop them first", Status.FAILED),
    KafkaError.UNKNOWN_MEMBER_ID: ("it has members: stop them first", Status.FAILED),
    KafkaError.REBALANCE_IN_PROGRESS: ("its members are being rebalanced: stop them first", Status.FAILED),
    KafkaError.OFFSET_OUT_OF_RANGE: ("the log does not have that offset", Status.FAILED),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "a record is larger than the topic takes: `headrace topics alter` raises its max.message.bytes",
        Status.FAILED,
    ),
    KafkaError._MSG_TIMED_OUT: ("there was no acknowledgement in time", Status.UNREACHABLE),
    KafkaError.COORDINATOR_NOT_AVAILABLE: ("the group's coordinator is not ready: try again", Status.FAILED),
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: ("the group's coordinator is not ready: try again", Status.FAILED),
    KafkaError.KAFKA_STORAGE_ERROR: ("the server cannot use its storage: see its log", Status.FAILED),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("this user may not do that with the topic", Status.REFUSED),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("this user may not do that with the group", Status.REFUSED),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("this user may not do that on this cluster", Status.REFUSED),
    KafkaError.SECURITY_DISABLED: (NO_RULES, Status.FAILED),
    KafkaError.UNSUPPORTED_VERSION: ("the server does not have this request", Status.FAILED),
    KafkaError._UNSUPPORTED_FEATURE: ("the server does not have this request", Status.FAILED),
    KafkaError._TRANSPORT: ("the server no longer responds", Status.UNREACHABLE),
    KafkaError._TIMED_OUT: ("the server no longer responds", Status.UNREACHABLE),
    KafkaError._ALL_BROKERS_DOWN: ("the server no longer responds", Status.UNREACHABLE),
    KafkaError._RESOLVE: ("the server names an address that cannot be found (--advertise)", Status.UNREACHABLE),
}
_SAYS_LITTLE = frozenset({KafkaError.SECURITY_DISABLED})
"""Codes for which the server's text is less helpful than ours."""
_OWN = ("Broker: ", "Local: ")
"""Prefixes of the client library's own texts; other texts are the server's."""


def sentence(error: KafkaError) -> str:
    """Return the reason, in the server's words if it sent any."""
    text = " ".join(error.str().split())
    if not text.startswith(_OWN) and error.code() not in LOST | _SAYS_LITTLE:
        return shown(text, _MOST).rstrip(".")
    if error.code() in _SENTENCES:
        return _SENTENCES[error.code()][0]
    for start in _OWN:
        text = text.removeprefix(start)
    return shown(f"{text[:1].lower()}{text[1:]}", _MOST)


def exit_status(error: KafkaError) -> Status:
    """Return the exit status for an error."""
    return _SENTENCES.get(error.code(), ("", Status.FAILED))[1]
