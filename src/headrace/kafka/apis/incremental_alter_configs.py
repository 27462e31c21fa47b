"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339).

Behavior
- A change of a broker setting is INVALID_REQUEST: the broker reads its settings when it starts.
- All changes of a topic or group are made, or none. Only lists support APPEND and SUBTRACT.
- A group need not exist. An unknown key, or a value out of the broker's bounds, is INVALID_CONFIG with Kafka's message.
- More than 10,000 groups with configurations of their own are POLICY_VIOLATION.

Version notes
- 1: flexible.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from headrace.broker.admin.group_configs import TooManyGroupConfigs
from headrace.broker.broker import Broker
from headrace.broker.config import group_configs
from headrace.kafka.apis.describe_configs import (
    BROKER,
    GROUP,
    TOPIC,
    check_group_name,
    groups_in,
    names_broker,
    places_of,
    topics_in,
)
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster, groups, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.config import check_length, describe
from headrace.topics.config_keys import ConfigEntry, ConfigType
from headrace.topics.errors import InvalidConfig

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Change = IncrementalAlterConfigsRequest.AlterableConfig
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
Changed = Callable[..., dict[str, str]]
"""Returns a new configuration from the present one, `resource` in the request, and `keys` of its type."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


NEEDS = (
    topics(Operation.ALTER_CONFIGS, topics_in),
    groups(Operation.ALTER_CONFIGS, groups_in),
    cluster(Operation.ALTER_CONFIGS, names_broker),
)


def _outcome(resource: Resource, code: Code, message: str | None) -> Result:
    return Result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@register(IncrementalAlterConfigsRequest, 0, 1, needs=NEEDS, each=Each("resources", "responses", _outcome, places_of))
def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> AnswerItem:
    """Change the configuration of topics and groups."""
    return partial(alter, context, _changed_config, validate_only=request.validate_only)


class Keys(NamedTuple):
    """Keys of a type of resource."""

    described: Callable[[Mapping[str, str]], Iterable[ConfigEntry]]
    """Returns every key with its effective value, from the values that a resource has set."""
    unknown: Callable[[str], InvalidConfig]
    """Returns the error for an unknown key."""


async def alter(context: RequestContext, changed: Changed, resource: Any, *, validate_only: bool) -> None:
    """Change the configuration of a topic or group to the result of `changed`."""
    if resource.resource_type == BROKER:
        if all(getattr(config, "config_operation", None) == _DELETE for config in resource.configs):
            # Kafka's tools remove their throttles even if none are set, which they cannot be here.
            return
        raise RequestError(Code.INVALID_REQUEST, "the broker's settings are given at its start: headrace serve --set")
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise RequestError(Code.INVALID_REQUEST, "a key is named more than once")
    if resource.resource_type == TOPIC:
        await _alter_topic(context.broker, resource, changed, validate_only=validate_only)
    elif resource.resource_type == GROUP:
        await _alter_group(context.broker, resource, changed, validate_only=validate_only)
    else:
        raise RequestError(Code.INVALID_REQUEST, f"there are no resources of type {resource.resource_type}")
    if not validate_only:
        what = "topic" if resource.resource_type == TOPIC else "group"
        context.changed(f"configuration of {what} {resource.resource_name}: {', '.join(names)}")


async def _alter_topic(broker: Broker, resource: Any, changed: Changed, *, validate_only: bool) -> None:
    keys = Keys(
        partial(describe, defaults=broker.settings.topic_defaults),
        lambda name: InvalidConfig(f"unknown topic configuration {name!r}"),
    )
    change = partial(changed, resource=resource, keys=keys)
    await broker.topics.configure(resource.resource_name, change, validate_only=validate_only)


async def _alter_group(broker: Broker, resource: Any, changed: Changed, *, validate_only: bool) -> None:
    check_group_name(resource.resource_name)
    keys = Keys(partial(group_configs.describe, defaults=broker.settings.group_defaults), group_configs.unknown)
    change = partial(changed, resource=resource, keys=keys)
    try:
        await broker.group_configs.configure(resource.resource_name, change, validate_only=validate_only)
    except TooManyGroupConfigs as error:
        raise RequestError(Code.POLICY_VIOLATION, str(error)) from None


def _changed_config(present: Mapping[str, str], resource: Resource, keys: Keys) -> dict[str, str]:
    values = {entry.key.name: entry for entry in keys.described(dict(present))}
    config = dict(present)
    for change in resource.configs:
        if change.name not in values:
            raise keys.unknown(change.name)
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
