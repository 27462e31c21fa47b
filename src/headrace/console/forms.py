"""Forms that change something: whether one was sent by a page of this server, and what is in it.

A page and its form bring the same value twice, in a cookie and, with a code that only this server can make of it, in a
field: another site can make a browser send the cookie, but knows no such code.
"""

import hashlib
import hmac
import secrets
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

MOST_FIELDS = 50
_MOST_BYTES = 64 << 10
_COOKIE = "headrace-csrf"


class InvalidFormToken(Exception):
    """It is no form of this server's pages; the message says why."""


class Forms:
    """Those of one server, since its start."""

    def __init__(self) -> None:
        """Forms that were made before are not good any more."""
        self._secret = secrets.token_bytes(32)

    def token(self, value: str) -> str:
        """The code that a form brings beside a cookie's value."""
        return hmac.new(self._secret, value.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    @staticmethod
    def cookie(request: Request) -> str:
        """The value that the browser has, or a new one."""
        return request.cookies.get(_COOKIE) or secrets.token_urlsafe(24)

    @staticmethod
    def keep(response: Response, value: str, request: Request) -> None:
        """Have the browser bring the value with its forms."""
        secure = request.url.scheme == "https"
        response.set_cookie(_COOKIE, value, samesite="strict", httponly=True, secure=secure, path="/")

    async def read(self, request: Request) -> dict[str, str]:
        """The fields of a form of ours; raises InvalidFormToken."""
        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise InvalidFormToken(f"A form has at most {_MOST_BYTES >> 10} KiB.")
        except ClientDisconnect:
            # Nobody reads the answer, and the log has no line for each who goes away.
            raise InvalidFormToken("The form did not come whole.") from None
        try:
            fields = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise InvalidFormToken("This is no form.") from None
        value = request.cookies.get(_COOKIE, "")
        genuine = hmac.compare_digest(fields.pop("token", "").encode(), self.token(value).encode())
        if not value or not genuine or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise InvalidFormToken(
                "This form was not made by this page, or the server was started again: open it anew."
            )
        return fields
