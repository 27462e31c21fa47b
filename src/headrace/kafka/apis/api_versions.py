"""ApiVersions (18), versions 0-4.

Behavior
- Lists the APIs of the listener. With `oci.kafka=strict` these are fewer.
- The feature `transaction.version` is 2 (KIP-890), where transactions are offered: clients use the newer protocol.
- A newer version than 4 gets UNSUPPORTED_VERSION in the body format of version 0 (KIP-511).

Version notes
- 3: flexible. The server validates the client's software name and version.
- 4: a feature may be supported from version 0 on. Here it is 1, which older clients accept as well.
"""

import re

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ApiVersionsRequest, ApiVersionsResponse, EndTxnRequest
from headrace.security.access.required_acls import ANYBODY

_SOFTWARE_FROM = 3
_FEATURE, _LEVEL = "transaction.version", 2
"""Kafka's feature for the version of transactions, and its level. It cannot be changed."""
_LONGEST = 100
"""Characters of a name and a version of software that are kept for the list of clients."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _offered(context: RequestContext) -> list[ApiVersionsResponse.ApiVersion]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.oldest, max_version=api.newest)
        for key, api in sorted(context.channel.served.items())
    ]


def _response(context: RequestContext) -> ApiVersionsResponse:
    response = ApiVersionsResponse(api_keys=_offered(context))
    if EndTxnRequest.API_KEY in context.channel.served:
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=_FEATURE, min_version=1, max_version=_LEVEL)
        ]
        response.finalized_features_epoch = 0
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=_FEATURE, min_version_level=_LEVEL, max_version_level=_LEVEL)
        ]
    return response


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
    context.answer(_response(context))
