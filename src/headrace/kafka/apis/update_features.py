"""UpdateFeatures (57), versions 0-2 (KIP-584).

Behavior
- There are no features. Every update is INVALID_UPDATE_VERSION for the whole request, with Kafka's message, even with
  `validate_only`.
- An empty list is accepted.

Version notes
- 1: upgrade types and `validate_only`. 2: no results by feature.
"""

from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import cut

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3
_MOST_NAME = 249
"""Maximum characters of a feature's name in the response."""


@register(UpdateFeaturesRequest, 0, 2, needs=(cluster(Operation.ALTER),), bound=None)
def handle(request: UpdateFeaturesRequest, context: RequestContext) -> None:
    """Refuse updates of features."""
    if not request.feature_updates:
        context.answer(UpdateFeaturesResponse(error_message=None, results=[]))
        return
    first = request.feature_updates[0]
    message = (
        "The update failed for all features since the following feature had an error: Invalid update version "
        f"{first.max_version_level} for feature {first.feature[:_MOST_NAME]}. {_reason(first, context.broker.node_id)}"
    )
    context.answer(
        UpdateFeaturesResponse(error_code=Code.INVALID_UPDATE_VERSION, error_message=cut(message), results=[])
    )


def _reason(update: UpdateFeaturesRequest.FeatureUpdateKey, node_id: int) -> str:
    if not _UPGRADE <= update.upgrade_type <= _UNSAFE_DOWNGRADE:
        return "The controller does not support the given upgrade type."
    if update.max_version_level < 0:
        return "A feature version cannot be less than 0."
    if not update.max_version_level:
        return f"Feature {update.feature[:_MOST_NAME]} not found."
    return f"Local controller {node_id} does not support this feature."
