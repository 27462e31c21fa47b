"""Authenticate viewers of pages and metrics. Local clients need no login.

Remote clients use HTTP Basic (RFC 7617), a token (RFC 6750), a session of the login page or a client certificate. The
users are those of the Kafka listeners. `security.access.listeners` decides when remote HTTP needs TLS.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.broker.admin.audit import Audit
from headrace.broker.admin.users import TooManyLogins, Users
from headrace.broker.logins import Bearer, LoginRefused
from headrace.broker.runtime.clock import Clock, pause
from headrace.console import text
from headrace.console.registry import LASTS, PRINCIPAL, SESSION
from headrace.console.sessions import Sessions
from headrace.http.connection import CERTIFIED
from headrace.security.access.principal import ANONYMOUS, Principal

AGAIN_MS = 600_000
"""A client that was idle for this long is logged again."""
_MOST = 1_024


class LoginAudit:
    """Logs each login once rather than for each request."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._seen_ms: dict[tuple[str, str, str], int] = {}
        """The oldest first."""

    def admitted(self, principal: str, host: str, by: str) -> None:
        """Record a successful login."""
        known = (principal, host, by)
        now_ms = self._clock.ticks_ms()
        before_ms = self._seen_ms.pop(known, None)
        self._seen_ms[known] = now_ms
        if len(self._seen_ms) > _MOST:
            del self._seen_ms[next(iter(self._seen_ms))]
        if before_ms is None or now_ms - before_ms >= AGAIN_MS:
            self._audit.admitted(principal, host, by)


_CHALLENGE = {"www-authenticate": 'Basic realm="Headrace", charset="UTF-8"', "cache-control": "no-store"}
_NO_TOKEN = {"www-authenticate": 'Bearer realm="Headrace", error="invalid_token"', "cache-control": "no-store"}
_LONGEST = 4_096
"""Maximum characters of a Basic `Authorization` header."""


Tokens = Callable[[str], Awaitable[Bearer]]
"""Returns the principal of a token. Raises LoginRefused."""


