"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339).

Behavior
- Topics only: the broker's settings are read at its start, and asking to change one is INVALID_REQUEST.
- All changes of a topic happen, or none. Adding to a value and taking from it is for lists only.

Version notes
- 1: flexible.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.kafka.apis.describe_configs import BROKER, TOPIC, names_broker, places_of, topics_in
from headrace.kafka.denied import No, parts
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import cluster, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.config import TopicDefaults, check_length, describe
from headrace.topics.config_keys import ConfigType
from headrace.topics.errors import InvalidConfig, TopicError

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Change = IncrementalAlterConfigsRequest.AlterableConfig
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
Changed = Callable[[Mapping[str, str], Any, TopicDefaults], dict[str, str]]
"""Makes a topic's new configuration of its present one, of the resource in the request and of the defaults."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


NEEDS = (topics(Operation.ALTER_CONFIGS, topics_in), cluster(Operation.ALTER_CONFIGS, names_broker))


def _result(resource: Resource, code: Code, message: str | None) -> Result:
    return Result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _no(resource: Resource, no: No, _: RequestContext) -> Result:
    return _result(resource, *no)


@register(IncrementalAlterConfigsRequest, 0, 1, needs=NEEDS, refusal=parts("resources", places_of, _no, "responses"))
async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Change the configuration of topics, each on its own."""
    results = [_result(*outcome) async for outcome in alter(request, context, _changed_config)]
    return IncrementalAlterConfigsResponse(responses=results)


async def alter(request: Any, context: RequestContext, changed: Changed) -> AsyncIterator[tuple[Any, Code, str | None]]:
    """Change the configuration of topics, each on its own.

    Args:
        request: has the resources, each with the configurations that it names.
        context: of this request.
        changed: makes a topic's new configuration of its present one.

    Yields:
        Each resource, and what became of it.
    """
    async for resource in context.parts(request.resources):
        error: Exception | None = None
        try:
            await _alter(context.broker, resource, changed, validate_only=request.validate_only)
            if not request.validate_only:
                keys = ", ".join(config.name for config in resource.configs)
                context.changed(f"configuration of topic {resource.resource_name}: {keys}")
        except (TopicError, RequestError) as refused:
            error = refused
        yield resource, code_of(error), None if error is None else str(error)


async def _alter(broker: Broker, resource: Any, changed: Changed, *, validate_only: bool) -> None:
    if resource.resource_type == BROKER:
        if all(getattr(config, "config_operation", None) == _DELETE for config in resource.configs):
            # Nothing was ever set that way; Kafka's tools remove their throttles, whether there are any or not.
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
