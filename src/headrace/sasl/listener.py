"""Logins of one listener."""

import importlib
from collections.abc import Awaitable, Callable

import msgspec

from headrace.broker.admin.users import TooManyLogins, Users
from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted, Answer, Bearer, LoginRefused, Mechanism
from headrace.broker.runtime.clock import Clock, pause
from headrace.sasl.oauthbearer import OAuthBearer
from headrace.security.access import credentials
from headrace.security.access.principal import Principal

# SASL PLAIN (RFC 4616): name and password in plain text.
_MOST_BYTES = 64 << 10
_MALFORMED = "Authentication failed: a PLAIN token is <nothing or the user name> NUL <user name> NUL <password>"


class Plain:
    """A login by PLAIN."""

    def __init__(self, admit: Callable[[str, str], Awaitable[Admitted]]) -> None:
        self._admit = admit

    async def answer(self, token: bytes) -> Answer:
        """See `Mechanism`."""
        return Answer(admitted=await self._admit(*_parts(token)))


def _parts(token: bytes) -> tuple[str, str]:
    if len(token) > _MOST_BYTES:
        raise LoginRefused(_MALFORMED, f"the token has {len(token)} bytes")
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginRefused(_MALFORMED, "the token is not UTF-8") from None
    if len(parts) != 3:
        raise LoginRefused(_MALFORMED, f"the token has {len(parts)} parts, not 3")
    identity, username, password = parts
    if not username or not password:
        raise LoginRefused(
            f"Authentication failed: {'password' if username else 'username'} not specified", "half a token"
        )
    if identity not in {"", username}:
        raise LoginRefused(
            "Authentication failed: the authorization id is not the user name",
            "it requests another authorization identity",
        )
    return username, password


_WRONG = "Authentication failed: Invalid username or password"
_BUSY = "Authentication failed: the server has too many logins to check; try again later"

Pools = Callable[[str, str], Admitted]
"""Returns the login for an OCI user name and password. Raises LoginRefused."""

Check = Callable[[str], Awaitable[Bearer]]
"""Returns the owner of a token. Raises LoginRefused."""


class ListenerLogins:
    """Logins of one listener."""

    def __init__(
        self,
        broker: Broker,
        users: Users | None,
        pools: Pools | None,
        tokens: Check | None,
        is_pool_name: Callable[[str], bool],
        *,
        required: bool,
        mechanisms: tuple[str, ...],
        clock: Clock,
        delay_ms: int,
        lifetime_ms: int,
    ) -> None:
        """Create the logins.

        Args:
            broker: virtual cluster of users.
            users: users with passwords.
            pools: logs OCI users in to the virtual clusters of stream pools.
            tokens: checks tokens of OAUTHBEARER.
            is_pool_name: whether a name is an OCI user's.
            required: whether a login is required.
            mechanisms: names of SASL mechanisms.
            clock: clock of the delay.
            delay_ms: `connection.failed.authentication.delay.ms`.
            lifetime_ms: `connections.max.reauth.ms`; 0: as long as the connection.
        """
        self.required = required
        self.mechanisms = mechanisms
        self._broker = broker
        self._users = users
        self._pools = pools
        self._tokens = tokens
        self._is_pool_name = is_pool_name
        self._clock = clock
        self._delay_ms = delay_ms
        self._lifetime_ms = lifetime_ms
        if any(name.startswith("SCRAM-") for name in mechanisms):
            # Import it before clients wait for a login, and only with users.
            importlib.import_module("headrace.sasl.scram")

    def begin(self, mechanism: str) -> Mechanism:
        """See `Logins`."""
        if mechanism == "PLAIN" or self._users is None:
            return Plain(self._by_password)
        if mechanism == "OAUTHBEARER":
            assert self._tokens is not None
            return OAuthBearer(self._tokens, self._by_token)
        from headrace.sasl.scram import Scram  # noqa: PLC0415  # loaded at the start

        return Scram(credentials.Mechanism(mechanism), self._users, self._admitted)

    async def refused(self) -> None:
        """See `Logins`."""
        await pause(self._clock, self._delay_ms)

    def _admitted(self, name: str) -> Admitted:
        return Admitted(Principal(name), self._broker, self._lifetime_ms)

    def _by_token(self, bearer: Bearer) -> Admitted:
        """Log in, at most for the lifetime of the token (KIP-368)."""
        lifetime_ms = min(bearer.lifetime_ms, self._lifetime_ms or bearer.lifetime_ms)
        return Admitted(Principal(bearer.name), self._broker, lifetime_ms)

    async def _by_password(self, name: str, password: str) -> Admitted:
        if self._pools is not None and (self._users is None or self._is_pool_name(name)):
            return msgspec.structs.replace(self._pools(name, password), lifetime_ms=self._lifetime_ms)
        if self._users is None:
            raise LoginRefused(_WRONG, "no user has a password here")
        try:
            fits = await self._users.check(name, password)
        except TooManyLogins:
            raise LoginRefused(_BUSY, "too many passwords wait to be checked") from None
        if not fits:
            raise LoginRefused(_WRONG, f"user {name[:300]!r} has no such password")
        return self._admitted(name)
