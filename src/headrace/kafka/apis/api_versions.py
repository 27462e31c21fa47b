"""ApiVersions (18), versions 0-4.

Behavior
- Lists the APIs of the listener. With `oci.kafka=strict` these are fewer.
- A newer version than 4 gets UNSUPPORTED_VERSION in the body format of version 0 (KIP-511).

Version notes
- 3: flexible. The server validates the client's software name and version.
- 4: no change for a broker without finalized features.
"""

import re

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from headrace.security.access.required_acls import ANYBODY

_SOFTWARE_FROM = 3
_LONGEST = 100
"""Characters of a name and a version of software that are kept for the list of clients."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _offered(context: RequestContext) -> list[ApiVersionsResponse.ApiVersion]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.oldest, max_version=api.newest)
        for key, api in sorted(context.channel.served.items())
    ]


def refusal(context: RequestContext) -> ApiVersionsResponse:
    """Return the response to an unsupported version; encode it as version 0."""
    return ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=_offered(context))


@register(ApiVersionsRequest, 0, 4, needs=ANYBODY, urgent=True)
def handle(request: ApiVersionsRequest, context: RequestContext) -> None:
    """List the supported APIs and versions."""
    if context.version >= _SOFTWARE_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        context.answer(ApiVersionsResponse(error_code=Code.INVALID_REQUEST))
        return
    if context.version >= _SOFTWARE_FROM:
        name, version = request.client_software_name, request.client_software_version
        context.channel.software = f"{name[:_LONGEST]} {version[:_LONGEST]}"
    context.answer(ApiVersionsResponse(api_keys=_offered(context)))
