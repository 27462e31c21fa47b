"""The HTTP listener's own application: `/healthz`. Pages and other APIs are mounted beside it."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is, as `/healthz` tells it."""

    version: str
    storage: bool
    """Whether the storage can be read just now; of a Redis Cluster, a primary of it."""
    detail: str = ""
    """What is wrong, also where it answers: with some of a Redis Cluster, or that it refuses writes; empty: nothing."""


def create(
    health: Callable[[], Awaitable[Health]], mounts: tuple[BaseRoute, ...] = (), otherwise: ASGIApp | None = None
) -> Starlette:
    """The application.

    Args:
        health: asks the server how it is; called once per request, must bound its own waiting.
        mounts: routes of other HTTP APIs.
        otherwise: answers HTTP requests for paths that are nobody's; None: in plain text.
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
        # 503 takes a server out of a load balancer, which is all that most of them look at. One that can serve a part
        # stays, be it some shards, or what is stored while Redis takes no writes: all brokers are without the rest, and
        # that part would be served by none.
        return Response(msgspec.json.encode(answer), 200 if now.storage else 503, media_type="application/json")

    application = Starlette(routes=[Route("/healthz", healthz), *mounts])
    if otherwise is not None:
        application.router.default = otherwise
    return application
