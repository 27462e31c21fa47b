"""`headrace tls`: create certificates for a start."""

import datetime as dt
from pathlib import Path

import click

from headrace.cli.command import CommandFailed, Status, TeachingGroup
from headrace.cli.output import print_json
from headrace.security.tls import files
from headrace.text.escaping import shown


@click.group(cls=TeachingGroup)
def tls() -> None:
    """Create certificates for servers and clients."""


@tls.command(
    "create",
    examples="""
    headrace tls create certificates
    headrace tls create certificates --host broker.example.org --host 10.0.0.7
    headrace serve --set listeners=SSL://127.0.0.1:9093 --set ssl.keystore.location=certificates/server.pem
    """,
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Name or address of the server. Repeatable.")
@click.option(
    "--client",
    default="client",
    metavar="NAME",
    show_default=True,
    help="Common name (CN) in the client's certificate.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(directory: Path, hosts: tuple[str, ...], client: str, as_json: bool) -> None:
    """Create a certificate authority, and certificates for a server and a client.

    Writes to DIR, with access for its owner only. The other side must trust ca.pem. ca-key.pem can sign more
    certificates and must be kept safe. server.pem and client.pem each hold a private key and its certificate. The
    server's certificate is valid for localhost, 127.0.0.1, ::1 and every --host. All are valid for 397 days.
    """
    try:
        made = files.create(directory, hosts, client, dt.datetime.now(dt.UTC))
    except FileExistsError as error:
        raise CommandFailed(f"{shown(error.filename)} exists already: name another directory") from None
    except OSError as error:
        raise CommandFailed(f"cannot write into {shown(str(directory))}: {error.strerror}") from None
    except ValueError as error:
        raise CommandFailed(f"no certificate can be made: {error}", Status.USAGE) from None
    if as_json:
        print_json({name: str(getattr(made, name)) for name in made.__struct_fields__})
        return
    click.echo(f"authority    {shown(str(made.authority))}  (its key: {shown(str(made.authority_key))})")
    click.echo(f"server       {shown(str(made.server))}")
    click.echo(f"client       {shown(str(made.client))}")
