"""Names that a shell completes: topics and groups of the server, told quickly or not at all."""

from collections.abc import Callable, Iterable

import click
from confluent_kafka import KafkaException

from headrace.cli.client import Client, named_server
from headrace.cli.command import CommandFailed

_PATIENCE_S = 1.0
_MOST = 1_000

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(names: Callable[[Client], Iterable[str]]) -> Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        """What begins with `incomplete`; nothing without an answer, as a completion has no place for errors."""
        given = context.params
        try:
            server = named_server(given.get("bootstrap"), given.get("username"), given.get("profile"))
            found = names(Client(server, patience_s=_PATIENCE_S))
            # A name with blanks or line breaks in it would be several for a shell.
            fit = sorted(name for name in found if name.startswith(incomplete) and _is_word(name))
        except (CommandFailed, KafkaException):
            return []
        return fit[:_MOST]

    return complete


def _is_word(name: str) -> bool:
    return name.isprintable() and not any(letter.isspace() or letter in "'\"`$\\;&|<>()*?[]{}!~#," for letter in name)


topics = _completer(lambda client: client.topics)
groups = _completer(lambda client: client.groups())
