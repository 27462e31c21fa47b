"""`headrace groups describe`: a group with its members, offsets and lag."""

import contextlib
from collections.abc import Iterable
from typing import Any

import click
import msgspec
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import ConfigEntry, ConfigSource, ConsumerGroupDescription, ResourceType

from headrace.cli import configuration, group_lag, newer_groups
from headrace.cli.client import Client, KafkaServer, client_options, complete_groups
from headrace.cli.command import CommandFailed, command
from headrace.cli.newer_groups import SHARE, NewerGroup, ShareOffset
from headrace.cli.output import print_json, print_table
from headrace.groups.classic.states import in_words
from headrace.text.escaping import quoted, shown

Configuration = dict[str, ConfigEntry]


@command(
    "describe",
    examples="""
    headrace groups describe billing
    headrace groups describe billing --json | jq '[.positions[].lag] | add'
    """,
)
@click.argument("group", shell_complete=complete_groups)
@client_options
def describe(group: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show the members of GROUP, their partitions, committed offsets, log end offsets and lag.

    The lag is the number of unread records. Without a committed offset (-), it counts from the log start offset. The
    seconds behind are the age of the next record. To see them, you need the right to read the topic.

    A member of a consumer group has an epoch, and a target, which is the number of partitions that it should have. All
    records before the start offset of a share group are done. The line after the first one shows what `groups alter`
    has set. JSON has the complete configuration, or null if you may not read it.
    """
    client = Client(kafka)
    found = client.result(client.admin.describe_consumer_groups([group])[group], f"describe group {quoted(group)}")
    # Redis has positions of a share group on a native topic, too.
    shared = newer_groups.share_group(kafka, client, group) if found.state == ConsumerGroupState.DEAD else None
    if shared is not None:
        config = _configuration(client, group)
        _show_shared(group, shared, config, newer_groups.share_offsets(kafka, group), as_json)
        return
    committed = group_lag.positions(client, group)
    if found.state == ConsumerGroupState.DEAD and not committed:
        raise client.no_group(group)
    newer = newer_groups.consumer_group(kafka, group) if found.type == ConsumerGroupType.CONSUMER else None
    members = group_lag.members(found)
    group_offsets = group_lag.group_offsets(client, group, committed, members)
    config = _configuration(client, group) if newer is not None else None
    if as_json:
        print_json(_answer(group, found, newer, config, members, group_offsets))
    else:
        _print(group, found, newer, config, members, group_offsets)


def _configuration(client: Client, group: str) -> Configuration | None:
    # Another broker may have no configurations of groups.
    with contextlib.suppress(CommandFailed):
        return configuration.read(client, ResourceType.GROUP, group)
    return None


def _values(config: Configuration | None) -> dict[str, str | None] | None:
    return None if config is None else {key: entry.value for key, entry in config.items()}


def _print_configuration(config: Configuration | None) -> None:
    for key, entry in (config or {}).items():
        if ConfigSource(entry.source) is ConfigSource.GROUP_CONFIG:
            click.echo(f"  {shown(key)}={shown(entry.value)}")


def whole(seconds: float | None) -> str | None:
    """Return seconds without a fraction."""
    return None if seconds is None else f"{seconds:.0f}"


def _state(found: ConsumerGroupDescription, newer: NewerGroup | None) -> str:
    # The client library does not know Assigning and Reconciling.
    return in_words(found.state.name if newer is None else newer.state)


def _places(partitions: Iterable[newer_groups.Partition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]


def _newer_members(group: NewerGroup) -> list[dict[str, Any]]:
    found = []
    for member in group.members:
        line: dict[str, Any] = {
            "member": member.member,
            "client": member.client,
            "host": member.host,
            "epoch": member.epoch,
            "partitions": _places(member.partitions),
        }
        if member.target is not None:
            line |= {
                "target": _places(member.target),
                "instance": member.instance,
                "classic": member.kind == "classic",
                "kind": member.kind,
            }
        found.append(line)
    return found


def _print_newer_members(group: NewerGroup) -> None:
    aims = any(member.target is not None for member in group.members)
    mixed = len({member.kind for member in group.members}) > 1
    columns = ["member", *["type"] * mixed, "client", "host", ">epoch", ">partitions", *[">target"] * aims]
    rows = [
        [
            *(member.member, *[member.kind] * mixed, member.client, member.host, member.epoch, len(member.partitions)),
            *[len(member.target or ())] * aims,
        ]
        for member in group.members
    ]
    print_table(columns, rows)


def _show_shared(
    group: str, found: NewerGroup, config: Configuration | None, offsets: list[ShareOffset], as_json: bool
) -> None:
    lag = sum(each.lag or 0 for each in offsets)
    if as_json:
        print_json(
            {
                "group": group,
                "type": SHARE,
                "state": in_words(found.state),
                "protocol": found.assignor or None,
                "coordinator": found.coordinator,
                "epoch": found.epoch,
                "target_epoch": found.target_epoch,
                "config": _values(config),
                "members": _newer_members(found),
                "positions": msgspec.to_builtins(offsets),
            }
        )
        return
    click.echo(
        f"group {shown(group)}  type {SHARE}  state {in_words(found.state)}  protocol {shown(found.assignor or None)}  "
        f"epoch {found.epoch}"
    )
    _print_configuration(config)
    if found.members:
        click.echo()
        _print_newer_members(found)
    if offsets:
        members: dict[newer_groups.Partition, int] = {}
        for member in found.members:
            for place in member.partitions:
                members[place] = members.get(place, 0) + 1
        click.echo()
        print_table(
            ["topic", ">partition", ">start offset", ">lag", ">members"],
            [
                [each.topic, each.partition, each.start_offset, each.lag, members.get((each.topic, each.partition), 0)]
                for each in offsets
            ],
        )
        click.echo(f"\ntotal lag: {lag}")


def _answer(
    group: str,
    found: ConsumerGroupDescription,
    newer: NewerGroup | None,
    config: Configuration | None,
    members: list[group_lag.Member],
    group_offsets: list[group_lag.CommittedOffset],
) -> dict[str, object]:
    coordinator = found.coordinator
    answer: dict[str, object] = {
        "group": group,
        "state": _state(found, newer),
        "type": "classic" if newer is None else "consumer",
        "protocol": found.partition_assignor or None,
        "coordinator": f"{coordinator.host}:{coordinator.port}" if coordinator else None,
    }
    if newer is not None:
        answer |= {
            "epoch": newer.epoch,
            "target_epoch": newer.target_epoch,
            "config": _values(config),
            "members": _newer_members(newer),
        }
    else:
        answer["members"] = [
            {
                "member": member.member,
                "client": member.client,
                "host": member.host,
                "partitions": _places(member.partitions),
            }
            for member in members
        ]
    answer["positions"] = [
        {
            name: value
            for name, value in msgspec.structs.asdict(standing).items()
            if name != "pending" or value is not None
        }
        for standing in group_offsets
    ]
    return answer


def _print(
    group: str,
    found: ConsumerGroupDescription,
    newer: NewerGroup | None,
    config: Configuration | None,
    members: list[group_lag.Member],
    group_offsets: list[group_lag.CommittedOffset],
) -> None:
    protocol = shown(found.partition_assignor or None)
    # A group with offsets but without a state belongs to Redis programs.
    state = "known to Redis only" if found.state == ConsumerGroupState.DEAD else f"state {_state(found, newer)}"
    kind = "" if newer is None else f"type consumer  epoch {newer.epoch}  "
    click.echo(f"group {shown(group)}  {kind}{state}  protocol {protocol}")
    _print_configuration(config)
    if newer is not None and newer.members:
        click.echo()
        _print_newer_members(newer)
    elif members:
        click.echo()
        print_table(
            ["member", "client", "host", ">partitions"],
            [[member.member, member.client, member.host, len(member.partitions)] for member in members],
        )
    if group_offsets:
        click.echo()
        pending = any(standing.pending is not None for standing in group_offsets)
        columns = ["topic", ">partition", ">committed offset", ">log end offset", ">lag", ">seconds behind", "member"]
        columns += [">pending"] * pending
        rows = [
            [
                *(each.topic, each.partition, each.position, each.log_end, each.lag, whole(each.seconds_behind)),
                *(each.member, each.pending),
            ][: len(columns)]
            for each in group_offsets
        ]
        print_table(columns, rows)
        click.echo(f"\ntotal lag: {sum(standing.lag or 0 for standing in group_offsets)}")
