"""Configurations of topics and groups, as the commands show and change them."""

from collections.abc import Callable, Iterable
from typing import Any

import click
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.cli.client import Client
from headrace.cli.command import CommandFailed, Status
from headrace.cli.output import print_json, print_table
from headrace.text.escaping import quoted, shown
from headrace.topics.config_keys import suggestion

_NAMES = {ResourceType.TOPIC: "topic", ResourceType.GROUP: "group"}
_EXAMPLES = {ResourceType.TOPIC: "retention.ms=3600000", ResourceType.GROUP: "share.delivery.count.limit=3"}


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `alter`: `pairs` to set and keys to `unset`."""
    unset = click.option(
        "--unset", "unset", metavar="KEY", multiple=True, help="Key to reset to the server's default. Repeatable."
    )
    pairs = click.option(
        "--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Configuration to set. Repeatable."
    )
    return pairs(unset(command))


def values_of(pairs: Iterable[str], kind: ResourceType = ResourceType.TOPIC) -> dict[str, str]:
    """Return the values of `--config` by key. Raise CommandFailed for one that is not KEY=VALUE."""
    config = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            expected = f"expected KEY=VALUE, such as {_EXAMPLES[kind]}"
            raise CommandFailed(f"--config {shown(pair)}: {expected}", Status.USAGE)
        config[key] = value
    return config


def read(client: Client, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    """Return the configuration of a topic or group by key, in order."""
    resource = ConfigResource(kind, name)
    described = client.admin.describe_configs([resource])[resource]
    entries: dict[str, ConfigEntry] = client.result(described, f"read the configuration of {quoted(name)}")
    return dict(sorted(entries.items()))


def alter(
    client: Client, kind: ResourceType, name: str, config: dict[str, str], unset: tuple[str, ...], *, as_json: bool
) -> None:
    """Set `config`, reset the `unset` keys, and print each value before and after. Other values stay."""
    before = read(client, kind, name)
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(kind, name, incremental_configs=changes)
    altered = client.admin.incremental_alter_configs([resource])[resource]
    try:
        client.result(altered, f"alter {_NAMES[kind]} {quoted(name)}")
    except CommandFailed as error:
        hints = (suggestion(key, before) for key in (*config, *unset) if key not in before)
        # The server suggests the key of a group itself.
        new = [hint for hint in hints if hint and hint not in str(error)]
        raise CommandFailed("; ".join([str(error), *new]), error.status) from None
    after = read(client, kind, name)
    answer = {
        key: {"before": before[key].value if key in before else None, "after": after[key].value}
        for key in [*config, *unset]
        if key in after
    }
    if as_json:
        print_json({_NAMES[kind]: name, "config": answer})
    else:
        print_table(["key", "before", "after"], [[key, *values.values()] for key, values in answer.items()])


def changes_of(pairs: Iterable[str], unset: tuple[str, ...], kind: ResourceType) -> dict[str, str]:
    """Return the values to set. Raise UsageError if nothing is to change, or a key is both set and unset."""
    config = values_of(pairs, kind)
    if not config and not unset:
        raise click.UsageError("give --config KEY=VALUE or --unset KEY: what is to change?")
    for key in unset:
        if key in config:
            raise click.UsageError(f"{key} is both set and unset")
    return config
