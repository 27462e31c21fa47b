"""`headrace users`: create, list and delete users with a password."""

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.command import CommandFailed, Status, TeachingGroup
from headrace.cli.output import print_json, print_table
from headrace.cli.requests import ask, check
from headrace.protocol.messages import DescribeUserScramCredentialsRequest
from headrace.text.escaping import quoted, shown

_ITERATIONS = 4096
_MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
_NAMES = {each.value: each.name.replace("_", "-") for each in _MECHANISMS}
"""Names of the mechanisms, by their protocol numbers."""


@click.group(cls=TeachingGroup)
def users() -> None:
    """Create, list and delete users with a password."""


@users.command(
    "create",
    examples="""
    headrace users create jane --password-file jane.password
    pwgen 20 1 | headrace users create jane --password-file -
    """,
)
@click.argument("name")
@click.option(
    "--password-file",
    required=True,
    metavar="FILE",
    help="File with the password in its first line. -: standard input.",
)
@client_options
def create(name: str, password_file: str, kafka: KafkaServer, as_json: bool) -> None:
    """Set the password of NAME, and create this user if necessary.

    It is valid for SASL PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, and for HTTP's Basic. The server keeps only SCRAM
    credentials, which do not reveal the password.
    """
    password = _password(password_file)
    client = Client(kafka)
    made = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(each, _ITERATIONS), password.encode())
        for each in _MECHANISMS
    ]
    client.result(_altered(client, made)[name], f"create user {quoted(name)}")
    if as_json:
        print_json({"user": name})
    else:
        click.echo(f"user {shown(name)} has a password")


@users.command(
    "list",
    examples="""
    headrace users list
    headrace users list --json | jq -r '.[].user'
    """,
)
@client_options
def list_(kafka: KafkaServer, as_json: bool) -> None:
    """List users, and their SCRAM mechanisms in addition to PLAIN."""
    found = _described(kafka)
    answer = [{"user": name, "mechanisms": found[name]} for name in sorted(found)]
    if as_json:
        print_json(answer)
    else:
        print_table(["user", "mechanisms"], [[each["user"], ", ".join(each["mechanisms"])] for each in answer])


@users.command(
    "delete",
    examples="""
    headrace users delete jane
    """,
)
@click.argument("name")
@client_options
def delete(name: str, kafka: KafkaServer, as_json: bool) -> None:
    """Delete the password of NAME. Open connections stay."""
    found = _described(kafka)
    if name not in found:
        raise CommandFailed(
            f"no user {quoted(name)} at {kafka}; `headrace users list` shows the existing ones", Status.MISSING
        )
    client = Client(kafka)
    dropped = [UserScramCredentialDeletion(name, each) for each in _MECHANISMS if _NAMES[each.value] in found[name]]
    client.result(_altered(client, dropped)[name], f"delete user {quoted(name)}")
    if as_json:
        print_json({"user": name})
    else:
        click.echo(f"user {shown(name)} is gone")


def _altered(client: Client, changes: list[Any]) -> dict[str, "Future[Any]"]:
    try:
        altered: dict[str, Future[Any]] = client.admin.alter_user_scram_credentials(changes)
    except (KafkaException, ValueError, TypeError) as error:
        raise CommandFailed(f"the name or the password cannot be used: {error}", Status.USAGE) from None
    return altered


def _described(kafka: KafkaServer) -> dict[str, list[str]]:
    """Return users and their mechanisms. Raise CommandFailed.

    librdkafka (2.16) frees foreign memory if the whole request is refused, and the process crashes.
    """
    answer = ask(kafka, DescribeUserScramCredentialsRequest(users=None), 0, "list users")
    check(answer.error_code, answer.error_message, "list users")
    # A user deleted during the lookup has an error instead.
    return {
        each.user: [_NAMES.get(info.mechanism, f"mechanism {info.mechanism}") for info in each.credential_infos]
        for each in answer.results
        if not each.error_code
    }


def _password(path: str) -> str:
    try:
        text = sys.stdin.readline() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise CommandFailed(f"cannot read the password in {shown(path)}: {reason}", Status.USAGE) from None
    password = text.split("\n", 1)[0].rstrip("\r")
    if not password:
        raise CommandFailed(f"there is no password in {shown(path)}: its first line is empty", Status.USAGE)
    return password
