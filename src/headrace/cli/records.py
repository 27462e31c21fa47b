"""`headrace records`: send records from standard input, and show records as they come."""

import sys
from collections.abc import Iterable, Iterator
from typing import cast

import click
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from headrace.cli import lines
from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.commands import CommandFailed, TeachingGroup
from headrace.cli.output import print_json

_AT_ONCE = 1_000


@click.group("records", cls=TeachingGroup)
def records() -> None:
    """Send records, and show them."""


class Delivery:
    """Counts what became of the records sent; called by the producer for each."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        """The producer's delivery report."""
        if error is None:
            self.delivered += 1
        else:
            self.failed.append(error)


@records.command(
    "produce",
    examples="""
    echo 'hello' | headrace records produce greetings
    printf 'k1:one\\nk2:two\\n' | headrace records produce greetings --key-separator :
    echo '{"key": "k", "value": {"a": 1}, "headers": {"h": "x"}}' | headrace records produce greetings --json
    headrace records tail a --from-beginning --end --json | headrace records produce b --json
    """,
)
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY<TEXT>VALUE (default: the line is the value).")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Send all to this partition.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    help="How batches are compressed (default: none).",
)
@client_options
def produce(
    topic: str, key_separator: str | None, partition: int | None, compression: str, kafka: KafkaServer, as_json: bool
) -> None:
    """Send each line of standard input to TOPIC as a record.

    With --json, lines are JSON objects with key, value, headers and timestamp. Ends when every record is acknowledged.
    """
    if key_separator == "":
        raise CommandFailed("--key-separator: expected at least one character, such as :", status=2)
    if as_json and key_separator is not None:
        raise CommandFailed("--key-separator is for plain lines: a JSON line has its key in it", status=2)
    client = Client(kafka)
    outcome = Delivery()
    producer = client.producer(
        enable_idempotence=True, compression_type=compression, linger_ms=5, message_timeout_ms=30_000
    )
    for record in _read(sys.stdin.buffer, key_separator, as_json):
        with client.explained(f"send to topic {topic!r}"):
            _send(producer, topic, partition, record, outcome)
    producer.flush()
    if outcome.failed:
        raise CommandFailed(
            f"{len(outcome.failed)} of {len(outcome.failed) + outcome.delivered} records were not taken by {topic!r}: "
            f"{outcome.failed[0].str()}"
        )
    if as_json:
        print_json({"topic": topic, "records": outcome.delivered})
    else:
        click.echo(f"{outcome.delivered} records sent to {topic}")


def _send(producer: Producer, topic: str, partition: int | None, record: lines.Record, outcome: Delivery) -> None:
    """Hand a record to the producer, waiting for room in its queue. Raises KafkaException when it is not taken."""
    place = -1 if partition is None else partition
    sent = False
    while not sent:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                place,
                on_delivery=outcome,
                timestamp=record.timestamp or 0,
                headers=list(record.headers),
            )
            sent = True
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


def _read(source: Iterable[bytes], key_separator: str | None, as_json: bool) -> Iterator[lines.Record]:
    """Records from lines; raises CommandFailed with the number of the line that is none."""
    separator = None if key_separator is None else key_separator.encode()
    for number, line in enumerate(source, 1):
        text = line.removesuffix(b"\n")
        if as_json and not text.strip():
            continue
        try:
            yield lines.read_json(text) if as_json else lines.read_text(text, separator)
        except lines.BadLine as error:
            raise CommandFailed(f"line {number} of the input: {error}") from None


@records.command(
    "tail",
    examples="""
    headrace records tail flights
    headrace records tail flights --from-beginning --max 5
    headrace records tail flights --partition 0 --from-beginning --end --json | jq .value
    """,
)
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start at the oldest record (default: what comes from now on).")
@click.option(
    "--partition",
    "only",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this one; repeatable.",
)
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--end", "to_end", is_flag=True, help="Stop where the log ended when the command started.")
@client_options
def tail(
    topic: str,
    from_beginning: bool,
    only: tuple[int, ...],
    most: int | None,
    to_end: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Show the records of TOPIC as they come, until Ctrl-C. Joins no group and commits nothing."""
    client = Client(kafka)
    partitions = sorted(client.partitions(topic))
    for number in only:
        if number not in partitions:
            raise CommandFailed(f"topic {topic!r} has partitions 0 to {partitions[-1]}, not {number}", status=2)
    wanted = [(topic, number) for number in only or partitions]
    ends = client.offsets(wanted, OffsetSpec.latest)
    starts = client.offsets(wanted, OffsetSpec.earliest) if from_beginning else ends
    # Assigned, not subscribed: librdkafka wants a group's name all the same, which no server gets to see.
    consumer = client.consumer(
        lambda error: _tell_silence(error, client.address),
        group_id="headrace-tail",
        enable_auto_commit=False,
        enable_partition_eof=to_end,
    )
    consumer.assign([TopicPartition(topic, number, starts[topic, number]) for _, number in wanted])
    left = {number: ends[topic, number] for _, number in wanted if starts[topic, number] < ends[topic, number]}
    try:
        with client.explained(f"read topic {topic!r}"):
            _show(consumer, most, left if to_end else None, as_json)
    except KeyboardInterrupt:
        # Ctrl-C is how this command is meant to end.
        return
    finally:
        consumer.close()


def _tell_silence(error: KafkaError, address: str) -> None:
    """Say that the server went away: the client library tries again for ever, without a word."""
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        click.echo(f"headrace: {address} does not answer any more; waiting for it (Ctrl-C ends)", err=True)


def _show(consumer: Consumer, most: int | None, left: dict[int, int] | None, as_json: bool) -> None:
    """Print records until `most` are out, or until the end offsets in `left` (partition -> offset) are reached."""
    shown = 0
    while (left is None or left) and (most is None or shown < most):
        # Short waits: Ctrl-C is noticed only between two calls.
        for message in consumer.consume(_AT_ONCE if most is None else min(_AT_ONCE, most - shown), 0.2):
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if _belongs(message, left) and error is None:
                click.echo(_line(message, as_json))
                shown += 1


def _belongs(message: Message, left: dict[int, int] | None) -> bool:
    """Whether a message lies before its partition's end in `left`; strikes out a partition that has come to its end.

    The end of a partition also shows as an event of its own: in Kafka the last offsets may hold no record.
    """
    if left is None:
        return True
    _, partition, offset = _place(message)
    end = left.get(partition, 0)
    if message.error() is not None or offset + 1 >= end:
        left.pop(partition, None)
    return offset < end


def _line(message: Message, as_json: bool) -> str:
    topic, partition, offset = _place(message)
    kind, timestamp = message.timestamp()
    record = lines.Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(cast("list[tuple[str, bytes | None]]", message.headers() or [])),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )
    if as_json:
        return lines.write_json(topic, partition, offset, record)
    return lines.write_text(partition, offset, record)


def _place(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset, which every message of a consumer has."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset
