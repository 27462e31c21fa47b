"""Watch the consumer groups through the Kafka listener."""

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
    """State of the groups."""

    state: str
    """State of the consumers' group, in Kafka's terms."""
    members: dict[str, list[int]]
    """Client id -> assigned partitions."""
    positions: dict[str, dict[int, int]]
    """Group -> partition -> committed offset."""
    ends: dict[int, int]
    """Log end offset by partition."""

    def lag(self, group: str) -> int:
        """Return the group's lag."""
        positions = self.positions.get(group, {})
        return sum(max(0, end - positions.get(partition, 0)) for partition, end in self.ends.items())


class Watch:
    """Polls four times per second, in a thread."""

    def __init__(self, kafka: str, topic: str, partitions: int, groups: tuple[str, str]) -> None:
        # librdkafka asks a known leader until the metadata expires, even a dead one.
        self._admin = AdminClient(
            {"bootstrap.servers": kafka, "client.id": "demo-watch", "metadata.max.age.ms": _METADATA_MS}, logger=_SILENT
        )
        self._topic = topic
        self._partitions = partitions
        self._groups = groups
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def create_topics(self, *others: str) -> None:
        """Create the topic, and others with as many partitions. Raises KafkaException."""
        topics = [NewTopic(name, num_partitions=self._partitions) for name in (self._topic, *others)]
        for created in self._admin.create_topics(topics).values():
            created.result(timeout=_PATIENCE_S)

    def stream(self, partition: int) -> str:
        """Return a partition's Redis key. Raises KafkaException."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        entries = self._admin.describe_configs([resource])[resource].result(timeout=_ANSWER_S)
        return str(entries[_STREAMS].value).split(",")[partition]

    def look(self) -> Seen:
        """Poll once. Raises KafkaException, TimeoutError."""
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
        """Poll, with retries for a minute. Raises as `look`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self.look()
            except (KafkaException, TimeoutError):
                if time.monotonic() > deadline:
                    raise

    def start(self, on_seen: Callable[[Seen], None]) -> None:
        """Start polling; `on_seen` runs on another thread. Errors are retried."""
        thread = threading.Thread(target=self._run, args=(on_seen,), name="watch", daemon=True)
        thread.start()
        # A signal before this line leaves a daemon thread.
        self._thread = thread

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_seen: Callable[[Seen], None]) -> None:
        while not self._stop.wait(_EVERY_S):
            with contextlib.suppress(KafkaException, TimeoutError):
                on_seen(self.look())
