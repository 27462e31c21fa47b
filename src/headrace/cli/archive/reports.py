"""`headrace archive --forget`: remove the reports of ended archives from the console's page."""

import re

import click

from headrace.cli.command import CommandFailed, Status
from headrace.lakehouse.paths import local_path
from headrace.lakehouse.status import document
from headrace.metrics.runs import ArchiveReport
from headrace.storage.redis.clients import ERRORS
from headrace.storage.redis.url import without_password
from headrace.text.escaping import shown


def forget(redis: str, topics: tuple[str, ...], pattern: str | None, table: str) -> None:
    """Remove the reports of archives of these topics into this table. Raise CommandFailed.

    The options are those of the archive. `{topic}` in `table` is replaced by each topic's name.
    """
    try:
        named = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise CommandFailed(f"--pattern {pattern!r} is not a regular expression: {error}", Status.USAGE) from None

    def chosen(report: ArchiveReport) -> bool:
        wanted = report.topic in topics if named is None else named.fullmatch(report.topic) is not None
        return wanted and _same(report.table, table.replace(document.TOPIC, report.topic))

    try:
        removed = document.forget(redis, chosen)
    except document.StillRunning as error:
        raise CommandFailed(shown(str(error))) from None
    except (*ERRORS, ValueError) as error:
        why = " ".join(str(error).split())
        raise CommandFailed(
            f"the storage at {without_password(redis)} does not answer: {why}", Status.UNREACHABLE
        ) from None
    if not removed:
        asked = ", ".join(topics) if pattern is None else f"topics that match {pattern}"
        raise CommandFailed(
            f"no archive of {asked} into {table} has reported; the console's page Pipeline shows topics and tables",
            Status.MISSING,
        )
    for report in removed:
        click.echo(shown(f"removed the card of {report.topic} into {report.table}"))


def _same(reported: str, given: str) -> bool:
    """Return whether two texts name one place. A report has the text that its archive was given."""
    try:
        one, other = local_path(reported), local_path(given)
    except ValueError:
        return reported == given
    if one is None or other is None:
        return reported.rstrip("/") == given.rstrip("/")
    return one == other
