"""AlterConfigs (33), versions 0-2.

Behavior
- Replaces the configuration of a topic or group. Keys that are not in the request get their defaults, except
  `headrace.storage`, `offset.sequence.bits` and `headrace.adopted`, which never change. Use IncrementalAlterConfigs
  (44) instead.
- A change of a broker setting is INVALID_REQUEST: the broker reads its settings when it starts.

Version notes
- 2: flexible.
"""

from collections.abc import Mapping
from functools import partial

from headrace.kafka.apis.describe_configs import TOPIC, places_of
from headrace.kafka.apis.incremental_alter_configs import NEEDS, Keys, alter
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterConfigsRequest, AlterConfigsResponse
from headrace.topics.native import ADOPTED, FIXED

Resource = AlterConfigsRequest.AlterConfigsResource
Result = AlterConfigsResponse.AlterConfigsResourceResponse


def _outcome(resource: Resource, code: Code, message: str | None) -> Result:
    return Result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@register(AlterConfigsRequest, 0, 2, needs=NEEDS, each=Each("resources", "responses", _outcome, places_of))
def handle(request: AlterConfigsRequest, context: RequestContext) -> AnswerItem:
    """Replace the configuration of topics and groups."""
    return partial(alter, context, _replaced, validate_only=request.validate_only)


def _replaced(present: Mapping[str, str], resource: Resource, keys: Keys) -> dict[str, str]:
    kept = (*FIXED, ADOPTED) if resource.resource_type == TOPIC else ()
    config = {key: present[key] for key in kept if key in present}
    for given in resource.configs:
        if given.value is None:
            raise RequestError(Code.INVALID_REQUEST, f"{given.name} has no value")
        config[given.name] = given.value
    return config
