"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339).

Behavior
- A change of a broker setting is INVALID_REQUEST: the broker reads its settings when it starts.
- All changes of a topic are made, or none. Only lists support APPEND and SUBTRACT.

Version notes
- 1: flexible.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.broker.broker import Broker
from headrace.kafka.apis.describe_configs import BROKER, TOPIC, names_broker, places_of, topics_in
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.config import TopicDefaults, check_length, describe
from headrace.topics.config_keys import ConfigType
from headrace.topics.errors import InvalidConfig

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Change = IncrementalAlterConfigsRequest.AlterableConfig
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
Changed = Callable[[Mapping[str, str], Any, TopicDefaults], dict[str, str]]
"""Returns a topic's new configuration from the current one, the resource in the request, and the defaults."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


NEEDS = (topics(Operation.ALTER_CONFIGS, topics_in), cluster(Operation.ALTER_CONFIGS, names_broker))


def _outcome(resource: Resource, code: Code, message: str | None) -> Result:
    return Result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@register(IncrementalAlterConfigsRequest, 0, 1, needs=NEEDS, each=Each("resources", "responses", _outcome, places_of))
def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> AnswerItem:
    """Change the configuration of topics."""
    return partial(alter, context, _changed_config, validate_only=request.validate_only)


async def alter(context: RequestContext, changed: Changed, resource: Any, *, validate_only: bool) -> None:
    """Change the configuration of a topic to the result of `changed`."""
    await _alter(context.broker, resource, changed, validate_only=validate_only)
    if not validate_only:
        keys = ", ".join(config.name for config in resource.configs)
        context.changed(f"configuration of topic {resource.resource_name}: {keys}")


async def _alter(broker: Broker, resource: Any, changed: Changed, *, validate_only: bool) -> None:
    if resource.resource_type == BROKER:
        if all(getattr(config, "config_operation", None) == _DELETE for config in resource.configs):
            # Kafka's tools remove their throttles even if none are set, which they cannot be here.
            return
        raise RequestError(Code.INVALID_REQUEST, "the broker's settings are given at its start: headrace serve --set")
    if resource.resource_type != TOPIC:
        raise RequestError(Code.INVALID_REQUEST, f"there are no resources of type {resource.resource_type}")
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise RequestError(Code.INVALID_REQUEST, "a key is named more than once")

    def change(present: Mapping[str, str]) -> dict[str, str]:
        return changed(present, resource, broker.settings.topic_defaults)

    await broker.topics.configure(resource.resource_name, change, validate_only=validate_only)


def _changed_config(present: Mapping[str, str], resource: Resource, defaults: TopicDefaults) -> dict[str, str]:
    values = {entry.key.name: entry for entry in describe(dict(present), defaults)}
    config = dict(present)
    for change in resource.configs:
        if change.name not in values:
            raise InvalidConfig(f"unknown topic configuration {change.name!r}")
        check_length(change.name, change.value or "")
        if change.config_operation == _DELETE:
            config.pop(change.name, None)
        elif change.value is None:
            raise RequestError(Code.INVALID_REQUEST, f"{change.name} has no value")
        elif change.config_operation == _SET:
            config[change.name] = change.value
        else:
            entry = values[change.name]
            if entry.key.type is not ConfigType.LIST:
                raise InvalidConfig(f"{change.name} is no list: it can be set or deleted only")
            config[change.name] = _changed(entry.value, change)
    return config


def _changed(present: str, change: Change) -> str:
    items = [item.strip() for item in present.split(",") if item.strip()]
    given = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.config_operation == _APPEND:
        there = set(items)
        return ",".join([*items, *(item for item in given if item not in there)])
    if change.config_operation == _SUBTRACT:
        taken = set(given)
        return ",".join(item for item in items if item not in taken)
    raise RequestError(Code.INVALID_REQUEST, f"{change.config_operation} is no operation on a configuration")
