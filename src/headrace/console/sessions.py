"""Sessions of the console and the verification of its forms.

Sessions are in memory, limited in number and time, and end when the password changes.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace.broker.admin.users import Users
from headrace.broker.runtime.clock import Clock
from headrace.security.access.credentials import Credential, Mechanism
from headrace.security.access.principal import Principal

MOST = 1_000
MOST_OF_ONE = 20
"""Maximum sessions of one user, so that a program that logs in repeatedly leaves room for others."""


class Session(msgspec.Struct, eq=False):
    """A login by the form."""

    principal: Principal
    until_ms: int
    """Its end, in ticks."""
    kept: Mapping[Mechanism, Credential]
    """The credentials that the password was checked against."""


class Sessions:
    """All sessions of one server."""

    def __init__(self, users: Users, clock: Clock, lifetime_ms: int) -> None:
        """`lifetime_ms`: maximum age of a session, used or not."""
        self.lifetime_ms = lifetime_ms
        self._users = users
        self._clock = clock
        # By digest of the secret.
        self._sessions: dict[bytes, Session] = {}

    def begin(self, name: str) -> str:
        """Begin a session and return its secret for the browser."""
        for key, session in tuple(self._sessions.items()):
            if not self.lasts(session):
                del self._sessions[key]
        own = [key for key, session in self._sessions.items() if session.principal.name == name]
        for key in own[: len(own) - MOST_OF_ONE + 1] if len(own) >= MOST_OF_ONE else ():
            del self._sessions[key]
        if len(self._sessions) >= MOST:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(32)
        until_ms = self._clock.ticks_ms() + self.lifetime_ms
        self._sessions[_key(secret)] = Session(Principal(name), until_ms, self._users.find(name))
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of a secret, or None."""
        session = self._sessions.get(_key(secret))
        return session if session is not None and self.lasts(session) else None

    def lasts(self, session: Session) -> bool:
        """Return whether it is valid: not expired, not logged out, and the password is unchanged."""
        if session.until_ms <= self._clock.ticks_ms():
            return False
        return self.same(session.principal.name, session.kept)

    def same(self, name: str, kept: Mapping[Mechanism, Credential]) -> bool:
        """Return whether the user's password is unchanged."""
        return bool(kept) and self._users.find(name) == kept

    def end(self, secret: str) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(_key(secret), None)
        if session is not None:
            session.until_ms = 0


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


MOST_FIELDS = 50
_MOST_BYTES = 64 << 10
_COOKIE = "headrace-csrf"


class InvalidFormToken(Exception):
    """Not a form of this server. The message has the reason."""


class Forms:
    """Form tokens of one server since its start."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def token(self, value: str) -> str:
        """Return the form token of a cookie's value."""
        return hmac.new(self._secret, value.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    @staticmethod
    def cookie(request: Request) -> str:
        """Return the browser's cookie value, or a new one."""
        return request.cookies.get(_COOKIE) or secrets.token_urlsafe(24)

    @staticmethod
    def keep(response: Response, value: str, request: Request) -> None:
        """Set the cookie."""
        secure = request.url.scheme == "https"
        response.set_cookie(_COOKIE, value, samesite="strict", httponly=True, secure=secure, path="/")

    async def read(self, request: Request) -> dict[str, str]:
        """Return the fields of a verified form. Raises InvalidFormToken."""
        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise InvalidFormToken(f"A form has at most {_MOST_BYTES >> 10} KiB.")
        except ClientDisconnect:
            # Not worth a log line.
            raise InvalidFormToken("The form is incomplete.") from None
        try:
            fields = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise InvalidFormToken("The form cannot be parsed.") from None
        value = request.cookies.get(_COOKIE, "")
        genuine = hmac.compare_digest(fields.pop("token", "").encode(), self.token(value).encode())
        if not value or not genuine or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise InvalidFormToken("This form is not from this server, or the server was restarted. Reload the page.")
        return fields
