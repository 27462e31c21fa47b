"""Looks at the consumer groups through the Kafka listener, as any Kafka tool does."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headrace.groups.classic.states import in_words

_EVERY_S = 0.25
_ANSWER_S = 5
_METADATA_MS = 2_000
_PATIENCE_S = 60
_STREAMS = "headrace.streams"

_latest: Callable[[], OffsetSpec] = OffsetSpec.latest

_SILENT = logging.getLogger("headrace.demo.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Seen(msgspec.Struct, frozen=True):
    """The groups at one moment."""

    state: str
    """Of the readers' group, as Kafka calls it."""
    members: dict[str, list[int]]
    """Client id -> partitions, as the group's leader gave them out."""
    positions: dict[str, dict[int, int]]
    """Group -> partition -> committed position."""
    ends: dict[int, int]
    """Where each partition's log ends."""

    def lag(self, group: str) -> int:
        """Records that the group has not committed."""
        positions = self.positions.get(group, {})
        return sum(max(0, end - positions.get(partition, 0)) for partition, end in self.ends.items())


class Watch:
    """Asks four times a second and hands on what it saw, from a thread of its own."""

    def __init__(self, kafka: str, topic: str, partitions: int, groups: tuple[str, str]) -> None:
        """`groups`: the readers' group, whose members are watched, and the archive's."""
        # librdkafka asks the leader that it knows until that grows old, and a leader that has died does not answer.
        self._admin = AdminClient(
            {"bootstrap.servers": kafka, "client.id": "demo-watch", "metadata.max.age.ms": _METADATA_MS}, logger=_SILENT
        )
        self._topic = topic
        self._partitions = partitions
        self._groups = groups
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def create_topic(self) -> None:
        """Raises KafkaException."""
        topic = NewTopic(self._topic, num_partitions=self._partitions)
        self._admin.create_topics([topic])[self._topic].result(timeout=_PATIENCE_S)

    def stream(self, partition: int) -> str:
        """The Redis key of a partition's stream, as the server tells it. Raises KafkaException."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        entries = self._admin.describe_configs([resource])[resource].result(timeout=_ANSWER_S)
        return str(entries[_STREAMS].value).split(",")[partition]

    def look(self) -> Seen:
        """Ask now. Raises KafkaException, TimeoutError."""
        readers = self._admin.describe_consumer_groups([self._groups[0]])[self._groups[0]]
        asked = {
            name: self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
            for name in self._groups
        }
        latest = {TopicPartition(self._topic, number): _latest() for number in range(self._partitions)}
        ends = self._admin.list_offsets(latest)
        group = readers.result(timeout=_ANSWER_S)
        return Seen(
            state=in_words(group.state.name),
            members={
                member.client_id: sorted(part.partition for part in member.assignment.topic_partitions)
                for member in sorted(group.members, key=lambda member: str(member.client_id))
            },
            positions={
                name: {
                    part.partition: part.offset
                    for part in future.result(timeout=_ANSWER_S).topic_partitions or []
                    if part.offset >= 0
                }
                for name, future in asked.items()
            },
            ends={part.partition: future.result(timeout=_ANSWER_S).offset for part, future in ends.items()},
        )

    def look_again(self) -> Seen:
        """Ask for a minute at most: a broker may have died a moment ago. Raises what `look` raises."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self.look()
            except (KafkaException, TimeoutError):
                if time.monotonic() > deadline:
                    raise

    def start(self, on_seen: Callable[[Seen], None]) -> None:
        """Look again and again; `on_seen` is called from another thread. What fails is looked at again."""
        thread = threading.Thread(target=self._run, args=(on_seen,), name="watch", daemon=True)
        thread.start()
        # A signal between the two lines leaves a thread that nobody waits for: it ends with the process.
        self._thread = thread

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_seen: Callable[[Seen], None]) -> None:
        while not self._stop.wait(_EVERY_S):
            with contextlib.suppress(KafkaException, TimeoutError):
                on_seen(self.look())
