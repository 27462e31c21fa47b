"""How a connection says who it is for, and which virtual cluster it gets.

A port between APIs: one knows the protocol of logging in, another whose names and passwords they are.
"""

from typing import Protocol

import msgspec

from headrace.broker.broker import Broker
from headrace.security.access.principal import Principal


class LoginRefused(Exception):
    """The name and the password let nobody in.

    The message is for the client; `reason` is for the log, and may say more than a stranger should know.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Admitted(msgspec.Struct, frozen=True):
    """What a login led to."""

    principal: Principal
    broker: Broker
    """The virtual cluster that it opens."""
    lifetime_ms: int = 0
    """After how long the client has to log in again (KIP-368); 0: never."""


class Bearer(msgspec.Struct, frozen=True):
    """Whose a token is."""

    name: str
    """Of the principal."""
    lifetime_ms: int
    """How long the token is good from now on; at least 1."""


class Answer(msgspec.Struct, frozen=True):
    """What a mechanism answers to a token."""

    token: bytes = b""
    admitted: Admitted | None = None
    """None: another token has to come."""
    refused: LoginRefused | None = None
    """Why nothing will come of it, where the mechanism tells the client so by a token of its own first."""


class Mechanism(Protocol):
    """One login under way, by one SASL mechanism."""

    async def answer(self, token: bytes) -> Answer:
        """Take the next token of the client. Raises LoginRefused, after which nothing more may be asked."""


class Logins(Protocol):
    """Who may log in at a listener, how, and where to."""

    required: bool
    """Whether nothing is served without it; else who does not log in gets the default cluster."""
    mechanisms: tuple[str, ...]
    """Names of SASL mechanisms."""

    def begin(self, mechanism: str) -> Mechanism:
        """Begin a login by one of `mechanisms`."""

    async def refused(self) -> None:
        """Somebody was refused: wait before they are told, so that guessing takes time."""
