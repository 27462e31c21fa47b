"""`headrace records`: send records, show them as they come, and delete old ones."""

import click

from headrace.cli.commands import TeachingGroup
from headrace.cli.produce import produce
from headrace.cli.tail import tail
from headrace.cli.trim import trim


@click.group("records", cls=TeachingGroup)
def records() -> None:
    """Send records, show them, and delete old ones."""


for each in (produce, tail, trim):
    records.add_command(each)
