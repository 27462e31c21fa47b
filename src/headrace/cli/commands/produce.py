"""`headrace records produce`: send lines or files as records."""

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli import record_lines
from headrace.cli.client import Client, KafkaServer, client_options, complete_topics
from headrace.cli.command import LOST, CommandFailed, Status, command, exit_status, sentence
from headrace.cli.output import print_json
from headrace.text.escaping import quoted, shown
from headrace.topics.config_keys import suggestion

_SILENCE_S = 5
"""Seconds without an acknowledgement before a server with open connections counts as silent."""
_CREATION_S = 5
_UNEXPLAINED = LOST | {
    *(KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL),
    *(KafkaError._MSG_TIMED_OUT, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.POLICY_VIOLATION),
    *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
}
"""Codes for which the server is asked."""
_INIT_PRODUCER_ID = 22
_MOST_BYTES = 100 * 1024 * 1024
"""Maximum bytes of a record in the client library; a topic may allow less."""


class Input(msgspec.Struct, frozen=True):
    """How to read records."""

    files: tuple[Path, ...]
    """None or `-`: standard input."""
    whole: bool
    """Whether each file is one record, instead of each line."""
    as_json: bool
    key_separator: bytes | None
    key: bytes | None
    headers: record_lines.Headers


class Unreadable(CommandFailed):
    """A file is unreadable or a line is no record. Earlier records are sent."""


