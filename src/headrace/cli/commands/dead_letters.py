"""`headrace groups dead-letters`: list dead letters of a share group, and produce them to their topics again."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click
import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.cli.client import Client, KafkaServer, client_options, complete_groups, complete_topics
from headrace.cli.command import YES, CommandFailed, Status, TeachingGroup, confirm
from headrace.cli.newer_groups import share_offsets
from headrace.cli.output import print_json, print_table
from headrace.cli.requests import ask, check
from headrace.groups.sharing.dead_letter import Headers, Origin, origin_of, own_headers
from headrace.protocol.messages import DescribeConfigsRequest
from headrace.text.escaping import quoted

_GROUP = 32
"""Resource type of a group's configuration."""
_VERSION = 1
_KEY = "errors.deadletterqueue.topic.name"
_PROGRESS = "headrace-redriven-"
"""Prefix of the group whose committed offsets record what was redriven."""
_AT_ONCE = 500
_SILENCE_S = 10.0
_LONGEST = 60
_MOST_NAMED = 5


class DeadLetter(msgspec.Struct, frozen=True):
    """A record in a dead letter topic."""

    partition: int
    offset: int
    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def has_record(self) -> bool:
        """Whether it is more than an origin."""
        return self.key is not None or self.value is not None


@click.group("dead-letters", cls=TeachingGroup)
def dead_letters() -> None:
    """List and redrive dead letters of a share group."""


