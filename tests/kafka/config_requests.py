"""Configurations of groups on the wire."""

from typing import Any

from tests.harness.wire import Wire

from headrace.protocol import messages as m

GROUP = 32
SET, DELETE, APPEND = 0, 1, 2


def set_config(wire: Wire, group: str, *changes: tuple[str, int, str | None], dry: bool = False) -> Any:
    """The result of IncrementalAlterConfigs for a group."""
    request = m.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(name=name, config_operation=how, value=value) for name, how, value in changes]
    resource = request.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    [result] = wire.ask(request(resources=[resource], validate_only=dry), 1).responses
    return result


def config_of(wire: Wire, group: str, *keys: str, version: int = 4, **parts: bool) -> Any:
    """The result of DescribeConfigs for a group."""
    request = m.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=list(keys) or None
    )
    [result] = wire.ask(request(resources=[resource], **parts), version).results
    return result
