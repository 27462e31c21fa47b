"""Login of connections and choice of the virtual cluster.

A port between APIs: one knows the login protocol, another the credentials.
"""

from typing import Protocol

import msgspec

from headrace.broker.broker import Broker
from headrace.security.access.principal import Principal


class LoginRefused(Exception):
    """A rejected login.

    The message is for the client. `reason` is for the log and may reveal more.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Admitted(msgspec.Struct, frozen=True):
    """Result of a login."""

    principal: Principal
    broker: Broker
    """Virtual cluster of the login."""
    lifetime_ms: int = 0
    """Time after which the client must log in again (KIP-368). 0: never."""


class Bearer(msgspec.Struct, frozen=True):
    """Owner of a token."""

    name: str
    """Name of the principal."""
    lifetime_ms: int
    """Remaining lifetime of the token, at least 1."""


class Answer(msgspec.Struct, frozen=True):
    """A mechanism's response to a token."""

    token: bytes = b""
    admitted: Admitted | None = None
    """None: another token must follow."""
    refused: LoginRefused | None = None
    """Reason of a failure that the mechanism reports by a token of its own."""


class Mechanism(Protocol):
    """One login in progress, by one SASL mechanism."""

    async def answer(self, token: bytes) -> Answer:
        """Process the client's next token. Raises LoginRefused, which ends the login."""


class Logins(Protocol):
    """Logins at a listener."""

    required: bool
    """Whether login is required. Otherwise, clients without login use the default cluster."""
    mechanisms: tuple[str, ...]
    """Names of SASL mechanisms."""

    def begin(self, mechanism: str) -> Mechanism:
        """Begin a login by one of `mechanisms`."""

    async def refused(self) -> None:
        """Delay the response to a rejected login, to slow down guessing."""
