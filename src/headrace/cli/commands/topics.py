"""`headrace topics`: create, list, describe, change and delete topics."""

import base64
import json
from typing import Any
from uuid import UUID

import click
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.cli import configuration
from headrace.cli.client import Client, KafkaServer, client_options, complete_topics
from headrace.cli.command import YES, CommandFailed, TeachingGroup, confirm
from headrace.cli.output import print_json, print_table
from headrace.text.escaping import quoted, shown

MOST_PARTITIONS = 100_000
"""Limit of the client library; the server reports its own."""
NATIVE = "headrace.native"
"""Read-only configuration of a native topic: records and consumer groups in Redis, as JSON."""
OFFLINE = "headrace.offline"
"""Read-only configuration of a topic with offline partitions: the reason by partition, as JSON."""
STREAMS = "headrace.streams"
"""Read-only configuration of a Headrace topic: each partition's Redis key, separated by commas."""


@click.group("topics", cls=TeachingGroup)
def topics() -> None:
    """Create, list, describe and change topics."""


@topics.command(
    "create",
    examples="""
    headrace topics create flights --partitions 6
    headrace topics create clicks --config retention.ms=3600000 --config max.message.bytes=2000000
    headrace topics create sensors --config headrace.storage=native
    """,
)
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(1, MOST_PARTITIONS),
    metavar="N",
    help="Number of partitions (default: the server's setting).",
)
@click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Topic configuration. Repeatable.")
@client_options
def create(name: str, partitions: int | None, pairs: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Create the topic NAME."""
    config = configuration.values_of(pairs)
    client = Client(kafka)
    # -1 uses the server's default.
    topic = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1, config=config)
    client.result(client.admin.create_topics([topic])[name], f"create topic {quoted(name)}")
    made = len(client.partitions_of_new(name))
    if as_json:
        print_json({"topic": name, "partitions": made, "config": config})
    else:
        click.echo(f"created topic {shown(name)} with {made} partition{'s' if made > 1 else ''}")


@topics.command(
    "list",
    examples="""
    headrace topics list
    headrace topics list --json | jq -r '.[].topic'
    """,
)
@click.option("--internal", is_flag=True, help="Also list Kafka's internal topics, such as __consumer_offsets.")
@client_options
def list_(internal: bool, kafka: KafkaServer, as_json: bool) -> None:
    """List topics with their numbers of records."""
    client = Client(kafka)
    found = client.metadata.topics if internal else client.topics
    partitions = [(name, number) for name in sorted(found) for number in found[name].partitions]
    starts = client.offsets(partitions, OffsetSpec.earliest)
    ends = client.offsets(partitions, OffsetSpec.latest)
    natives = client.natives(found)
    answer = [
        {
            "topic": name,
            "partitions": len(found[name].partitions),
            "records": _records(natives[name])
            if name in natives
            else sum(
                ends[name, number] - starts[name, number]
                for number in found[name].partitions
                if (name, number) in ends and (name, number) in starts
            ),
        }
        for name in sorted(found)
    ]
    if as_json:
        print_json(answer)
    else:
        print_table(["topic", ">partitions", ">records"], [list(line.values()) for line in answer])


def _records(native: dict[str, Any]) -> int | None:
    counts = native["records"]
    return sum(count or 0 for count in counts) if counts else None


@topics.command(
    "describe",
    examples="""
    headrace topics describe flights
    headrace topics describe flights --json | jq -r '.partitions[0].stream'
    """,
)
@click.argument("name", shell_complete=complete_topics)
@client_options
def describe(name: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show the partitions of topic NAME with their offsets and Redis keys, and its configuration."""
    client = Client(kafka)
    keys = [(name, number) for number in client.partitions(name)]
    starts = client.offsets(keys, OffsetSpec.earliest, some=True)
    # Also unknown while min.insync.replicas waits for replicas. A broker that did not return a log start offset is not
    # waited for again.
    ends = client.offsets(starts, OffsetSpec.latest, some=True)
    leaders = client.partitions(name)  # some may have changed since
    config = configuration.read(client, ResourceType.TOPIC, name)
    streams = _streams(config.pop(STREAMS).value or "") if STREAMS in config else []
    config.pop(NATIVE, None)
    offline: dict[str, str] = json.loads(config.pop(OFFLINE).value or "{}") if OFFLINE in config else {}
    native = client.natives([name]).get(name)
    topic_id = _topic_id(client, name)
    partitions = [
        {
            "partition": number,
            "leader": leader,
            "log_start": starts.get((name, number)),
            "log_end": ends.get((name, number)),
            "stream": streams[number] if number < len(streams) else None,
        }
        | ({"offline": offline[str(number)]} if as_json and str(number) in offline else {})
        | ({"records": (native["records"] or {number: None})[number]} if native is not None else {})
        for number, leader in leaders.items()
    ]
    if as_json:
        values = {key: entry.value for key, entry in config.items()}
        print_json({"topic": name, "id": topic_id, "config": values, "partitions": partitions})
        return
    click.echo(f"topic {shown(name)}  id {topic_id}")
    for key, entry in config.items():
        if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG:
            click.echo(f"  {shown(key)}={shown(entry.value)}")
    if native is not None and (unfit := sum(native.get("unfit", []))):
        click.echo(f"  careful: {unfit} entries were met that are not served: no offset fits them, or they are large")
    for number, reason in offline.items():
        click.echo(f"  partition {shown(number)} is offline: {shown(reason)}")
    if unknown := sum(each["log_end"] is None for each in partitions):
        click.echo(
            f"  careful: where {unknown} of the partitions end is not known: a leader is away, or the replicas that "
            "min.insync.replicas asks for"
        )
    columns = [">partition", ">leader", ">log start offset", ">log end offset", "stream"]
    print_table(columns + [">records"] * (native is not None), [list(line.values()) for line in partitions])


def _streams(text: str) -> list[str]:
    return list(json.loads(text)) if text.startswith("[") else text.split(",")


@topics.command(
    "alter",
    examples="""
    headrace topics alter flights --config retention.ms=86400000
    headrace topics alter flights --unset retention.ms --config max.message.bytes=2000000
    """,
)
@click.argument("name", shell_complete=complete_topics)
@configuration.change_options
@client_options
def alter(name: str, pairs: tuple[str, ...], unset: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Change the configuration of topic NAME, and show each value before and after. Other values stay."""
    config = configuration.changes_of(pairs, unset, ResourceType.TOPIC)
    client = Client(kafka)
    client.partitions(name)
    configuration.alter(client, ResourceType.TOPIC, name, config, unset, as_json=as_json)


@topics.command(
    "grow",
    examples="""
    headrace topics grow flights --partitions 12
    """,
)
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--partitions",
    type=click.IntRange(2, MOST_PARTITIONS),
    metavar="N",
    required=True,
    help="New number of partitions.",
)
@client_options
def grow(name: str, partitions: int, kafka: KafkaServer, as_json: bool) -> None:
    """Add partitions to topic NAME. This cannot be undone.

    New records of a key may go to another partition. Existing records stay.
    """
    client = Client(kafka)
    before = len(client.partitions(name))
    if partitions <= before:
        raise CommandFailed(f"topic {quoted(name)} has {before} partitions already: their number can only grow")
    grown = client.admin.create_partitions([NewPartitions(name, partitions)])[name]
    client.result(grown, f"grow topic {quoted(name)}")
    if as_json:
        print_json({"topic": name, "before": before, "partitions": partitions})
    else:
        click.echo(f"topic {shown(name)} has {partitions} partitions, {partitions - before} of them new")


@topics.command(
    "adopt",
    examples="""
    headrace topics adopt --stream sensors:kitchen --topic sensors
    headrace topics adopt --stream sensors:garden --topic sensors
    """,
)
@click.option("--stream", required=True, metavar="KEY", help="Key of the stream in the server's Redis.")
@click.option(
    "--topic",
    "name",
    required=True,
    metavar="T",
    shell_complete=complete_topics,
    help="Topic. A missing topic is created.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Partition (default: the next one, which is 0 in a new topic).",
)
@click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Configuration of a new topic.")
@client_options
def adopt(
    stream: str, name: str, partition: int | None, pairs: tuple[str, ...], kafka: KafkaServer, as_json: bool
) -> None:
    """Make an existing Redis Stream a partition of a native topic. The stream itself is not changed.

    Without --config, the server never trims it, and it remains when you delete the topic.
    """
    client = Client(kafka)
    if partition is None:
        there = client.metadata.topics.get(name)
        partition = 0 if there is None else len(there.partitions)
    config = configuration.values_of(pairs) | {"headrace.stream": stream, "headrace.partition": str(partition)}
    topic = NewTopic(name, num_partitions=-1, replication_factor=-1, config=config)
    client.result(client.admin.create_topics([topic])[name], f"adopt stream {quoted(stream)}")
    if as_json:
        print_json({"topic": name, "partition": partition, "stream": stream})
    else:
        click.echo(f"stream {shown(stream)} is partition {partition} of topic {shown(name)}")


@topics.command(
    "convert",
    examples="""
    headrace topics convert sensors --to native
    headrace topics convert sensors --to log
    """,
)
@click.argument("name", shell_complete=complete_topics)
@click.option("--to", "storage", type=click.Choice(["log", "native"]), required=True, help="Target virtual cluster.")
@click.option(
    "--timeout", type=click.IntRange(min=1), default=3_600, metavar="S", help="Seconds to wait (default: 3600)."
)
@client_options
def convert(name: str, storage: str, timeout: int, kafka: KafkaServer, as_json: bool) -> None:
    """Move topic NAME between record batches (log) and plain Redis Streams (native), with all its records in order.

    OFFSETS CHANGE: positions of groups are carried over, offsets that are stored elsewhere are not. Groups must have no
    members; producers may go on, and are held up for the last moment only.
    """
    client = Client(kafka)
    topic = NewTopic(name, num_partitions=-1, replication_factor=-1, config={"headrace.convert": storage})
    future = client.admin.create_topics([topic], request_timeout=timeout)[name]
    with client.explained(f"convert topic {quoted(name)}"):
        future.result(timeout=timeout)
    if as_json:
        print_json({"topic": name, "storage": storage})
    else:
        click.echo(f"topic {shown(name)} has headrace.storage={storage} from now on; its offsets have changed")


def _topic_id(client: Client, name: str) -> str | None:
    future = client.admin.describe_topics(TopicCollection([name]))[name]
    found = str(client.result(future, f"describe topic {quoted(name)}").topic_id)
    topic_id = UUID(bytes=base64.urlsafe_b64decode(found + "=="))
    return str(topic_id) if topic_id.int else None


@topics.command(
    "delete",
    examples="""
    headrace topics delete flights
    headrace topics delete flights clicks --yes
    """,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@YES
@client_options
def delete(names: tuple[str, ...], yes: bool, kafka: KafkaServer, as_json: bool) -> None:
    """Delete topics and their records. If one of them does not exist, none is deleted."""
    client = Client(kafka)
    for name in names:
        if name not in client.metadata.topics:
            raise client.no_topic(name, client.metadata.topics)
    confirm(f"Delete {', '.join(map(quoted, names))} with all records, at {kafka}?", yes)
    for name, future in client.admin.delete_topics(list(names)).items():
        client.result(future, f"delete topic {quoted(name)}")
        if not as_json:
            click.echo(f"deleted topic {shown(name)}")
    if as_json:
        print_json({"deleted": list(names)})
