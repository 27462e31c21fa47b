"""ApiVersions (18), versions 0-4.

Behavior
- Lists the APIs of the listener. With `oci.kafka=strict` these are fewer.
- The feature `transaction.version` is 2 (KIP-890), where transactions are offered: clients use the newer protocol.
- The features `group.version` (KIP-848) and `share.version` (KIP-932) are 1, where their APIs are offered.
- A newer version than 4 gets UNSUPPORTED_VERSION in the body format of version 0 (KIP-511).

Version notes
- 3: flexible. The server validates the client's software name and version.
- 4: a feature may be supported from level 0 on. Older clients do not accept this, so older versions leave it out.
"""

import re
from typing import NamedTuple

from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupHeartbeatRequest,
    EndTxnRequest,
    ShareGroupHeartbeatRequest,
)
from headrace.security.access.required_acls import ANYBODY

_SOFTWARE_FROM = 3
_ZERO_FROM = 4


class Feature(NamedTuple):
    """A feature of Kafka, at a level that cannot be changed."""

    name: str
    lowest: int
    level: int
    api_key: int
    """It is offered where this API is."""


FEATURES = (
    Feature("group.version", 0, 1, ConsumerGroupHeartbeatRequest.API_KEY),
    Feature("share.version", 0, 1, ShareGroupHeartbeatRequest.API_KEY),
    Feature("transaction.version", 1, 2, EndTxnRequest.API_KEY),
)
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
    features = [feature for feature in FEATURES if feature.api_key in context.channel.served]
    if not features:
        return response
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name=each.name, min_version=each.lowest, max_version=each.level)
        for each in features
        if each.lowest > 0 or context.version >= _ZERO_FROM
    ]
    response.finalized_features_epoch = 0
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(
            name=each.name, min_version_level=each.level, max_version_level=each.level
        )
        for each in features
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
