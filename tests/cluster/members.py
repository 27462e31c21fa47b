"""Those who read while things happen: a Kafka group, a group of OCI instances, and one who reads by plain cursors.

Each keeps reading until it is stopped, and says what it was given to an audience of a `History`.
"""

import abc
import faulthandler
import itertools
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from struct import Struct
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, TopicPartition
from oci.exceptions import RequestException, ServiceError
from oci.streaming.models import CreateCursorDetails, CreateGroupCursorDetails, PutMessagesDetails
from oci.streaming.models import PutMessagesDetailsEntry as Entry
from tests.cluster.history import Audience

import oci
from headrace.testing.oci import OciClients, base64_of

NUMBER = Struct(">q")
T = TypeVar("T")
_TIMEOUT_S = (2.0, 4.0)
END_S = 300.0
"""More than any sequence of calls with their limits."""
_LIMIT = 2_000
_PAUSE_S = 0.1
"""Between requests: Oracle's client takes more of a processor for one than the server."""


class Threads(abc.ABC):
    """Some threads, from when it is made to `stop`; what one raises is raised by that."""

    def __init__(self, count: int) -> None:
        """Call it last."""
        self.stopping = threading.Event()
        self._raised: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(f"{number}",), daemon=True) for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    @abc.abstractmethod
    def work(self, name: str) -> None:
        """What a thread does until `stopping` is set."""

    def _run(self, name: str) -> None:
        try:
            self.work(name)
        except BaseException as error:
            self._raised.append(error)

    def stop(self) -> None:
        """End them. Raises what one of them raised, or AssertionError if one does not end in five minutes."""
        self.stopping.set()
        deadline = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"threads do not end:\n{self.places()}"
        for error in self._raised:
            raise error

    def places(self) -> str:
        """Where all threads of this process are: their stacks."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            return file.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class KafkaGroup(Threads):
    """A classic group of confluent-kafka's consumers."""

    def __init__(self, kafka: str, topic: str, group: str, audience: Audience, members: int = 3) -> None:
        """They begin at once."""
        self.audience = audience
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "auto.commit.interval.ms": 300,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            # Where a broker goes as a consumer starts, librdkafka 2.16 may lose the metadata that it waits for before
            # it joins, and asks again at this interval only: five minutes by default.
            "topic.metadata.refresh.interval.ms": 10_000,
            "check.crcs": True,
            "log_level": 0,
        }
        super().__init__(members)

    def work(self, name: str) -> None:
        """Poll."""
        audience, consumer = self.audience, Consumer(dict(self._settings))

        def assigned(_: Consumer, __: list[TopicPartition]) -> None:
            audience.began(name)

        consumer.subscribe([self._topic], on_assign=assigned, on_revoke=assigned, on_lost=assigned)
        try:
            while not self.stopping.is_set():
                poll(consumer, audience, name)
        finally:
            consumer.close()


def poll(consumer: Consumer, audience: Audience, name: str) -> None:
    """Report what a consumer is given within 0.1 s to an audience.

    One record at a time: `consume` calls back before it returns the records that it had found before.
    """
    deadline = time.monotonic() + 0.1
    while (left := deadline - time.monotonic()) > 0:
        message = consumer.poll(left)
        if message is None:
            return
        error = message.error()
        if error is None:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            audience.polled(name, partition, offset, NUMBER.unpack_from(value)[0])
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            audience.was_told(name, error)


class Rotating:
    """Oracle's client, each of whose requests goes to the next running broker, as with a load balancer."""

    def __init__(self, https: Callable[[], Sequence[str]], stopping: threading.Event) -> None:
        """`https`: the URLs of those that run."""
        self._https = https
        self._stopping = stopping
        self._clients: dict[str, oci.streaming.StreamClient] = {}
        self._turn = itertools.count()
        self.failed: dict[str, int] = {}
        """What was answered or happened in place of an answer -> how often."""

    def once(self, ask: Callable[[oci.streaming.StreamClient], T]) -> T | None:
        """The answer of one broker; None where there was none, or it was one that says: try again.

        Raises:
            ServiceError: it says something else.
        """
        running = self._https()
        url = running[next(self._turn) % len(running)]
        if url not in self._clients:
            self._clients[url] = OciClients(url).stream_client(timeout=_TIMEOUT_S)
        try:
            return ask(self._clients[url])
        except RequestException as error:
            name = type(error).__name__
        except ServiceError as error:
            if error.status not in {429, 503}:
                raise
            name = str(error.status)
        self.failed[name] = self.failed.get(name, 0) + 1
        self._stopping.wait(0.05)
        return None

    def again(self, ask: Callable[[oci.streaming.StreamClient], T]) -> T | None:
        """The same, tried until there is an answer; None where it is stopped before."""
        while not self._stopping.is_set():
            answer = self.once(ask)
            if answer is not None:
                return answer
        return None