class Sending:
    """Sends and counts records, and reports when the server is lost and back."""

    def __init__(self, client: Client, topic: str, partition: int | None, compression: str, patience_s: float) -> None:
        self.delivered = 0
        self.failed = 0
        self.first: KafkaError | None = None
        """Reason of the first failure."""
        self._failed_partition = 0
        self._client = client
        self._topic = topic
        self._place = -1 if partition is None else partition
        self._patience_s = patience_s
        self._is_away = False
        self._heard_at = time.monotonic()
        self._producer: Producer = client.producer(
            self._heard,
            **_idempotence(client),
            compression_type=compression,
            linger_ms=5,
            message_timeout_ms=round(1000 * patience_s),
            message_max_bytes=_MOST_BYTES,
        )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Poll the server while nothing is sent."""
        stop = threading.Event()

        def poll() -> None:
            while not stop.is_set():
                self._serve(lambda: self._producer.poll(0.1))
                self._listen_to_silence()

        thread = threading.Thread(target=poll, name="poll", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def send(self, record: record_lines.Record) -> None:
        """Queue a record, waiting for room. Raise KafkaException for a rejected one."""
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    self._place,
                    on_delivery=self._done,
                    timestamp=record.timestamp or 0,
                    headers=list(record.headers or ()),
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def finish(self) -> None:
        """Wait until every record is acknowledged or given up."""
        while len(self._producer):
            self._serve(lambda: self._producer.flush(0.2))

    def _serve(self, serve: Callable[[], object]) -> None:
        """Run callbacks. A fatal error fails all waiting records, each with its own callback."""
        try:
            serve()
        except KafkaException as error:
            self.first = error.args[0]

    @property
    def waiting(self) -> int:
        """Return the number of unacknowledged records."""
        return len(self._producer)

    def reason(self) -> tuple[str, Status]:
        """Return the reason of the first failure, and the exit status."""
        assert self.first is not None
        return self._why(self.first)

    def _why(self, error: KafkaError) -> tuple[str, Status]:
        if error.code() in _UNEXPLAINED:
            return self._client.write_failure(self._topic, self._failed_partition, error)
        return sentence(error), exit_status(error)

    def rejected(self, error: KafkaError) -> CommandFailed:
        """Return the error for records that the client library does not send."""
        why, status = self._why(error)
        return CommandFailed(f"cannot send to topic {quoted(self._topic)}: {why}", status)

    def _listen_to_silence(self) -> None:
        if not self.waiting:
            self._heard_at = time.monotonic()
        elif time.monotonic() - self._heard_at > _SILENCE_S and not self._is_away:
            silent = KafkaError(KafkaError._TIMED_OUT)
            why, _ = self._client.write_failure(self._topic, self._place, silent)
            if why == sentence(silent):
                self._report_unreachable(f"has acknowledged nothing for {_SILENCE_S} s")
            else:
                self._report_unreachable(f"does not accept the records: {why}")

    def _done(self, error: KafkaError | None, message: Message) -> None:
        self._heard_at = time.monotonic()
        if error is not None:
            self.failed += 1
            if self.first is None:
                self.first, self._failed_partition = error, message.partition() or 0
            return
        self.delivered += 1
        if self._is_away:
            self._is_away = False
            click.echo(f"headrace: {self._client.address} answers again", err=True)

    def _heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._report_unreachable("no longer responds")

    def _report_unreachable(self, how: str) -> None:
        if self._is_away:
            return
        self._is_away = True
        tried = f"a record is tried for {self._patience_s:g} s (Ctrl-C ends)"
        click.echo(f"headrace: {self._client.address} {how}; {tried}", err=True)


def _idempotence(client: Client) -> dict[str, object]:
    """Return an idempotent producer's settings unless the server lacks it, as with oci.kafka=strict.

    Without it, one request at a time keeps the order, but a lost answer may duplicate records.
    """
    if client.lacks(_INIT_PRODUCER_ID):
        return {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
    return {"enable_idempotence": True}


@command(
    "produce",
    examples="""
    echo 'hello' | headrace records produce greetings
    printf 'k1:one\\nk2:two\\n' | headrace records produce greetings --key-separator :
    headrace records produce greetings monday.txt tuesday.txt --header source=files
    headrace records produce pictures --whole --key cat cat.jpg
    echo '{"key": "k", "value": {"a": 1}, "headers": {"h": "x"}}' | headrace records produce greetings --json
    headrace records tail a --from-beginning --exit --json | headrace records produce b --json
    """,
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--whole", is_flag=True, help="Send each FILE, or all of standard input, as one record.")
@click.option("--key", "-k", metavar="TEXT", help="Key of every record.")
@click.option(
    "--key-separator", metavar="TEXT", help="Text between key and value in each line (default: the line is the value)."
)
@click.option(
    "--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Header of every record. Repeatable."
)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Partition of all records.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    help="Compression of batches (default: none).",
)
@click.option(
    "--timeout",
    "patience",
    type=click.FloatRange(min=0.1, max=86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time of retries for a record.",
)
@client_options
def produce(
    topic: str,
    files: tuple[Path, ...],
    whole: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    patience: float,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Send each line of the FILEs, or of standard input, to TOPIC as a record.

    With --json, lines are JSON objects with key, value, headers and timestamp. A topic that is not there is created if
    the server does so, and the command reports it. Ends when every record is acknowledged.
    """
    given = _checked(files, whole, as_json, key, key_separator, headers)
    client = Client(kafka)
    if topic in client.metadata.topics and partition is not None:
        there = client.metadata.topics[topic].partitions
        if partition not in there:
            raise client.no_partition(topic, partition, there)
    sending = Sending(client, topic, partition, compression, patience)
    try:
        _send_all(client, topic, sending, given)
    except KeyboardInterrupt:
        click.echo(
            f"headrace: interrupted: {sending.delivered} records acknowledged, {sending.waiting} not yet", err=True
        )
        raise
    if sending.first is not None:
        why, status = sending.reason()
        tried = sending.failed + sending.delivered
        raise CommandFailed(f"{sending.failed} of {tried} records were not taken by {quoted(topic)}: {why}", status)
    if as_json:
        print_json({"topic": topic, "records": sending.delivered})
    else:
        click.echo(f"{_many(sending.delivered)} sent to {shown(topic)}")


def _checked(
    files: tuple[Path, ...],
    whole: bool,
    as_json: bool,
    key: str | None,
    key_separator: str | None,
    headers: Sequence[str],
) -> Input:
    if key_separator == "":
        raise CommandFailed("--key-separator: expected at least one character, such as :", Status.USAGE)
    if as_json and (key_separator is not None or key is not None):
        flag = "--key" if key_separator is None else "--key-separator"
        raise CommandFailed(f"{flag} is for plain lines: a JSON line has its key in it", Status.USAGE)
    if key is not None and key_separator is not None:
        raise CommandFailed("--key and --key-separator both name a key: give one of them", Status.USAGE)
    if whole and (as_json or key_separator is not None):
        flag = "--json" if as_json else "--key-separator"
        raise CommandFailed(f"--whole takes files as they are, and {flag} their lines: give one of them", Status.USAGE)
    pairs: list[tuple[str, bytes | None]] = []
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--header {shown(text)}: expected NAME=VALUE", Status.USAGE)
        pairs.append((name, value.encode("utf-8", "surrogateescape")))
    return Input(
        files=files,
        whole=whole,
        as_json=as_json,
        key_separator=None if key_separator is None else key_separator.encode("utf-8", "surrogateescape"),
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        headers=tuple(pairs),
    )


