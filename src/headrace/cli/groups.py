"""`headrace groups`: list consumer groups, and show who reads what and how far behind they are."""

from typing import Any

import click
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.commands import CommandFailed, TeachingGroup
from headrace.cli.output import print_json, print_table

Partition = tuple[str, int]


@click.group("groups", cls=TeachingGroup)
def groups() -> None:
    """List consumer groups and show their members, positions and lag."""


@groups.command(
    "list",
    examples="""
    headrace groups list
    headrace groups list --json | jq -r '.[].group'
    """,
)
@client_options
def list_(kafka: KafkaServer, as_json: bool) -> None:
    """List the consumer groups."""
    client = Client(kafka)
    listed = client.result(client.admin.list_consumer_groups(), "list consumer groups")
    for error in listed.errors:
        raise CommandFailed(f"cannot list consumer groups: {error}")
    answer = [
        {"group": group.group_id, "state": _name(group.state), "type": _name(group.type)}
        for group in sorted(listed.valid, key=lambda group: str(group.group_id))
    ]
    if as_json:
        print_json(answer)
    else:
        print_table(["group", "state", "type"], [list(line.values()) for line in answer])


@groups.command(
    "describe",
    examples="""
    headrace groups describe billing
    headrace groups describe billing --json | jq '[.positions[].lag] | add'
    """,
)
@click.argument("group")
@client_options
def describe(group: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show the members of GROUP, which partitions they have, their positions, the ends of the logs and the lag."""
    client = Client(kafka)
    found = client.result(client.admin.describe_consumer_groups([group])[group], f"describe group {group!r}")
    positions = _positions(client, group)
    if found.state == ConsumerGroupState.DEAD and not positions:
        raise CommandFailed(f"no group {group!r} at {kafka}; `headrace groups list` shows those that are there")
    members = _members(found)
    owners = {partition: member for member, _, _, assigned in members for partition in assigned}
    partitions = sorted(positions.keys() | owners.keys())
    ends = client.offsets(partitions, OffsetSpec.latest)
    natives = client.natives({topic for topic, _ in partitions})
    answer = {
        "group": group,
        "state": _name(found.state),
        "protocol": found.partition_assignor or None,
        "coordinator": f"{found.coordinator.host}:{found.coordinator.port}" if found.coordinator else None,
        "members": [
            {
                "member": member,
                "client": client_id,
                "host": host,
                "partitions": [{"topic": topic, "partition": number} for topic, number in assigned],
            }
            for member, client_id, host, assigned in members
        ],
        "positions": [
            {
                "topic": topic,
                "partition": number,
                "position": positions.get((topic, number)),
                "log_end": ends.get((topic, number)),
                "lag": _lag(positions.get((topic, number)), ends.get((topic, number))),
                "member": owners.get((topic, number)),
            }
            | (_native_lag(natives[topic], group, number) if topic in natives else {})
            for topic, number in partitions
        ],
    }
    if as_json:
        print_json(answer)
    else:
        _print(answer)


def _members(found: ConsumerGroupDescription) -> list[tuple[str, str, str, list[Partition]]]:
    """(member id, client id, host, partitions) of each member, in the order of member ids."""
    members = []
    for member in found.members:
        assigned = sorted((part.topic, part.partition) for part in member.assignment.topic_partitions)
        members.append((member.member_id, member.client_id, member.host.lstrip("/"), assigned))
    return sorted(members)


def _positions(client: Client, group: str) -> dict[Partition, int]:
    """Committed offsets; a partition of which nothing was committed is left out."""
    asked = client.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    found = client.result(asked, f"read the positions of group {group!r}")
    return {(part.topic, part.partition): part.offset for part in found.topic_partitions or [] if part.offset >= 0}


def _lag(position: int | None, end: int | None) -> int | None:
    """Records not yet read; None where one of the two is not known."""
    return None if position is None or end is None else max(0, end - position)


def _native_lag(native: dict[str, Any], group: str, partition: int) -> dict[str, int | None]:
    """The lag in a native topic: records not yet delivered, and delivered ones that are not committed."""
    found = native["groups"].get(group, {}).get(str(partition))
    if found is None:
        # The Redis group is made by the first fetch.
        return {"lag": native["records"][partition], "pending": 0}
    undelivered, pending = found["undelivered"], found["pending"]
    return {"lag": None if undelivered is None else undelivered + pending, "pending": pending}


def _name(value: object) -> str:
    """`PREPARING_REBALANCING` as `preparing rebalancing`."""
    return str(getattr(value, "name", value)).lower().replace("_", " ")


def _print(answer: dict[str, object]) -> None:
    click.echo(f"group {answer['group']}  state {answer['state']}  protocol {answer['protocol'] or '-'}")
    members, positions = answer["members"], answer["positions"]
    assert isinstance(members, list)
    assert isinstance(positions, list)
    if members:
        click.echo()
        print_table(
            ["member", "client", "host", ">partitions"],
            [[line["member"], line["client"], line["host"], len(line["partitions"])] for line in members],
        )
    if positions:
        click.echo()
        columns = ["topic", ">partition", ">position", ">log end", ">lag", "member"]
        pending = any("pending" in line for line in positions)
        rows = [[*list(line.values())[: len(columns)], *([line.get("pending", "-")] * pending)] for line in positions]
        print_table(columns + [">pending"] * pending, rows)
        click.echo(f"\nlag in all: {sum(line['lag'] or 0 for line in positions)}")
