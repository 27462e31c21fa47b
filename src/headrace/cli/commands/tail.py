"""`headrace records tail`: show records as they arrive."""

import re
import sys
import time
from collections.abc import Callable
from operator import methodcaller
from typing import cast

import click
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from headrace.cli import record_lines
from headrace.cli.client import Client, KafkaServer, client_options, complete_topics
from headrace.cli.command import CommandFailed, Status, command
from headrace.text import times
from headrace.text.escaping import quoted, shown

_AT_ONCE = 1_000
_SHOWN = 1_000
"""Maximum characters of a key or value on a terminal; pipes, files and --format are not limited."""
_QUIET_S = 5
"""Seconds without records before checking that the topic still exists."""
_PATIENCE_S = 30
"""Seconds that a command with a defined end waits for a lost server."""
_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


@command(
    "tail",
    examples="""
    headrace records tail flights
    headrace records tail flights --from-beginning -n 5
    headrace records tail flights --since 10m --key AA
    headrace records tail flights --offset -3 --exit
    headrace records tail flights --from-beginning --exit --format '%p/%o %k: %v\\n'
    headrace records tail flights --partition 0 --from-beginning --exit --json | jq .value
    headrace records tail flights --isolation read_uncommitted
    """,
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--from-beginning", is_flag=True, help="Start at the oldest record (default: only new records).")
@click.option(
    "--offset",
    "-o",
    metavar="N",
    help="Start offset: earliest, latest, an offset, -N for the last N of each partition, or +N for N after its start.",
)
@click.option("--since", metavar="TIME", help="Start at a time: 10m, 2h, 2026-11-22T06:00, @1700000000000.")
@click.option(
    "--partition",
    "-p",
    "only",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition. Repeatable.",
)
@click.option("--key", "-k", metavar="TEXT", help="Only records with this key.")
@click.option("--max", "-n", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--exit", "-e", "--end", "to_end", is_flag=True, help="Stop at the end offset of the start.")
@click.option(
    "--isolation",
    type=click.Choice([*_ISOLATION]),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out records of aborted transactions, and ends before the oldest open transaction. "
    "read_uncommitted shows all records.",
)
@click.option(
    "--format",
    "-f",
    "template",
    metavar="TEXT",
    help=f"Print each record so: {record_lines.describe()}; \\n is a line end, and only what is written is printed.",
)
@client_options
def tail(
    topic: str,
    from_beginning: bool,
    offset: str | None,
    since: str | None,
    only: tuple[int, ...],
    key: str | None,
    most: int | None,
    to_end: bool,
    isolation: str,
    template: str | None,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Show new records of TOPIC until Ctrl-C. Joins no group and commits nothing.

    The end of each transaction takes an offset. So -N may show fewer than N records.
    """
    at_most_one(from_beginning=from_beginning, offset=offset, since=since)
    printer = _printer(template, as_json)
    client = Client(kafka)
    log = Range(client, topic, only, _ISOLATION[isolation])
    starts = log.starts if from_beginning else log.at(offset, since)
    view = _View(client, topic, printer, most, key)
    if to_end:
        view.left = {number: end for number, end in log.ends.items() if starts[number] < end}
        starts = {number: starts[number] for number in view.left}
    # Assigned, not subscribed. librdkafka requires a group anyway and looks for its coordinator.
    consumer = client.consumer(
        view.heard,
        group_id="headrace-tail",
        enable_auto_commit=False,
        enable_partition_eof=to_end,
        isolation_level=isolation,
    )
    consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
    try:
        with client.explained(f"read topic {quoted(topic)}"):
            view.show(consumer)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end.
        return
    finally:
        consumer.close()


def _printer(template: str | None, as_json: bool) -> "Printer":
    if template is not None and as_json:
        raise click.UsageError("--format and --json exclude each other: give one of them")
    try:
        return Printer(None if template is None else record_lines.compile_format(template), as_json)
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None


class Printer:
    """Writes records to standard output in the requested form."""

    def __init__(self, template: record_lines.Placeholder | None, as_json: bool) -> None:
        self._template = template
        self._as_json = as_json
        self._is_terminal = sys.stdout.isatty()

    def print(self, messages: list[Message]) -> None:
        """Write and flush the messages."""
        if self._template is None:
            click.echo("\n".join(map(self._line, messages)))
            return
        filled = b"".join(self._template(*_place(message), _record(message)) for message in messages)
        # Programs get the bytes; terminals get escaped text.
        click.echo(record_lines.for_terminal(filled) if self._is_terminal else filled, nl=False)

    def _line(self, message: Message) -> str:
        topic, partition, offset = _place(message)
        record = _record(message)
        if self._as_json:
            return record_lines.write_json(topic, partition, offset, record)
        return record_lines.write_text(partition, offset, record, _SHOWN if self._is_terminal else None)


class _View:
    def __init__(self, client: Client, topic: str, printer: Printer, most: int | None, key: str | None) -> None:
        self.left: dict[int, int] | None = None
        """Partition -> end offset of unfinished partitions; None: continue forever."""
        self._client = client
        self._topic = topic
        self._printer = printer
        self._most = most
        self._key = None if key is None else key.encode("utf-8", "surrogateescape")
        self._away_since: float | None = None
        self._looked_at = time.monotonic()

    def heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._away_since is None:
            self._away_since = time.monotonic()
            text = f"headrace: {self._client.address} no longer responds; waiting for it (Ctrl-C ends)"
            click.echo(text, err=True)

    def show(self, consumer: Consumer) -> None:
        shown = 0
        while (self.left is None or self.left) and (self._most is None or shown < self._most):
            # Ctrl-C is only noticed between two calls.
            messages = [message for message in consumer.consume(_AT_ONCE, 0.2) if not _is_about_a_group(message)]
            self._wait_no_longer_than_told(bool(messages))
            self._look_for_topic(consumer, bool(messages))
            chosen = [message for message in messages if self._is_wanted(message)]
            chosen = chosen if self._most is None else chosen[: self._most - shown]
            if chosen:
                self._printer.print(chosen)
                shown += len(chosen)

    def _look_for_topic(self, consumer: Consumer, has_answered: bool) -> None:
        """Raise an error if the topic was deleted: the client library would wait forever."""
        if has_answered:
            self._looked_at = time.monotonic()
        if time.monotonic() - self._looked_at < _QUIET_S or self._away_since is not None:
            return
        self._looked_at = time.monotonic()
        try:
            # A consumer's metadata request creates no topic, unlike a producer's.
            found = consumer.list_topics(self._topic, timeout=_QUIET_S).topics[self._topic].error
        except KafkaException:
            return
        if found is not None and found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(found)

    def _wait_no_longer_than_told(self, has_answered: bool) -> None:
        if has_answered:
            self._away_since = None
            return
        if self.left is None or self._away_since is None:
            return
        if time.monotonic() - self._away_since > _PATIENCE_S:
            raise CommandFailed(
                f"{self._client.address} has not answered for {_PATIENCE_S} s: not every record was shown",
                Status.UNREACHABLE,
            )

    def _is_wanted(self, message: Message) -> bool:
        """Return whether to show a message, and finish partitions at their ends.

        The end is a separate event because Kafka's last offsets may hold no record.
        """
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if self.left is not None:
            _, partition, offset = _place(message)
            end = self.left.get(partition, 0)
            if error is not None or offset + 1 >= end:
                self.left.pop(partition, None)
            if offset >= end:
                return False
        return error is None and (self._key is None or message.key() == self._key)


def _is_about_a_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _record(message: Message) -> record_lines.Record:
    kind, timestamp = message.timestamp()
    return record_lines.Record(
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )


# For an invalid UTF-8 name, the client library sets an exception but returns a result. An optimized plain call ignores
# it, and the next operation fails.
_read_headers = methodcaller("headers")


def _headers(message: Message) -> record_lines.Headers | None:
    try:
        return tuple(cast("list[tuple[str, bytes | None]]", _read_headers(message) or []))
    except (SystemError, UnicodeDecodeError):
        return None


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


_EARLIEST = {"earliest", "start", "beginning"}
_LATEST = {"latest", "end"}
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<count>[0-9]{1,19})")


class Range:
    """Offsets of a topic's selected partitions, and the start of the read."""

    def __init__(
        self,
        client: Client,
        topic: str,
        only: tuple[int, ...],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        """Look up the partitions. For committed records, they end at their last stable offsets."""
        there = client.partitions(topic)
        for number in only:
            if number not in there:
                raise client.no_partition(topic, number, there)
        self._client = client
        self._isolation = isolation
        self._places = [(topic, number) for number in dict.fromkeys(only or there)]
        self.starts = self._look(OffsetSpec.earliest)
        self.ends = self._look(OffsetSpec.latest)
        if not len(self.starts) == len(self.ends) == len(self._places):
            # It was just deleted.
            raise client.no_topic(topic, client.metadata.topics.keys() - {topic})

    def _look(self, spec: Callable[[], OffsetSpec]) -> dict[int, int]:
        found = self._client.offsets(self._places, spec, isolation=self._isolation)
        return {number: offset for (_, number), offset in found.items()}

    def at(self, offset: str | None, since: str | None) -> dict[int, int]:
        """Return partition -> starting offset within the log. Raise CommandFailed.

        `offset` is `earliest`, `latest`, an offset, `-N` for N before the end, or `+N` for N after the start. `since`
        is a readable time, for the first record at or after it.
        """
        if since is not None:
            return self._since(since)
        if offset is None or offset in _LATEST:
            return dict(self.ends)
        if offset in _EARLIEST:
            return dict(self.starts)
        number = _NUMBER.fullmatch(offset)
        if number is None:
            raise CommandFailed(
                f"--offset {shown(offset)}: expected earliest, latest, an offset, -N for the last N of each partition "
                "or +N for N after its start",
                Status.USAGE,
            )
        count = int(number["count"])
        if number["sign"] == "-":
            return {part: max(start, self.ends[part] - count) for part, start in self.starts.items()}
        origins = self.starts if number["sign"] == "+" else dict.fromkeys(self.starts, 0)
        return {part: min(max(start, origins[part] + count), self.ends[part]) for part, start in self.starts.items()}

    def _since(self, text: str) -> dict[int, int]:
        try:
            moment = times.instant(text, round(time.time() * 1000))
        except ValueError as error:
            raise CommandFailed(f"--since: {error}", Status.USAGE) from None
        found = self._look(lambda: OffsetSpec.for_timestamp(moment))
        return {part: end if found.get(part, -1) < 0 else found[part] for part, end in self.ends.items()}


def at_most_one(**flags: object) -> None:
    """Raise a usage error for more than one of these flags."""
    given = [f"{'-' if len(name) == 1 else '--'}{name.replace('_', '-')}" for name, value in flags.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: give one of them")
