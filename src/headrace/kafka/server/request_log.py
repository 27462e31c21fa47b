"""Lines of the log, at debug, for each connection and each request: asked for only where somebody wants them."""

from typing import Any

import structlog

from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext

_log = structlog.get_logger("headrace.kafka.server")


def tell_opened(client: str, peer: Any, listener: str) -> None:
    """A client connected; `peer` is what the socket calls it."""
    port = peer[1] if isinstance(peer, tuple) else 0
    _log.debug("connection opened", client=client, port=port, listener=listener)


def tell_ended(client: str, reason: Exception | None) -> None:
    """A client hung up, or was lost."""
    _log.debug("connection ended by the client", client=client, reason=str(reason or "closed"))


def tell_answered(context: RequestContext, now: float) -> None:
    """A request was answered; `now` as `RequestContext.began`."""
    _log.debug(
        "request",
        api=APIS[context.api_key].name,
        version=context.version,
        request=context.correlation_id,
        client=context.channel.client_host,
        client_id=context.client_id,
        bytes=context.size or context.kept,
        ms=round((now - context.began) * 1000, 3),
    )
