"""What answers HTTP while the server starts and stops: `/livez` and `/readyz`, and 503 for everything else.

`/livez` is 200 as long as the event loop turns. `/readyz` is 200 while requests can be served: not before the server is
open, not without its storage (of a Redis Cluster: not when none of it answers), not once it was asked to end. Probes of
a container want both (Kubernetes, "Configure Liveness, Readiness and Startup Probes").
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.http.app import Health
from headrace.http.error_responses import refusal, send_own

_GRACE_S = 2
"""How long `close` waits for requests under way."""
_UNKEPT = (b"cache-control", b"no-store")


class Phase(Enum):
    """How far the server is."""

    STARTING = "starting"
    OPEN = "open"
    STOPPING = "stopping"


class StartupGate:
    """An ASGI application before all others."""

    def __init__(self) -> None:
        """Starting."""
        self._phase = Phase.STARTING
        self._app: ASGIApp | None = None
        self._health: Callable[[], Awaitable[Health]] | None = None
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.ending: list[Callable[[], None]] = []
        """Called when the end begins: what would be under way for as long as it may goes then."""

    def open(self, app: ASGIApp, health: Callable[[], Awaitable[Health]]) -> None:
        """Serve from now on.

        Args:
            app: answers the requests.
            health: asks the server how it is; must bound its own waiting.
        """
        self._app, self._health = app, health
        self._phase = Phase.OPEN

    async def close(self) -> None:
        """Serve no more requests, and wait a moment for those under way."""
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
                await send_own(send, *await self._readiness(), _UNKEPT)
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

    async def _readiness(self) -> tuple[int, dict[str, str]]:
        if self._phase is not Phase.OPEN or self._health is None:
            return 503, {"status": self._phase.value}
        now = await self._health()
        if not now.storage:
            return 503, {"status": "failing", "detail": now.detail}
        if self._phase is not Phase.OPEN:  # by now: it was asked to end while it asked its storage
            return 503, {"status": self._phase.value}
        return 200, {"status": "ready"} | ({"detail": now.detail} if now.detail else {})
