"""`headrace topics`: create, list, describe and delete topics through the Kafka door."""

import base64
import json
import sys
from collections.abc import Iterable
from uuid import UUID

import click
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigEntry, ConfigResource, ConfigSource, NewTopic, OffsetSpec, ResourceType

from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.commands import CommandFailed, TeachingGroup
from headrace.cli.output import print_json, print_table

NATIVE = "headrace.native"
"""Read-only configuration of a native topic: records and consumer groups in Redis, as JSON."""
STREAMS = "headrace.streams"
"""Read-only configuration under which a Headrace server tells the Redis key of each partition, commas between."""


@click.group("topics", cls=TeachingGroup)
def topics() -> None:
    """Create, list, describe and delete topics."""


@topics.command(
    "create",
    examples="""
    headrace topics create flights --partitions 6
    headrace topics create clicks --config retention.ms=3600000 --config max.message.bytes=2000000
    headrace topics create sensors --config headrace.storage=native
    """,
)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="How many (default: the server's).")
@click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Topic configuration; may be repeated.")
@client_options
def create(name: str, partitions: int | None, pairs: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Create the topic NAME."""
    config = _pairs(pairs)
    client = Client(kafka)
    # -1 leaves a number to the server, which knows its defaults.
    topic = NewTopic(name, num_partitions=partitions or -1, replication_factor=-1, config=config)
    client.result(client.admin.create_topics([topic])[name], f"create topic {name!r}")
    made = len(client.partitions(name))
    if as_json:
        print_json({"topic": name, "partitions": made, "config": config})
    else:
        click.echo(f"created topic {name} with {made} partition{'s' if made > 1 else ''}")


def _pairs(pairs: Iterable[str]) -> dict[str, str]:
    config = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise CommandFailed(f"--config {pair}: expected KEY=VALUE, such as retention.ms=3600000", status=2)
        config[key] = value
    return config


@topics.command(
    "list",
    examples="""
    headrace topics list
    headrace topics list --json | jq -r '.[].topic'
    """,
)
@client_options
def list_(kafka: KafkaServer, as_json: bool) -> None:
    """List the topics, with how many records each holds."""
    client = Client(kafka)
    with client.explained("list topics"):
        found = client.admin.list_topics(timeout=10).topics
    partitions = [(name, number) for name in sorted(found) for number in found[name].partitions]
    starts = client.offsets(partitions, OffsetSpec.earliest)
    ends = client.offsets(partitions, OffsetSpec.latest)
    natives = client.natives(found)
    answer = [
        {
            "topic": name,
            "partitions": len(found[name].partitions),
            "records": sum(
                ends[name, number] - starts[name, number]
                for number in found[name].partitions
                if (name, number) in ends and (name, number) in starts
            )
            # Offsets of native topics are sparse: Redis counts their records.
            if name not in natives
            else sum(count or 0 for count in natives[name]["records"]),
        }
        for name in sorted(found)
    ]
    if as_json:
        print_json(answer)
    else:
        print_table(["topic", ">partitions", ">records"], [list(line.values()) for line in answer])


@topics.command(
    "describe",
    examples="""
    headrace topics describe flights
    headrace topics describe flights --json | jq -r '.partitions[0].stream'
    """,
)
@click.argument("name")
@client_options
def describe(name: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show where the logs of topic NAME start and end, where they lie in Redis, and what is configured."""
    client = Client(kafka)
    leaders = client.partitions(name)
    keys = [(name, number) for number in leaders]
    starts = client.offsets(keys, OffsetSpec.earliest)
    ends = client.offsets(keys, OffsetSpec.latest)
    config = _config(client, name)
    streams = _streams(config.pop(STREAMS).value or "") if STREAMS in config else []
    native = json.loads(config.pop(NATIVE).value or "{}") if NATIVE in config else None
    topic_id = _topic_id(client, name)
    partitions = [
        {
            "partition": number,
            "leader": leader,
            "log_start": starts.get((name, number)),
            "log_end": ends.get((name, number)),
            "stream": streams[number] if number < len(streams) else None,
        }
        | ({"records": native["records"][number]} if native is not None else {})
        for number, leader in leaders.items()
    ]
    if as_json:
        values = {key: entry.value for key, entry in config.items()}
        print_json({"topic": name, "id": topic_id, "config": values, "partitions": partitions})
        return
    click.echo(f"topic {name}  id {topic_id}")
    for key, entry in config.items():
        if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG:
            click.echo(f"  {key}={entry.value}")
    if native is not None and (unfit := sum(native.get("unfit", []))):
        click.echo(f"  careful: {unfit} entries were met whose sequence fits no offset: they are not served")
    columns = [">partition", ">leader", ">log start", ">log end", "stream"]
    print_table(columns + [">records"] * (native is not None), [list(line.values()) for line in partitions])


def _streams(text: str) -> list[str]:
    """The Redis keys, as a server tells them."""
    return list(json.loads(text)) if text.startswith("[") else text.split(",")


@topics.command(
    "adopt",
    examples="""
    headrace topics adopt --stream sensors:kitchen --topic sensors
    headrace topics adopt --stream sensors:garden --topic sensors --partition 1
    """,
)
@click.option("--stream", required=True, metavar="KEY", help="The stream's key in the server's Redis.")
@click.option("--topic", "name", required=True, metavar="T", help="The topic; it is created if it does not exist.")
@click.option(
    "--partition", type=click.IntRange(min=0), default=0, metavar="N", help="Which partition it becomes: the next one."
)
@click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Configuration of a topic that is created.")
@client_options
def adopt(stream: str, name: str, partition: int, pairs: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Make a Redis Stream that is there a partition of a native topic. The stream itself is not touched.

    Without --config nothing in it is ever trimmed, and deleting the topic leaves it where it is.
    """
    config = _pairs(pairs) | {"headrace.stream": stream, "headrace.partition": str(partition)}
    client = Client(kafka)
    topic = NewTopic(name, num_partitions=-1, replication_factor=-1, config=config)
    client.result(client.admin.create_topics([topic])[name], f"adopt stream {stream!r}")
    if as_json:
        print_json({"topic": name, "partition": partition, "stream": stream})
    else:
        click.echo(f"stream {stream} is partition {partition} of topic {name}")


@topics.command(
    "convert",
    examples="""
    headrace topics convert sensors --to native
    headrace topics convert sensors --to log
    """,
)
@click.argument("name")
@click.option("--to", "storage", type=click.Choice(["log", "native"]), required=True, help="Where it moves to.")
@click.option("--timeout", type=click.IntRange(min=1), default=3_600, metavar="S", help="Seconds to wait (3600).")
@client_options
def convert(name: str, storage: str, timeout: int, kafka: KafkaServer, as_json: bool) -> None:
    """Move topic NAME between record batches (log) and plain Redis Streams (native), with all its records in order.

    OFFSETS CHANGE: positions of groups are carried over, offsets that somebody has written down elsewhere are not.
    Groups must have no members; producers may go on, and are held up for the last moment only.
    """
    client = Client(kafka)
    topic = NewTopic(name, num_partitions=-1, replication_factor=-1, config={"headrace.convert": storage})
    future = client.admin.create_topics([topic], request_timeout=timeout)[name]
    with client.explained(f"convert topic {name!r}"):
        future.result(timeout=timeout)
    if as_json:
        print_json({"topic": name, "storage": storage})
    else:
        click.echo(f"topic {name} has headrace.storage={storage} from now on; its offsets have changed")


def _config(client: Client, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = client.admin.describe_configs([resource])[resource]
    entries: dict[str, ConfigEntry] = client.result(described, f"read the configuration of {name!r}")
    return dict(sorted(entries.items()))


def _topic_id(client: Client, name: str) -> str | None:
    """The topic's id as a UUID; None from a broker too old to have one."""
    future = client.admin.describe_topics(TopicCollection([name]))[name]
    found = str(client.result(future, f"describe topic {name!r}").topic_id)
    topic_id = UUID(bytes=base64.urlsafe_b64decode(found + "=="))
    return str(topic_id) if topic_id.int else None


@topics.command(
    "delete",
    examples="""
    headrace topics delete flights
    headrace topics delete flights clicks --yes
    """,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask; nobody is asked either when standard input is no terminal.")
@client_options
def delete(names: tuple[str, ...], yes: bool, kafka: KafkaServer, as_json: bool) -> None:
    """Delete topics with all their records."""
    client = Client(kafka)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {', '.join(names)} with all records, at {kafka}?", abort=True)
    for name, future in client.admin.delete_topics(list(names)).items():
        client.result(future, f"delete topic {name!r}")
        if not as_json:
            click.echo(f"deleted topic {name}")
    if as_json:
        print_json({"deleted": list(names)})
