"""Base application of the HTTP listener, with responses during startup and shutdown."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.http.error_responses import refusal, send_own


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Server health for `/healthz`."""

    version: str
    storage: bool
    """Whether storage is readable; in a Redis Cluster, at least one primary."""
    detail: str = ""
    """Storage problem, even if storage responds, such as refused writes; empty: none."""
    refusal: str = ""
    """Why the server accepts no records; empty: it does."""


def create(
    health: Callable[[], Awaitable[Health]], mounts: tuple[BaseRoute, ...] = (), otherwise: ASGIApp | None = None
) -> Starlette:
    """Create the application.

    `health` must have a timeout. `mounts` are routes of other APIs, and `otherwise` handles unknown paths.
    """

    async def healthz(_: Request) -> Response:
        now = await health()
        answer = {
            "status": "ok" if now.storage else "failing",
            "version": now.version,
            "storage": "unreachable" if not now.storage else "partly usable" if now.detail else "reachable",
        }
        if now.detail:
            answer["detail"] = now.detail
        # A 503 would remove the server from a load balancer. All brokers share the storage, so no other one could
        # replace it.
        return Response(msgspec.json.encode(answer), 200 if now.storage else 503, media_type="application/json")

    application = Starlette(routes=[Route("/healthz", healthz), *mounts])
    if otherwise is not None:
        application.router.default = otherwise
    return application


RESET_SETTING = "headrace.testing.reset"
RESET_PATH = "/_headrace/state"


class ResetCall:
    """Deletes topics, groups, offsets, streams and pools for tests. Users and ACLs stay."""

    def __init__(self, reset: Callable[[], Awaitable[None]], is_loopback: Callable[[str], bool], *, on: bool) -> None:
        """Create the endpoint; `on` is `headrace.testing.reset`."""
        self._reset = reset
        self._is_loopback = is_loopback
        self._on = on

    @property
    def route(self) -> Route:
        """Route of the endpoint."""
        return Route(RESET_PATH, self.answer, methods=["DELETE"])

    async def answer(self, request: Request) -> Response:
        """Return 204, or 403 with the reason."""
        here = request.scope["server"][0]
        peer = request.client.host if request.client is not None else ""
        if not self._on:
            return _refused(f"Nothing is deleted: start the server with --set {RESET_SETTING}=true to have this call")
        if not (self._is_loopback(here) and self._is_loopback(peer)):
            return _refused(f"Nothing is deleted: this call is for loopback only, and came from {peer} to {here}")
        await self._reset()
        return Response(status_code=204)


def _refused(message: str) -> Response:
    return JSONResponse({"code": "NotAllowed", "message": message}, 403)


_GRACE_S = 2
"""Seconds for requests in flight during `close`."""
_UNKEPT = (b"cache-control", b"no-store")


class Phase(Enum):
    """Phase of the server."""

    STARTING = "starting"
    OPEN = "open"
    STOPPING = "stopping"


class StartupGate:
    """The outermost ASGI application."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._app: ASGIApp | None = None
        self._health: Callable[[], Awaitable[Health]] | None = None
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.ending: list[Callable[[], None]] = []
        """Called when shutdown begins, to end requests of unlimited duration."""

    def open(self, app: ASGIApp, health: Callable[[], Awaitable[Health]]) -> None:
        """Start serving."""
        self._app, self._health = app, health
        self._phase = Phase.OPEN

    async def close(self) -> None:
        """Stop serving, and wait briefly for requests in flight."""
        self._phase = Phase.STOPPING
        for end in self.ending:
            end()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._quiet.wait()
        except TimeoutError:
            pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path in {"/livez", "/readyz"}:
            if scope["method"] not in {"GET", "HEAD"}:
                told = refusal("MethodNotAllowed", "allowed: GET, HEAD")
                await send_own(send, 405, told, _UNKEPT, (b"allow", b"GET, HEAD"))
            elif path == "/livez":
                await send_own(send, 200, {"status": "alive"}, _UNKEPT)
            else:
                await send_own(send, *await self._readiness(scope.get("query_string", b"")), _UNKEPT)
            return
        if self._phase is not Phase.OPEN or self._app is None:
            text = f"The server is {self._phase.value}; try again later"
            await send_own(send, 503, refusal("ServiceUnavailable", text), _UNKEPT)
            return
        self._under_way += 1
        self._quiet.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    async def _readiness(self, query: bytes) -> tuple[int, dict[str, str]]:
        purposes = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == b"for"]
        if any(each != b"write" for each in purposes):
            return 400, refusal("InvalidParameter", "expected for=write, or no parameter `for`")
        if self._phase is not Phase.OPEN or self._health is None:
            return 503, {"status": self._phase.value}
        now = await self._health()
        if not now.storage:
            return 503, {"status": "failing", "detail": now.detail}
        if self._phase is not Phase.OPEN:  # shutdown began during the check
            return 503, {"status": self._phase.value}
        if purposes and now.refusal:
            return 503, {"status": "read-only", "detail": now.refusal}
        return 200, {"status": "ready"} | ({"detail": now.detail} if now.detail else {})
