"""A request as the message tables say, with the API that serves it."""

from collections.abc import Mapping
from typing import Any

from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import decode_request_header
from headrace.protocol.messages import ApiVersionsRequest

_FEW = 16
"""Elements that every request may have."""


class NotServed(Exception):
    """Why a request ends its connection: there is no answer that its client could read."""


def decode_request(
    frame: memoryview, channel: ResponseChannel, served: Mapping[int, Api]
) -> tuple[Api, RequestContext, Any]:
    """Read a request.

    Args:
        frame: its header and body.
        channel: the connection that it came by.
        served: the APIs that its listener serves, by key.

    Returns:
        Its API, its exchange, and the request; None for ApiVersions in a version that is to be refused in the form of
        version 0 (KIP-511).

    Raises:
        NotServed: it is malformed, or nothing that is served.
    """
    try:
        key, version, correlation_id, client_id, position = decode_request_header(frame, 0)
        api = served.get(key)
        if api is None:
            raise NotServed(f"API {APIS[key].name if key in APIS else f'key {key}'} is not served")
        context = RequestContext(channel, key, version, correlation_id, client_id, len(frame))
        if version < api.oldest or version > api.newest or version < api.refused_below:
            if key == ApiVersionsRequest.API_KEY:
                return api, context, None
            raise NotServed(f"{api.name} version {version} is not served, only {api.oldest} to {api.newest}")
        most = channel.broker.settings.headrace_request_max_elements
        meant = len(frame) // api.element_bytes + _FEW
        return api, context, api.request.decode(frame, position, version, min(most, meant))
    except DecodeError as error:
        raise NotServed(f"a malformed request: {error}") from None


def client_id_of(frame: memoryview, start: int) -> str:
    """The client id in the header of a request that begins at `start`; empty: it names none that could be read."""
    size = int.from_bytes(frame[start + 8 : start + 10], "big", signed=True)
    return bytes(frame[start + 10 : start + 10 + size]).decode("utf-8", "replace") if size > 0 else ""
