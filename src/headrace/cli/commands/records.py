"""`headrace records`: send, show and delete (`trim`) records."""

import click
from confluent_kafka import TopicPartition

from headrace.cli.client import Client, KafkaServer, client_options, complete_topics, in_pieces
from headrace.cli.command import YES, TeachingGroup, command, confirm
from headrace.cli.commands.produce import produce
from headrace.cli.commands.tail import Range, at_most_one, tail
from headrace.cli.output import print_json, print_table
from headrace.text.escaping import quoted


@command(
    "trim",
    examples="""
    headrace records trim flights --since 7d
    headrace records trim flights --offset 1000 --partition 0 --yes
    headrace records trim flights --offset latest --yes
    """,
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--offset", metavar="N", help="First offset to keep: an offset, -N for the last N, or latest to keep none."
)
@click.option("--since", metavar="TIME", help="Keep records from this time on: 7d, 2026-11-22T06:00.")
@click.option("-n", "last", type=click.IntRange(min=0), metavar="N", help="Keep the last N of each partition.")
@click.option(
    "--partition",
    "only",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition. Repeatable.",
)
@YES
@client_options
def trim(
    topic: str,
    offset: str | None,
    since: str | None,
    last: int | None,
    only: tuple[int, ...],
    yes: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Delete the oldest records of TOPIC permanently. Offsets of native topics have gaps: -N counts offsets there."""
    at_most_one(offset=offset, since=since, n=last is not None)
    if offset is None and since is None and last is None:
        raise click.UsageError("give --offset, --since or -n: which records are to stay?")
    client = Client(kafka)
    log = Range(client, topic, only)
    keep = log.at(offset if last is None else f"-{last}", since)
    moved = {number: start for number, start in keep.items() if start > log.starts[number]}
    if moved:
        many = sum(start - log.starts[number] for number, start in moved.items())
        confirm(f"Delete {many:,} offsets of topic {quoted(topic)}, at {kafka}?", yes)
    answer = {number: log.starts[number] for number in keep} | _delete(client, topic, moved)
    rows = [
        {"partition": number, "log_start_before": log.starts[number], "log_start": now, "log_end": log.ends[number]}
        for number, now in sorted(answer.items())
    ]
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        columns = [">partition", ">log start offset before", ">log start offset", ">log end offset"]
        print_table(columns, [list(row.values()) for row in rows])


def _delete(client: Client, topic: str, before: dict[int, int]) -> dict[int, int]:
    wanted = [TopicPartition(topic, number, offset) for number, offset in before.items()]
    return {
        part.partition: client.result(future, f"trim partition {part.partition} of topic {quoted(topic)}").low_watermark
        for some in in_pieces(wanted)
        for part, future in client.admin.delete_records([*some]).items()
    }


@click.group("records", cls=TeachingGroup)
def records() -> None:
    """Produce, show and delete records."""


for each in (produce, tail, trim):
    records.add_command(each)