def _options(function: click.decorators.FC) -> click.decorators.FC:
    click.option("--max", "-n", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")(function)
    return click.option(
        "--topic",
        metavar="T",
        shell_complete=complete_topics,
        help="Dead letter topic (default: the one in the group's configuration).",
    )(function)


@dead_letters.command(
    "list",
    examples="""
    headrace groups dead-letters list billing
    headrace groups dead-letters list billing --all --json | jq '.[].origin.message'
    """,
)
@click.argument("group", shell_complete=complete_groups)
@click.option("--all", "redriven", is_flag=True, help="Include dead letters that were redriven.")
@_options
@client_options
def list_(group: str, redriven: bool, most: int | None, topic: str | None, kafka: KafkaServer, as_json: bool) -> None:
    """List the dead letters of GROUP that were not redriven, with the origin of each record."""
    client = Client(kafka)
    reader = _Reader(client, group, topic or _topic_of(kafka, group))
    with reader.opened(from_start=redriven):
        found = [letter for letters in reader.read() for letter in letters][:most]
    if as_json:
        print_json([_as_json(letter) for letter in found])
        return
    columns = ["topic", ">partition", ">offset", ">deliveries", "key", "reason"]
    print_table(columns, [_cells(letter) for letter in found])


@dead_letters.command(
    "redrive",
    examples="""
    headrace groups dead-letters redrive billing
    headrace groups dead-letters redrive billing -n 10 --yes
    """,
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="T",
    shell_complete=complete_topics,
    help="Only records of this topic. Repeatable (default: all topics that the group reads).",
)
@_options
@YES
@client_options
def redrive(
    group: str,
    origins: tuple[str, ...],
    most: int | None,
    topic: str | None,
    yes: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Produce the dead letters of GROUP to their topics again, each to its partition.

    A dead letter names its topic, and a client that may write to the dead letter topic can name any topic. Therefore
    the command produces only to topics that GROUP reads, or that you name with --origin.

    All groups of these topics get the records again. The dead letters stay in their topic. The committed offsets of the
    group headrace-redriven-GROUP record which were redriven. After a failure, some may be produced twice.
    """
    client = Client(kafka)
    place = topic or _topic_of(kafka, group)
    topics = set(origins) or {each.topic for each in share_offsets(kafka, group)}
    if not topics:
        raise CommandFailed(
            f"group {quoted(group)} reads no topics: name the topics of the records with --origin", Status.MISSING
        )
    shown = ", ".join(map(quoted, sorted(topics)))
    confirm(
        f"Produce the dead letters of group {quoted(group)} in topic {quoted(place)} to {shown} again, at {kafka}?", yes
    )
    reader, sender = _Reader(client, group, place), _Sender(client)
    others: dict[str, None] = {}
    skipped = 0
    with reader.opened(from_start=False):
        for found in reader.read():
            letters = [letter for letter in found if letter.origin.topic in topics]
            others.update(dict.fromkeys(letter.origin.topic for letter in found if letter.origin.topic not in topics))
            skipped += len(found) - len(letters)
            some = letters if most is None else letters[: most - sender.sent - sender.missing]
            sender.send(some)
            reader.commit(some, whole=len(some) == len(letters))
            if most is not None and sender.sent + sender.missing >= most:
                break
    if as_json:
        print_json({"redriven": sender.sent, "missing": sender.missing, "skipped": skipped})
        return
    click.echo(f"{sender.sent:,} redriven")
    if sender.missing:
        click.echo(f"{sender.missing:,} not redriven: their topics no longer have these records")
    if skipped:
        named = ", ".join(map(quoted, sorted(others)[:_MOST_NAMED]))
        click.echo(f"{skipped:,} skipped: they name other topics, such as {named}")


def _topic_of(kafka: KafkaServer, group: str) -> str:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_GROUP, resource_name=group, configuration_keys=[_KEY]
    )
    what = f"read the configuration of group {quoted(group)}"
    [result] = ask(kafka, DescribeConfigsRequest(resources=[asked]), _VERSION, what).results
    check(result.error_code, result.error_message, what)
    name = next((entry.value for entry in result.configs if entry.name == _KEY), None)
    if not name:
        raise CommandFailed(
            f"group {quoted(group)} has no dead letter topic: set its {_KEY}, or name the topic with --topic",
            Status.MISSING,
        )
    return str(name)


class _Reader:
    """Reads the dead letters of one group."""

    def __init__(self, client: Client, group: str, topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._left: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._consumer: Consumer

    @contextmanager
    def opened(self, *, from_start: bool) -> Iterator[None]:
        """Read from the committed offsets, or from the start, to the present end."""
        client, topic = self._client, self._topic
        places = [(topic, number) for number in client.partitions(topic)]
        starts = client.offsets(places, OffsetSpec.earliest)
        ends = client.offsets(places, OffsetSpec.latest)
        self._consumer = client.consumer(
            lambda _: None, group_id=_PROGRESS + self._group, enable_auto_commit=False, enable_partition_eof=True
        )
        try:
            with client.explained(f"read topic {quoted(topic)}"):
                committed = self._consumer.committed([TopicPartition(*place) for place in places], _SILENCE_S)
                for each in committed:
                    place = (topic, each.partition)
                    start = starts[place] if from_start else max(starts[place], each.offset)
                    if start < ends[place]:
                        self._next[each.partition], self._left[each.partition] = start, ends[place]
                self._consumer.assign([TopicPartition(topic, number, start) for number, start in self._next.items()])
                yield
        finally:
            self._consumer.close()

    def read(self) -> Iterator[list[DeadLetter]]:
        """Yield the dead letters in pieces."""
        heard_at = time.monotonic()
        while self._left:
            # The library waits until it has all of them.
            messages = self._consumer.consume(_AT_ONCE, 0.1)
            if not messages:
                if time.monotonic() - heard_at > _SILENCE_S:
                    raise CommandFailed(f"topic {quoted(self._topic)} was not read to its end", Status.UNREACHABLE)
                continue
            heard_at = time.monotonic()
            yield [letter for message in messages if (letter := self._taken(message)) is not None]

    def commit(self, done: list[DeadLetter], *, whole: bool) -> None:
        """Commit what was redriven: everything read, or these only."""
        following = dict(self._next) if whole else {each.partition: each.offset + 1 for each in done}
        if following:
            offsets = [TopicPartition(self._topic, number, offset) for number, offset in following.items()]
            with self._client.explained("commit what was redriven"):
                self._consumer.commit(offsets=offsets, asynchronous=False)

    def _taken(self, message: Message) -> DeadLetter | None:
        error, partition = message.error(), message.partition() or 0
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            self._left.pop(partition, None)
            return None
        offset = message.offset() or 0
        if partition not in self._left:
            return None
        self._next[partition] = offset + 1
        if offset + 1 >= self._left[partition]:
            del self._left[partition]
        headers = _headers(message)
        origin = origin_of(headers)
        if origin is None or origin.group != self._group:
            return None
        return DeadLetter(partition, offset, origin, message.key(), message.value(), own_headers(headers))


class _Sender:
    """Produces records to their original topics."""

    def __init__(self, client: Client) -> None:
        self.sent = 0
        self.missing = 0
        """Dead letters without a record, whose topics no longer have it."""
        self._client = client
        self._producer: Producer = client.producer(lambda _: None, message_timeout_ms=30_000, enable_idempotence=True)
        self._failure: KafkaError | None = None

    def send(self, letters: list[DeadLetter]) -> None:
        """Send records and wait until all are stored. Raise CommandFailed."""
        for letter in letters:
            record = letter if letter.has_record else self._source(letter)
            if record is None:
                self.missing += 1
                continue
            origin = letter.origin
            with self._client.explained(f"produce to topic {quoted(origin.topic)}"):
                self._producer.produce(
                    origin.topic,
                    record.value,
                    record.key,
                    origin.partition,
                    headers=list(record.headers),
                    on_delivery=self._done,
                )
        self._producer.flush(40)
        if self._failure is not None:
            raise self._client.failure("produce the dead letters again", self._failure)

    def _done(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.sent += 1
        else:
            self._failure = self._failure or error

    def _source(self, letter: DeadLetter) -> DeadLetter | None:
        """Return the record from its own topic. None: it was deleted."""
        origin = letter.origin
        consumer = self._client.consumer(lambda _: None, group_id="headrace-redrive", enable_partition_eof=True)
        try:
            consumer.assign([TopicPartition(origin.topic, origin.partition, origin.offset)])
            message = consumer.poll(_SILENCE_S)
        finally:
            consumer.close()
        if message is None or message.error() is not None or message.offset() != origin.offset:
            return None
        return msgspec.structs.replace(
            letter, key=message.key(), value=message.value(), headers=own_headers(_headers(message))
        )


def _headers(message: Message) -> Headers:
    given: Iterable[tuple[str, bytes | None]] = message.headers() or ()  # type: ignore[assignment]  # its types say str
    return list(given)


def _cells(letter: DeadLetter) -> list[object]:
    origin = letter.origin
    key = None if letter.key is None else letter.key.decode(errors="backslashreplace")[:_LONGEST]
    return [origin.topic, origin.partition, origin.offset, origin.delivery_count, key, origin.message]


def _as_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "origin": letter.origin._asdict(),
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "value": None if letter.value is None else letter.value.decode(errors="backslashreplace"),
    }
