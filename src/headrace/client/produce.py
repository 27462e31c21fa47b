"""Send whole batches to partition leaders, in order, with one request in flight per leader.

Unacknowledged batches are sent again: at least once, in order within a partition.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster, Stale, by_topic, check, on_topic
from headrace.client.errors import Code, LoginRefused, ServerUnavailable, UnknownTopic, WriteRefused
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.protocol.messages import ProduceRequest

if TYPE_CHECKING:
    from headrace.client.connection import Connection

Batch = bytes | bytearray
_WAITING_BYTES: Final = 16 << 20
"""Maximum bytes buffered while responses are pending."""
_REQUEST_BYTES: Final = 8 << 20
_ATTEMPTS: Final = 8
_PRODUCE: Final = 12
"""The last version that identifies topics by name."""


class Producer:
    """Sends batches asynchronously. Not thread-safe."""

    def __init__(self, cluster: Cluster, transactional_id: str | None = None, *, highest: int | None = None) -> None:
        """`highest` is the highest version of Produce to use; None: the last one that names topics."""
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._highest = highest or _PRODUCE
        self._options: ClientOptions = cluster.options
        self._waiting: dict[TopicPartition, deque[Batch]] = defaultdict(deque)
        self._size = 0
        self._losses = 0
        self._sent: list[tuple[Connection, dict[TopicPartition, Batch]]] = []
        self.written: dict[TopicPartition, int] = defaultdict(int)
        """Acknowledged batches, by partition."""

    def send(self, partition: TopicPartition, batch: Batch) -> None:
        """Queue a batch; blocks while the buffer is full.

        Raises WriteRefused, also for an earlier batch, UnknownTopic, LoginRefused, ServerUnavailable.
        """
        self._waiting[partition].append(batch)
        self._size += len(batch)
        if self._size >= _WAITING_BYTES or not self._sent:
            self._turn()

    def flush(self) -> None:
        """Wait until every batch is acknowledged. Raises as `send`."""
        while self._size or self._sent:
            self._turn()

    def _turn(self) -> None:
        lost = self._collect()
        self._losses = 0 if lost is None else self._losses + 1
        if self._losses > _ATTEMPTS:
            raise ServerUnavailable(str(lost))
        if lost is not None:
            # All batches in flight wait again; the refresh finds the leaders or reports the error.
            self._cluster.forget()
            partitions = {partition.topic for partition in self._waiting}
            self._cluster.trying(lambda: self._send_waiting(partitions))
            return
        try:
            self._send_waiting(())
        except (Stale, ServerUnavailable):
            self._cluster.forget()
            self._cluster.trying(lambda: self._send_waiting(()))

    def _send_waiting(self, refresh: Iterable[str]) -> None:
        names = list(refresh)
        if names:
            self._cluster.topics(names)
        grouped: dict[str, tuple[Connection, dict[TopicPartition, Batch]]] = {}
        sizes: dict[str, int] = defaultdict(int)
        busy = {connection.place for connection, _ in self._sent}
        for partition, batches in self._waiting.items():
            connection = self._cluster.leader(partition)
            if connection.place in busy or sizes[connection.place] >= _REQUEST_BYTES:
                continue
            grouped.setdefault(connection.place, (connection, {}))[1][partition] = batches[0]
            sizes[connection.place] += len(batches[0])
        for connection, chosen in grouped.values():
            connection.send(_request(self._options, chosen, self._transactional_id), highest=self._highest)
            self._sent.append((connection, chosen))
            for partition in chosen:
                self._size -= len(self._waiting[partition].popleft())
                if not self._waiting[partition]:
                    del self._waiting[partition]

    def _collect(self) -> Exception | None:
        """Batches without acknowledgment wait again, in their order."""
        sent, self._sent = self._sent, []
        lost: Exception | None = None
        for connection, batches in sent:
            open_ = dict(batches)
            try:
                for topic in connection.receive().responses:
                    for one in topic.partition_responses:
                        partition = TopicPartition(topic.name, one.index)
                        _check(one.error_code, one.error_message, partition, len(open_[partition]))
                        del open_[partition]
                        self.written[partition] += 1
            except (Stale, ServerUnavailable) as error:
                lost = error
            for partition, batch in open_.items():
                self._waiting[partition].appendleft(batch)
                self._size += len(batch)
        return lost


def refusal(cluster: Cluster, partition: TopicPartition) -> tuple[int, str] | None:
    """Ask the leader why a partition accepts no records; nothing is stored.

    A broker of Headrace responds to a partition without records with the error that a batch would get. If the topic is
    not visible, any broker responds with the reason.

    Returns:
        Error code and message; None if the broker has no objection, or states none.

    Raises:
        LoginRefused, ServerUnavailable.
    """
    try:
        connection = cluster.leader(partition)
    except (LoginRefused, UnknownTopic, Stale):
        connection = cluster.any_broker()
    answer = connection.ask(_request(cluster.options, {partition: None}), highest=_PRODUCE)
    found = next((one for topic in answer.responses for one in topic.partition_responses), None)
    if found is None or found.error_code in {0, Code.INVALID_RECORD} or not found.error_message:
        return None
    return found.error_code, found.error_message


def _request(
    options: ClientOptions, batches: Mapping[TopicPartition, Batch | None], transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=options.acks,
        timeout_ms=round(options.timeout_s * 1000),
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=number, records=batches[TopicPartition(topic, number)])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(batches).items()
        ],
    )


def _check(code: int, message: str | None, partition: TopicPartition, size: int) -> None:
    if code == Code.DUPLICATE_SEQUENCE_NUMBER:  # only a batch with a sequence: the log has it
        return
    if code == Code.MESSAGE_TOO_LARGE:
        raise WriteRefused(
            f"{partition} takes no batch of {size:,} bytes: lower option 'kafka.batch.size', or raise the topic's "
            "max.message.bytes"
        )
    needs = on_topic("Write", partition.topic)
    if code and message and code not in {Code.TOPIC_AUTHORIZATION_FAILED, Code.NOT_LEADER_OR_FOLLOWER}:
        try:
            check(code, f"writing to {partition}", needs)
        except ServerUnavailable as error:
            raise WriteRefused(f"{error}: {message}") from None
    check(code, f"writing to {partition}", needs)
