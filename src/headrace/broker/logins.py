"""How a connection that has no request of its own for it says who it is for, and which virtual cluster it gets.

A port between APIs: one knows the protocol of logging in, another whose names and passwords they are.
"""

from typing import Protocol

import msgspec

from headrace.access.principal import Principal
from headrace.broker.broker import Broker


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


class Logins(Protocol):
    """Who may log in, and where to."""

    required: bool
    """Whether nothing is served without it; else who does not log in gets the default cluster."""

    def admit(self, username: str, password: str) -> Admitted:
        """Who this is, and the virtual cluster that these open. Raises LoginRefused."""
