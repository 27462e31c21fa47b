"""Who sees pages and metrics: whoever is on this machine, and from anywhere who logs in.

That is by HTTP Basic (RFC 7617) or with a token (RFC 6750); users and tokens are those of Kafka's listeners. Off this
machine HTTP is open only with TLS (see `access.exposure`), so neither travels in the clear unless somebody has said
that it may.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.access.principal import ANONYMOUS, Principal
from headrace.broker.audit import Audit
from headrace.broker.clock import Clock, pause
from headrace.broker.logins import Bearer, LoginRefused
from headrace.broker.users import TooManyLogins, Users
from headrace.console.registry import PRINCIPAL

_CHALLENGE = {"www-authenticate": 'Basic realm="Headrace", charset="UTF-8"', "cache-control": "no-store"}
_NO_TOKEN = {"www-authenticate": 'Bearer realm="Headrace", error="invalid_token"', "cache-control": "no-store"}
_LONGEST = 4_096
"""Characters of an `Authorization` header by Basic."""


Tokens = Callable[[str], Awaitable[Bearer]]
"""Whose a token is; raises LoginRefused."""


class Visitors:
    """Tells for each request who sent it, and whether they see anything."""

    def __init__(
        self,
        users: Users,
        tokens: Tokens | None,
        audit: Audit,
        clock: Clock,
        delay_ms: int,
        is_loopback: Callable[[str], bool],
    ) -> None:
        """Prepare.

        Args:
            users: who has a password.
            tokens: checks tokens; None: none are taken.
            audit: is told of refused logins.
            clock: for the wait after one.
            delay_ms: how long that is (`connection.failed.authentication.delay.ms`).
            is_loopback: whether an address is this machine's own.
        """
        self._users = users
        self._tokens = tokens
        self._audit = audit
        self._clock = clock
        self._delay_ms = delay_ms
        self._is_loopback = is_loopback

    def refusal(self, request: Request) -> Response | None:
        """The answer to whoever sees nothing."""
        if PRINCIPAL in request.scope or (request.client is not None and self._is_loopback(request.client.host)):
            return None
        if self._users.names or self._tokens is not None:
            return PlainTextResponse("Log in with a user's name and password.\n", 401, _CHALLENGE)
        text = "Without users this answers requests from this machine only: headrace users create NAME.\n"
        return PlainTextResponse(text, 403)

    def known(self, app: ASGIApp) -> ASGIApp:
        """The application, told who sends each request where that is known; a wrong login gets no further."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                given = next((text for name, text in scope["headers"] if name == b"authorization"), b"")
                scheme, _, credentials = given.partition(b" ")
                login = {b"basic": self._by_password, b"bearer": self._by_token}.get(scheme.lower())
                refused = None if login is None else await login(scope, credentials)
                if refused is not None:
                    await refused(scope, receive, send)
                    return
            await app(scope, receive, send)

        return application

    async def _by_password(self, scope: Scope, token: bytes) -> Response | None:
        """Put into the scope who asks, or give the answer to somebody else."""
        name, colon, password = _decoded(token).partition(":")
        try:
            if colon and await self._users.check(name, password):
                scope[PRINCIPAL] = Principal(name)
                return None
        except TooManyLogins:
            return PlainTextResponse("Too many passwords wait to be checked: try again.\n", 503, {"retry-after": "1"})
        await self._refused(scope, f"User:{name}", "a wrong name or password by HTTP Basic")
        return PlainTextResponse("There is no such user, or the password is another.\n", 401, _CHALLENGE)

    async def _by_token(self, scope: Scope, token: bytes) -> Response | None:
        """The same for a token."""
        if self._tokens is None:
            return None
        try:
            bearer = await self._tokens(token.strip().decode("latin-1"))
        except LoginRefused as refused:
            await self._refused(scope, str(ANONYMOUS), f"a token by HTTP: {refused.reason}")
            return PlainTextResponse("The token is not good here.\n", 401, _NO_TOKEN)
        scope[PRINCIPAL] = Principal(bearer.name)
        return None

    async def _refused(self, scope: Scope, principal: str, what: str) -> None:
        """Tell of it, and have them wait who guess."""
        host = scope["client"][0] if scope["client"] else ""
        self._audit.refused(principal, host, "HTTP login", what)
        await pause(self._clock, self._delay_ms)


def _decoded(token: bytes) -> str:
    """What Basic carries; empty where it is no such thing."""
    try:
        return base64.b64decode(token[:_LONGEST].strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return ""
