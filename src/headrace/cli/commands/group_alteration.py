"""`headrace groups alter`: change the configuration of a group."""

import click
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.cli.client import Client, KafkaServer, client_options, complete_groups
from headrace.cli.command import CommandFailed, Status, command
from headrace.cli.output import print_json, print_table
from headrace.text.escaping import quoted, shown
from headrace.topics.config_keys import suggestion


@command(
    "alter",
    examples="""
    headrace groups alter mailers --config share.auto.offset.reset=earliest
    headrace groups alter billing --config consumer.session.timeout.ms=60000
    """,
)
@click.argument("group", shell_complete=complete_groups)
@click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Configuration to set. Repeatable.")
@click.option(
    "--unset", "unset", metavar="KEY", multiple=True, help="Key to reset to the server's default. Repeatable."
)
@client_options
def alter(group: str, pairs: tuple[str, ...], unset: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Change the configuration of GROUP, which need not exist yet, and show each value before and after.

    It applies to consumer groups and share groups, not to classic groups.
    """
    config = _pairs(pairs)
    if not config and not unset:
        raise click.UsageError("give --config KEY=VALUE or --unset KEY: what is to change?")
    for key in unset:
        if key in config:
            raise click.UsageError(f"{key} is both set and unset")
    client = Client(kafka)
    before = _config(client, group)
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
    altered = client.admin.incremental_alter_configs([resource])[resource]
    try:
        client.result(altered, f"alter group {quoted(group)}")
    except CommandFailed as error:
        hints = [hint for key in (*config, *unset) if key not in before and (hint := suggestion(key, before))]
        raise CommandFailed("; ".join([str(error), *hints]), error.status) from None
    after = _config(client, group)
    answer = {key: {"before": before.get(key), "after": after[key]} for key in [*config, *unset] if key in after}
    if as_json:
        print_json({"group": group, "config": answer})
    else:
        print_table(["key", "before", "after"], [[key, *values.values()] for key, values in answer.items()])


def _pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    config = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            expected = "expected KEY=VALUE, such as share.delivery.count.limit=3"
            raise CommandFailed(f"--config {shown(pair)}: {expected}", Status.USAGE)
        config[key] = value
    return config


def _config(client: Client, group: str) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.GROUP, group)
    found = client.result(client.admin.describe_configs([resource])[resource], f"describe group {quoted(group)}")
    return {name: entry.value for name, entry in found.items()}
