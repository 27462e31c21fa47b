"""`headrace groups`: list consumer groups, show who reads what and how far behind they are, and delete them."""

import click
import msgspec
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import ConsumerGroupDescription

from headrace.cli import completions, group_lag
from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.command import YES, CommandFailed, TeachingGroup, confirm
from headrace.cli.commands.lag import lag
from headrace.cli.commands.reset import reset
from headrace.cli.output import print_json, print_table
from headrace.groups.classic.states import in_words
from headrace.text.escaping import quoted, shown


@click.group("groups", cls=TeachingGroup)
def groups() -> None:
    """Show who reads what and how far behind, move positions, and delete groups."""


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
        raise client.failure("list consumer groups", error)
    answer = [
        {"group": group.group_id, "state": in_words(group.state.name), "type": in_words(group.type.name)}
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
@click.argument("group", shell_complete=completions.groups)
@client_options
def describe(group: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show the members of GROUP, which partitions they have, their positions, the ends of the logs and the lag.

    The lag is the number of records to come. Where nothing was committed the position is - and the lag counts from
    the start of the log.
    """
    client = Client(kafka)
    found = client.result(client.admin.describe_consumer_groups([group])[group], f"describe group {quoted(group)}")
    committed = group_lag.positions(client, group)
    if found.state == ConsumerGroupState.DEAD and not committed:
        raise client.no_group(group)
    members = group_lag.members(found)
    standings = group_lag.standings(client, group, committed, members)
    if as_json:
        print_json(_answer(group, found, members, standings))
    else:
        _print(group, found, members, standings)


def _answer(
    group: str, found: ConsumerGroupDescription, members: list[group_lag.Member], standings: list[group_lag.Standing]
) -> dict[str, object]:
    coordinator = found.coordinator
    return {
        "group": group,
        "state": in_words(found.state.name),
        "protocol": found.partition_assignor or None,
        "coordinator": f"{coordinator.host}:{coordinator.port}" if coordinator else None,
        "members": [
            {
                "member": member.member,
                "client": member.client,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": number} for topic, number in member.partitions],
            }
            for member in members
        ],
        "positions": [
            {
                name: value
                for name, value in msgspec.structs.asdict(standing).items()
                if name != "pending" or value is not None
            }
            for standing in standings
        ],
    }


def _print(
    group: str, found: ConsumerGroupDescription, members: list[group_lag.Member], standings: list[group_lag.Standing]
) -> None:
    protocol = shown(found.partition_assignor or None)
    # A group that is unknown, and stands somewhere, is one of Redis programs.
    state = "known to Redis only" if found.state == ConsumerGroupState.DEAD else f"state {in_words(found.state.name)}"
    click.echo(f"group {shown(group)}  {state}  protocol {protocol}")
    if members:
        click.echo()
        print_table(
            ["member", "client", "host", ">partitions"],
            [[member.member, member.client, member.host, len(member.partitions)] for member in members],
        )
    if standings:
        click.echo()
        pending = any(standing.pending is not None for standing in standings)
        columns = ["topic", ">partition", ">position", ">log end", ">lag", "member", *([">pending"] * pending)]
        rows = [list(msgspec.structs.astuple(standing))[: len(columns)] for standing in standings]
        print_table(columns, rows)
        click.echo(f"\nlag in all: {sum(standing.lag or 0 for standing in standings)}")


groups.add_command(lag)
groups.add_command(reset)


@groups.command(
    "delete",
    examples="""
    headrace groups delete billing
    headrace groups delete billing reports --yes
    """,
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=completions.groups)
@YES
@client_options
def delete(names: tuple[str, ...], yes: bool, kafka: KafkaServer, as_json: bool) -> None:
    """Delete groups with all their positions; a group that has members is refused."""
    client = Client(kafka)
    there = client.groups()
    for name in names:
        if name not in there:
            raise client.no_group(name)
    confirm(f"Delete {', '.join(map(quoted, names))} with all positions, at {kafka}?", yes)
    deleted: list[str] = []
    try:
        for name, future in client.admin.delete_consumer_groups(list(names)).items():
            client.result(future, f"delete group {quoted(name)}")
            deleted.append(name)
            if not as_json:
                click.echo(f"deleted group {shown(name)}")
    except CommandFailed as error:
        done = f"; deleted before it: {', '.join(map(quoted, deleted))}" if deleted else ""
        raise CommandFailed(f"{error}{done}", error.status) from None
    if as_json:
        print_json({"deleted": deleted})