def _send_all(client: Client, topic: str, sending: Sending, given: Input) -> None:
    is_there = topic in client.metadata.topics
    with sending.listening():
        try:
            for record in _records(given):
                if not is_there:
                    _create(client, topic)
                    is_there = True
                sending.send(record)
        except Unreadable as error:
            sending.finish()
            told, status = _told(sending)
            raise CommandFailed(f"{error}; {told}", error.status if status is None else status) from None
        except KafkaException as error:
            raise sending.rejected(error.args[0]) from None
        sending.finish()


def _told(sending: Sending) -> tuple[str, Status | None]:
    tried = sending.delivered + sending.failed
    if sending.first is None:
        return f"{_many(tried)} before it {_were(tried)} sent" if tried else "nothing was sent", None
    sent = f", {sending.delivered} {_were(sending.delivered)} sent" if sending.delivered else ""
    why, status = sending.reason()
    return f"{sending.failed} of {_many(tried)} before it {_were(sending.failed)} not taken ({why}){sent}", status


def _were(records: int) -> str:
    return "was" if records == 1 else "were"


def _many(records: int) -> str:
    return f"{records} record{'s' * (records != 1)}"


def _create(client: Client, topic: str) -> None:
    """Let the server auto-create the topic and report it. Raise CommandFailed."""
    there = client.metadata.topics
    deadline = time.monotonic() + _CREATION_S
    while True:
        # Metadata for the topic auto-creates it; some brokers need a moment.
        found = client.admin.list_topics(topic, timeout=_CREATION_S).topics[topic]
        if found.error is None:
            break
        if found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART and found.error.code() not in _NOT_YET:
            if found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                why, status = client.write_failure(topic, 0, found.error)
                if status is Status.REFUSED:
                    raise CommandFailed(f"cannot send to topic {quoted(topic)}: {why}", status)
            raise client.failure(f"create topic {quoted(topic)}", found.error)
        if time.monotonic() > deadline:
            hint = suggestion(topic, there) or f"`headrace topics create {shlex.quote(shown(topic))}` creates it"
            raise CommandFailed(
                f"no topic {quoted(topic)} at {client.address}, which creates none by itself; {shown(hint)}",
                Status.MISSING,
            )
        time.sleep(0.1)
    near = suggestion(topic, there)
    hint = f"; {shown(near)} `headrace topics delete {shlex.quote(shown(topic))}` takes it back" if near else ""
    many = len(found.partitions)
    click.echo(f"headrace: created topic {shown(topic)} with {many} partition{'s' * (many > 1)}{hint}", err=True)


_NOT_YET = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}


def _records(given: Input) -> Iterator[record_lines.Record]:
    for path in given.files:
        if str(path) != "-" and not path.exists():
            raise CommandFailed(f"no file {quoted(path)}; nothing was sent")
    for path in given.files or (Path("-"),):
        if str(path) == "-":
            yield from _of_file(sys.stdin.buffer, "the input", given)
            continue
        try:
            with path.open("rb") as file:
                yield from _of_file(file, quoted(path), given)
        except OSError as error:
            raise Unreadable(f"cannot read {quoted(path)}: {error.strerror}") from None


def _of_file(file: BinaryIO, name: str, given: Input) -> Iterator[record_lines.Record]:
    if given.whole:
        yield record_lines.Record(key=given.key, value=file.read(), headers=given.headers)
        return
    for number, line in enumerate(file, 1):
        text = line.removesuffix(b"\n")
        if given.as_json and not text.strip():
            continue
        try:
            record = (
                record_lines.read_json(text) if given.as_json else record_lines.read_text(text, given.key_separator)
            )
        except record_lines.BadLine as error:
            raise Unreadable(f"line {number} of {name}: {error}") from None
        yield msgspec.structs.replace(
            record,
            key=record.key if given.key is None else given.key,
            headers=(*(record.headers or ()), *given.headers),
        )
