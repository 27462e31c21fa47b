"""`headrace backup`: copy the data directory of a server, which may be running."""

from pathlib import Path

import click

from headrace.cli.command import CommandFailed, Status, command
from headrace.server.config import SettingsError, load
from headrace.storage.errors import StoreError
from headrace.storage.valkey.backup import back_up


@command(
    "backup",
    examples="""
    headrace backup /backups/monday
    headrace backup /backups/monday --data /var/lib/headrace
    headrace backup "/backups/$(date +%F)" --config /etc/headrace/headrace.toml
    """,
)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--data", metavar="DIR", help="Data directory of the server. [HEADRACE_DATA]")
@click.option("--config", metavar="FILE", help="TOML file of the server, which names it. [HEADRACE_CONFIG]")
def backup(target: Path, data: str | None, config: str | None) -> int:
    """Copy the data of a server into a new directory.

    The server may be running. The copy has every record, committed offset and resource that was acknowledged before the
    command started. To restore it, start a server on a copy of DIR. DIR must not exist, and it appears when it is
    complete. Run the command on the machine of the server, as its user or as root.
    """
    try:
        options, _, _ = load({"data": data}, (), config)
    except SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    if options.redis is not None:
        raise CommandFailed(
            "the data is in your own Redis: back up that Redis, see docs/guides/backup.md", Status.USAGE
        )
    try:
        copied = back_up(options.data, target)
    except StoreError as error:
        raise CommandFailed(str(error)) from None
    click.echo(f"{options.data} is backed up in {copied.path} ({copied.size / (1 << 20):.1f} MiB)")
    return Status.DONE
