"""`DELETE /_headrace/state`: everything that tests have made goes, as cloud emulators have it."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SETTING = "headrace.testing.reset"
PATH = "/_headrace/state"


class ResetCall:
    """Topics, groups, positions, streams and pools go; users and rules stay."""

    def __init__(self, reset: Callable[[], Awaitable[None]], is_loopback: Callable[[str], bool], *, on: bool) -> None:
        """Prepare.

        Args:
            reset: does it; nothing is left when it returns.
            is_loopback: whether an address is this machine's own.
            on: `headrace.testing.reset`.
        """
        self._reset = reset
        self._is_loopback = is_loopback
        self._on = on

    @property
    def route(self) -> Route:
        """Where it is found."""
        return Route(PATH, self.answer, methods=["DELETE"])

    async def answer(self, request: Request) -> Response:
        """204, or 403 with the reason."""
        here = request.scope["server"][0]
        peer = request.client.host if request.client is not None else ""
        if not self._on:
            return _refused(f"Nothing is deleted: start the server with --set {SETTING}=true to have this call")
        if not (self._is_loopback(here) and self._is_loopback(peer)):
            return _refused(f"Nothing is deleted: this call is for loopback only, and came from {peer} to {here}")
        await self._reset()
        return Response(status_code=204)


def _refused(message: str) -> Response:
    return JSONResponse({"code": "NotAllowed", "message": message}, 403)