class Visitors:
    """Authenticates requests."""

    def __init__(
        self,
        users: Users,
        tokens: Tokens | None,
        sessions: Sessions,
        audit: Audit,
        clock: Clock,
        delay_ms: int,
        is_loopback: Callable[[str], bool],
        bootstrap: str,
    ) -> None:
        """Create it.

        `tokens`: checks tokens; None: tokens are rejected. `delay_ms`: the delay after a failed login.
        `bootstrap`: address of the Kafka listener for commands.
        """
        self._users = users
        self._tokens = tokens
        self._sessions = sessions
        self._audit = audit
        self._welcomes = LoginAudit(audit, clock)
        self._clock = clock
        self._delay_ms = delay_ms
        self._is_loopback = is_loopback
        self.bootstrap = bootstrap

    @property
    def take_passwords(self) -> bool:
        """Whether password logins are possible."""
        return self._users.exist

    def refusal(self, request: Request) -> Response | None:
        """Return the response for an unauthorized client."""
        if PRINCIPAL in request.scope or (request.client is not None and self._is_loopback(request.client.host)):
            return None
        if not self.take_passwords and self._tokens is None:
            reason = "Without users this answers requests from this machine only. Create one there:"
            return PlainTextResponse(f"{reason} {text.creating_user(self.bootstrap)}\n", 403)
        if (to_login := self.to_login(request)) is not None:
            return to_login
        if "sec-fetch-mode" in request.headers:
            # A browser must not open its own password dialog for scripts.
            return PlainTextResponse("Log in first: /login\n", 403)
        return PlainTextResponse("Log in with a user's name and password.\n", 401, _CHALLENGE)

    def to_login(self, request: Request) -> Response | None:
        """Redirect the browser of an unauthenticated user to the login page."""
        if PRINCIPAL in request.scope or request.method != "GET" or not wants_page(request) or not self.take_passwords:
            return None
        raw = request.scope["raw_path"] + (b"?" + request.scope["query_string"]).rstrip(b"?")
        there = urlencode({"next": raw.decode("latin-1")})
        return RedirectResponse(f"/login?{there}", 303, {"cache-control": "no-store"})

    def known(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application: set each request's principal, and reject wrong logins."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                refused = await self._recognize(scope)
                if refused is not None:
                    await refused(scope, receive, send)
                    return
            await app(scope, receive, send)

        return application

    async def _recognize(self, scope: Scope) -> Response | None:
        given = _header(scope, b"authorization")
        scheme, _, credentials = given.partition(b" ")
        login = {b"basic": self._by_password, b"bearer": self._by_token}.get(scheme.lower())
        if login is not None:
            return await login(scope, credentials)
        secret = cookie_parser(_header(scope, b"cookie").decode("latin-1")).get(_cookie(scope), "")
        session = self._sessions.find(secret) if secret else None
        certified = scope.get("extensions", {}).get(CERTIFIED)
        if session is not None:
            scope[PRINCIPAL], scope[SESSION] = session.principal, session
            scope[LASTS] = partial(self._sessions.lasts, session)
        elif certified is not None:
            scope[PRINCIPAL] = certified["principal"]
            self._welcome(scope, "HTTP certificate")
        return None

    # Sessions

    async def check(self, name: str, password: str, scope: Scope) -> bool:
        """Check a user's password, with a delay after a wrong one. Raises TooManyLogins."""
        if await self._users.check(name, password, _host(scope)):
            return True
        await self._refused(scope, f"User:{name}", "a wrong name or password by HTTP")
        return False

    def begin(self, name: str, request: Request, response: Response) -> None:
        """Begin a session after a login by the page."""
        host = request.client.host if request.client is not None else ""
        self._audit.admitted(f"User:{name}", host, "login page")
        self._sessions.end(request.cookies.get(_cookie(request.scope), ""))
        response.set_cookie(
            _cookie(request.scope),
            self._sessions.begin(name),
            max_age=self._sessions.lifetime_ms // 1000,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def end(self, request: Request, response: Response) -> None:
        """End a request's session and remove its cookie."""
        name = _cookie(request.scope)
        self._sessions.end(request.cookies.get(name, ""))
        response.delete_cookie(name, path="/", httponly=True, samesite="strict")

    # Logins of one request

    async def _by_password(self, scope: Scope, token: bytes) -> Response | None:
        name, colon, password = _decoded(token).partition(":")
        kept = self._users.find(name)  # before the check, during which it may change
        try:
            if await self.check(name, password if colon else "", scope):
                scope[PRINCIPAL], scope[LASTS] = Principal(name), partial(self._sessions.same, name, kept)
                self._welcome(scope, "HTTP Basic")
                return None
        except TooManyLogins:
            return PlainTextResponse("Too many logins at the same time. Try again.\n", 503, {"retry-after": "1"})
        return PlainTextResponse("Wrong user name or password.\n", 401, _CHALLENGE)

    async def _by_token(self, scope: Scope, token: bytes) -> Response | None:
        if self._tokens is None:
            return None
        try:
            bearer = await self._tokens(token.strip().decode("latin-1"))
        except LoginRefused as refused:
            await self._refused(scope, str(ANONYMOUS), f"a token by HTTP: {refused.reason}")
            return PlainTextResponse("The token is not valid.\n", 401, _NO_TOKEN)
        until_ms = self._clock.ticks_ms() + bearer.lifetime_ms
        scope[PRINCIPAL], scope[LASTS] = Principal(bearer.name), lambda: self._clock.ticks_ms() < until_ms
        self._welcome(scope, "HTTP Bearer")
        return None

    def _welcome(self, scope: Scope, by: str) -> None:
        self._welcomes.admitted(str(scope[PRINCIPAL]), _host(scope), by)

    async def _refused(self, scope: Scope, principal: str, what: str) -> None:
        self._audit.login_refused(principal, _host(scope), "HTTP", what)
        await pause(self._clock, self._delay_ms)


def wants_page(request: Request) -> bool:
    """Return whether a browser requests a page. Programs accept JSON or anything."""
    return request.method in {"GET", "HEAD"} and "text/html" in request.headers.get("accept", "")


def _host(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def _decoded(token: bytes) -> str:
    try:
        return base64.b64decode(token[:_LONGEST].strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _header(scope: Scope, wanted: bytes) -> bytes:
    found: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return found


def _cookie(scope: Scope) -> str:
    """Return the cookie's name, with the port because browsers share cookies between ports of a host."""
    return f"headrace-session-{(scope.get('server') or ('', 0))[1]}"
