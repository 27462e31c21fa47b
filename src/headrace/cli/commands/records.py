"""`headrace records`: send records, show them as they come, and delete old ones."""

import click

from headrace.cli.command import TeachingGroup
from headrace.cli.commands.produce import produce
from headrace.cli.commands.tail import tail
from headrace.cli.commands.trim import trim


@click.group("records", cls=TeachingGroup)
def records() -> None:
    """Send records, show them, and delete old ones."""


for each in (produce, tail, trim):
    records.add_command(each)
