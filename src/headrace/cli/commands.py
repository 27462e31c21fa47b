"""What every command shares: the error that ends it with one line, and help that ends with examples."""

from collections.abc import Callable
from typing import Any

import click


class CommandFailed(Exception):
    """The command cannot go on. The message is one line for a person: what was asked, what was found, what to try."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class TeachingCommand(click.Command):
    """A command whose help ends with examples, taken word for word from `examples`."""

    def __init__(self, *arguments: Any, examples: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = tuple(line.strip() for line in examples.strip().splitlines())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, one per line: never wrapped."""
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for line in self.examples:
            formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)


class TeachingGroup(click.Group):
    """A group of commands that each have examples."""

    command_class = TeachingCommand


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """`click.command` for a command of its own, with examples."""
    return click.command(name, cls=TeachingCommand, examples=examples)
