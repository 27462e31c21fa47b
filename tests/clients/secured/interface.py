"""What the matrix asks of a client: come in by a login, write, and read what was written as a member of a group."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

CERTIFICATE = "certificate"
"""Mutual TLS: no SASL mechanism, but Kafka's word for it is a security protocol of its own (SSL)."""
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORDS, "OAUTHBEARER", CERTIFICATE)


class Login(msgspec.Struct, frozen=True):
    """Where a client goes, and what it brings."""

    address: str
    mechanism: str
    """One of `MECHANISMS`."""
    authority: Path
    """PEM of the authority whose servers it believes."""
    name: str = ""
    password: str = ""
    token: str = ""
    certificate: Path | None = None
    """PEM of the client's key and certificate."""
    patience_s: int = 60
    """Seconds until clients give up that retry after any error."""

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol`."""
        return "SSL" if self.mechanism == CERTIFICATE else "SASL_SSL"


class Refused(Exception):
    """The client did not get in, or would not; in its own words."""


class SecuredClient(Protocol):
    """A Kafka client, or a tool."""

    name: ClassVar[str]
    mechanisms: ClassVar[Sequence[str]]
    """Those that it has and that get it in here."""

    def __init__(self, folder: Path) -> None:
        """Make ready; what has to be built goes into `folder`."""

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """Write records, and read as many as a member of a group of the topic's name.

        A client that tries again and again gives up after `login.patience_s`.

        Raises:
            Refused: the login or the handshake failed, on either side.
        """
