"""Serve the registry's API as an ASGI application: route, read, authorize, run, respond.

Every failure is `{"error_code": ..., "message": ...}`, as in Confluent's registry.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.broker.admin.acl_authorizer import AclAuthorizer
from headrace.broker.runtime.budget import ReadBudget
from headrace.schema_registry.calls import Call
from headrace.schema_registry.registry import Registry
from headrace.schema_registry.routes import ROUTES, Handler, Text
from headrace.schemas.errors import RegistryError
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.topics.errors import LockLost, StorageFull, TopicError

BASE: Final = "/registry"
MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPTED: Final = (
    MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json", "application/octet-stream",
)  # fmt: skip
"""Types of bodies. A browser sends none of these to another site without asking."""
_BODIES_BYTES: Final = 32 << 20
"""Memory for bodies of requests in progress."""
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("headrace.schema_registry")

CatchingUp = Callable[[], Callable[[], Awaitable[bool]]]
"""Apply the changes of other brokers. Return whether something changed since the call."""


def is_registry(path: str) -> bool:
    """Return whether a path belongs to this API."""
    return path == BASE or path.startswith(f"{BASE}/")


class RegistryApp:
    """The API as an ASGI application, for paths accepted by `is_registry`."""

    def __init__(
        self,
        registry: Registry,
        access: AclAuthorizer,
        principal_of: Callable[[Scope], Principal | None],
        is_local: Callable[[str], bool],
        catching_up: CatchingUp | None = None,
    ) -> None:
        """Use a loaded registry.

        Args:
            registry: the schemas.
            access: the ACLs.
            principal_of: returns the authenticated principal of a request, or None.
            is_local: whether an address belongs to this machine, whose clients need no login.
            catching_up: applies changes of other brokers; None: there are none.
        """
        self._registry = registry
        self._access = access
        self._principal_of = principal_of
        self._is_local = is_local
        self._catching_up = catching_up
        self._bodies = ReadBudget(_BODIES_BYTES)
        self._routes = [(method, pattern.split("/")[1:], handler) for (method, pattern), handler in ROUTES.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers: list[tuple[bytes, bytes]] = []
        try:
            status, told = await self._answer(scope, receive)
        except _Gone:
            return
        except RegistryError as error:
            status, told = error.status, failure(error.code, str(error))
            if status == 401:
                headers.append((b"www-authenticate", b'Basic realm="Headrace", charset="UTF-8"'))
        except Exception:
            _log.exception("a request to the schema registry failed", method=scope["method"], path=scope["path"])
            status, told = 500, failure(50001, "Internal server error")
        body = told.text.encode() if isinstance(told, Text) else _encode(told)
        kind = b"text/plain; charset=utf-8" if isinstance(told, Text) else MEDIA_TYPE.encode()
        await _send(send, status, kind, body, headers)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        handler, path = self._route(scope["method"], scope["raw_path"])
        host = scope["client"][0] if scope.get("client") else ""
        principal = self._principal_of(scope)
        if principal is None and not (host and self._is_local(host)):
            raise RegistryError(401, 401, "Unauthorized: log in with a user's name and password")
        headers = {name.lower(): value for name, value in scope["headers"]}
        most = 2 * self._registry.most_text + (64 << 10)
        size = _announced(headers, most) if scope["method"] in {"POST", "PUT"} else 0
        if size > most:
            await _discard(receive)
            raise _too_long(most)
        async with self._bodies.held(size):
            body = await _read(receive, most) if size else b""
            made = (self._registry, self._access, principal or ANONYMOUS, host, path, scope["query_string"], body)
            return 200, await self._run(handler, made)

    async def _run(self, handler: Handler, made: tuple[Any, ...]) -> Any:
        """Run a handler. Retry once if another broker has just registered something unknown."""
        catch_up = None if self._catching_up is None else self._catching_up()
        try:
            try:
                return await handler(Call(*made))
            except RegistryError as error:
                if error.code not in _UNKNOWN or catch_up is None or not await catch_up():
                    raise
            return await handler(Call(*made))
        except LockLost as error:
            raise RegistryError(500, 50002, f"Operation timed out: {error}") from None
        except StorageFull as error:
            raise RegistryError(500, 50001, f"Redis is full: {error}") from None
        except TopicError as error:
            _log.error("the schema registry cannot use its storage", reason=str(error))
            raise RegistryError(500, 50001, "Error in the backend data store: Redis does not answer") from None

    def _route(self, method: str, raw_path: bytes) -> tuple[Handler, dict[str, str]]:
        text = raw_path.decode("latin-1").split("?", 1)[0].removeprefix(BASE)
        parts = [unquote(part, errors="replace") for part in text.rstrip("/").split("/")[1:]] or [""]
        others: list[str] = []
        for allowed, pattern, handler in self._routes:
            if len(pattern) != len(parts):
                continue
            path: dict[str, str] = {}
            for wanted, part in zip(pattern, parts, strict=True):
                if wanted.startswith("{"):
                    path[wanted[1:-1]] = part
                elif wanted != part:
                    break
            else:
                if allowed == method or (method == "HEAD" and allowed == "GET"):
                    return handler, path
                others.append(allowed)
        if others:
            raise RegistryError(405, 405, f"HTTP 405 Method Not Allowed: allowed are {', '.join(sorted(others))}")
        raise RegistryError(404, 404, "HTTP 404 Not Found: the schema registry does not have this path")


_UNKNOWN: Final = frozenset({40401, 40402, 40403, 42201})


class _Gone(Exception):
    """The client has disconnected."""


def failure(code: int, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error_code": code, "message": message}


def in_format(app: ASGIApp) -> ASGIApp:
    """Wrap an application that authenticates: its plain errors get the format of this API."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        started: list[Message] = []

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and _is_plain(message):
                started.append(message)
            elif started:
                status = started[0]["status"]
                kept = [one for one in started[0]["headers"] if one[0] in {b"www-authenticate", b"retry-after"}]
                text = message.get("body", b"").decode("utf-8", "replace").strip()
                await _send(send, status, MEDIA_TYPE.encode(), _encode(failure(status, text)), kept)
            else:
                await send(message)

        await app(scope, receive, changed)

    return application


def _is_plain(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/plain") for name, value in message["headers"])


def _announced(headers: dict[bytes, bytes], most: int) -> int:
    """Return the announced size of a body in bytes, or the maximum. Raises RegistryError for another type."""
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
    if kind not in _ACCEPTED:
        raise RegistryError(415, 415, f"HTTP 415 Unsupported Media Type: send {MEDIA_TYPE}")
    length = headers.get(b"content-length", b"")
    if not length.isdigit():
        return most
    return max(1, int(length[:20]))


def _too_long(most: int) -> RegistryError:
    return RegistryError(413, 42209, f"The request is longer than {most:,} bytes")


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, so that the client receives the response. The listener limits the time."""
    while (message := await receive()).get("more_body", False):
        pass
    if message["type"] != "http.request":
        raise _Gone


async def _read(receive: Receive, most: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _Gone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
        if size > most:
            if more:
                await _discard(receive)
            raise _too_long(most)
    return b"".join(chunks)


async def _send(send: Send, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