class OciWriter(Threads):
    """Puts numbered messages, each once: what got no answer is not put again, and may be there or not."""

    def __init__(self, https: Callable[[], Sequence[str]], stream: str, partitions: int) -> None:
        """It begins at once."""
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.unanswered = 0
        self._https, self._stream = https, stream
        self._numbers = itertools.count()
        super().__init__(1)

    def work(self, _name: str) -> None:
        """Put."""
        client = Rotating(self._https, self.stopping)
        while not self.stopping.wait(_PAUSE_S):
            numbers = [next(self._numbers) for _ in range(20)]
            entries = [Entry(key=base64_of(f"{number}"), value=_encoded(number)) for number in numbers]
            details = PutMessagesDetails(messages=entries)
            answer = client.once(lambda asked, details=details: asked.put_messages(self._stream, details))  # type: ignore[misc]
            if answer is None:
                self.unanswered += len(numbers)
                continue
            for number, entry in zip(numbers, answer.data.entries, strict=True):
                if entry.error:
                    self.unanswered += 1
                else:
                    self.acknowledged[int(entry.partition)][number] = int(entry.offset)


class OciGroup(Threads):
    """Instances of a group. What one has not come to commit comes again, so order holds within each answer only."""

    def __init__(self, https: Callable[[], Sequence[str]], stream: str, group: str, audience: Audience) -> None:
        """They begin at once."""
        self.audience = audience
        self.failed: dict[str, int] = {}
        self._https, self._stream, self._group = https, stream, group
        super().__init__(2)

    def work(self, name: str) -> None:
        """Get, and commit by the next get."""
        client = Rotating(self._https, self.stopping)
        self.failed = client.failed
        details = CreateGroupCursorDetails(
            group_name=self._group, instance_name=name, type="TRIM_HORIZON", timeout_in_ms=10_000
        )
        made = client.again(lambda asked: asked.create_group_cursor(self._stream, details))
        while made is not None and not self.stopping.is_set():
            cursor = made.data.value
            try:
                self._read(client, cursor, name)
            except ServiceError as error:
                # It was silent for its timeout, having something in hand: so the guide says.
                if "unreserved partition" not in str(error.message):
                    raise
            made = client.again(lambda asked: asked.create_group_cursor(self._stream, details))

    def _read(self, client: Rotating, cursor: str, name: str) -> None:
        while not self.stopping.wait(_PAUSE_S):
            answer = client.once(lambda asked: asked.get_messages(self._stream, cursor, limit=_LIMIT))  # noqa: B023
            if answer is not None:
                self.audience.began(name)
                _tell(self.audience, name, answer.data)
                cursor = answer.headers["opc-next-cursor"]


class OciReader(Threads):
    """Reads each partition by a cursor of its own, at whichever broker: nothing comes twice or is left out."""

    def __init__(self, https: Callable[[], Sequence[str]], stream: str, partitions: int, audience: Audience) -> None:
        """It begins at once."""
        self.audience = audience
        self._https, self._stream, self._partitions = https, stream, partitions
        super().__init__(1)

    def work(self, name: str) -> None:
        """Get."""
        client = Rotating(self._https, self.stopping)
        cursors: list[str] = []
        for partition in range(self._partitions):
            details = CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
            made = client.again(lambda asked, details=details: asked.create_cursor(self._stream, details))  # type: ignore[misc]
            if made is None:
                return
            cursors.append(made.data.value)
        while not self.stopping.wait(_PAUSE_S):
            for place, cursor in enumerate(cursors):
                answer = client.once(
                    lambda asked, cursor=cursor: asked.get_messages(self._stream, cursor, limit=_LIMIT)  # type: ignore[misc]
                )
                if answer is not None:
                    _tell(self.audience, name, answer.data)
                    cursors[place] = answer.headers["opc-next-cursor"]


def _tell(audience: Audience, reader: str, messages: Sequence[Any]) -> None:
    for message in messages:
        number = NUMBER.unpack_from(b64decode(message.value))[0]
        audience.polled(reader, int(message.partition), int(message.offset), number)


def _encoded(number: int) -> str:
    # As `Ledger` writes them, so that one reader of logs reads both.
    return b64encode(NUMBER.pack(number)).decode()
