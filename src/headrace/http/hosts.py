"""Check of `Host` and `Origin` against DNS rebinding.

A web page in a local browser can send requests to loopback. With DNS rebinding, its name resolves to this server, and
is in `Host`. Requests from pages of other servers have their name in `Origin` (RFC 6454). Pages of other servers on
this machine are detected by `Sec-Fetch-Site` (Fetch Metadata, W3C).
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.http.error_responses import refusal, send_own

ANY = "*"
SETTING = "headrace.http.hosts"
_LONGEST = 300
"""Maximum characters of an authority: 253 for the name (RFC 1035), 5 for the port."""
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@\[\]]+))(?::[0-9]{0,5})?")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods without changes (RFC 9110, 9.2.1)."""
_ELSEWHERE = frozenset({b"same-site", b"cross-site"})
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


class Refused(msgspec.Struct, frozen=True):
    """Why a request is refused."""

    status: int
    code: str
    """A code of OCI's API."""
    message: str


class Hosts:
    """The valid names of this server."""

    def __init__(self, own: Iterable[str] = (), allowed: Iterable[str] = ()) -> None:
        """Accept loopback's names, and these; `allowed` is `headrace.http.hosts`, with `*` for all names."""
        names = {each.strip() for each in (*own, *allowed)}
        self._any = ANY in names
        self._allowed = frozenset(_plain(each) for each in allowed)
        self._own = frozenset({"localhost", *(_plain(each) for each in names if each)})
        self._is_own = lru_cache(maxsize=256)(self._look_up)

    def refusal(
        self, headers: Sequence[tuple[bytes, bytes]], http_version: str, local: str, method: str
    ) -> Refused | None:
        """Return why a request is refused, or None.

        `headers` have names in lower case. HTTP 1.0 needs no `Host`. `local` is the local address of the connection.
        """
        host: bytes | None = None
        origin: bytes | None = None
        elsewhere = False
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    return _malformed("There is more than one Host header")
                host = value
            elif name == b"origin":
                if origin is not None:
                    return _malformed("There is more than one Origin header")
                origin = value
            elif name == b"sec-fetch-site":
                elsewhere = value in _ELSEWHERE
        if host is None:
            if http_version != "1.0":
                return _malformed("There is no Host header")
        elif not self._knows(host, local):
            return _refused("Host", host, f"127.0.0.1 or localhost, or allow it with --set {SETTING}=NAME")
        foreign = origin is not None and not self._any and not self._is_own_page(origin, local)
        if foreign or (elsewhere and method not in _SAFE and not self._is_allowed_page(origin or b"")):
            return _refused("Origin", origin or b"", f"this server's own pages, or allow it with --set {SETTING}=NAME")
        return None

    def _is_allowed_page(self, origin: bytes) -> bool:
        return self._any or _name_in(_page_of(origin)) in self._allowed

    def _is_own_page(self, origin: bytes, local: str) -> bool:
        return self._knows(_page_of(origin), local)

    def _knows(self, authority: bytes, local: str) -> bool:
        return self._any or (len(authority) <= _LONGEST and self._is_own(authority, local))

    def _look_up(self, authority: bytes, local: str) -> bool:
        name = _name_in(authority)
        return name in self._own or name == _plain(local) or _is_loopback(name)


class HostCheck:
    """An ASGI application that refuses other names."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass one request."""
        refused = self._hosts.refusal(scope["headers"], scope["http_version"], scope["server"][0], scope["method"])
        if refused is None:
            await self._app(scope, receive, send)
            return
        told = refusal(refused.code, refused.message)
        await send_own(send, refused.status, told, (b"connection", b"close"))


def _page_of(origin: bytes) -> bytes:
    found = _ORIGIN.fullmatch(origin[: _LONGEST + 8].decode("latin-1"))
    return found[1].encode("latin-1") if found is not None else b""


def _name_in(authority: bytes) -> str:
    found = _AUTHORITY.fullmatch(authority.decode("latin-1").strip())
    return _plain(found[1] or found[2]) if found is not None else ""


def _plain(name: str) -> str:
    text = name.strip("[]").partition("%")[0].lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def _is_loopback(plain: str) -> bool:
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def _malformed(message: str) -> Refused:
    return Refused(400, "CannotParseRequest", message)


def _refused(header: str, found: bytes, remedy: str) -> Refused:
    shown = ascii(found[:_LONGEST].decode("latin-1"))
    return Refused(403, "NotAllowed", f"{header} {shown} is no name of this server: use {remedy}")
