"""Asking a person before something is deleted for good."""

import sys

import click

YES = click.option("--yes", is_flag=True, help="Do not ask; nobody is asked either when standard input is no terminal.")
"""The flag of a command that deletes; it gets `yes`."""


def confirm(question: str, yes: bool) -> None:
    """Ask, unless the person has said `yes` already or there is none. Raises click.Abort when the answer is no."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True)
