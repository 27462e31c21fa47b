"""A client's view of a cluster: leaders, and requests to the right broker.

If a broker is gone or no longer the leader, the request is retried a few times with pauses.
"""

import atexit
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar
from uuid import UUID

from headrace.aio.retry import pauses
from headrace.client.connection import Connection
from headrace.client.errors import (
    FENCED,
    REFUSALS,
    RETRIABLE,
    Code,
    Fenced,
    GroupCommitFailed,
    LoginRefused,
    ServerUnavailable,
    UnknownTopic,
    code_name,
)
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.protocol.messages import (
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

EARLIEST: Final = -2
LATEST: Final = -1
_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
# The last versions that identify topics by name.
_LIST_OFFSETS, _METADATA, _COMMIT, _COMMITTED, _COORDINATOR = 9, 12, 9, 7, 3
_CONFIGS, _BROKER = 4, 4

T = TypeVar("T")


class Stale(Exception):
    """The metadata is outdated: retry."""


@dataclass(frozen=True)
class Committed:
    """A committed offset."""

    offset: int
    metadata: str


@dataclass(frozen=True)
class TopicInfo:
    """A topic in Metadata."""

    name: str
    id: UUID
    """Nil if the brokers do not support topic ids."""
    partitions: tuple[int, ...]
    internal: bool


class Cluster:
    """Connections to one cluster. Not thread-safe."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}

    def __del__(self) -> None:
        """Spark does not always call `stop` on a reader."""
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def topics(self, names: Collection[str] | None) -> dict[str, TopicInfo]:
        """Return the named topics, or all. Raises UnknownTopic, LoginRefused, ServerUnavailable."""
        return self.trying(lambda: self._topics(names))

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offsets at or after a time in ms (or EARLIEST, LATEST); -1 if none.

        With `kafka.isolation.level=read_committed` the latest is the last stable offset.
        """
        return self.trying(lambda: self._offsets_at(times)) if times else {}

    def leader(self, partition: TopicPartition) -> Connection:
        """Return a connection to the leader. Raises Stale."""
        if partition not in self._leaders:
            self._topics([partition.topic])
        broker = self._brokers.get(self._leaders.get(partition, -1))
        if broker is None:
            raise Stale(f"{partition} has no leader")
        return self._connection(broker)

    def trying(self, action: Callable[[], T]) -> T:
        """Run `action`; retry it with new metadata after Stale. Raises ServerUnavailable."""
        for attempt, pause in enumerate(pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), 1):
            try:
                return action()
            except (Stale, ServerUnavailable) as error:
                self.forget()
                if attempt == _ATTEMPTS:
                    raise ServerUnavailable(str(error)) from error
            time.sleep(pause)
        raise AssertionError("unreachable")

    def forget(self) -> None:
        """Drop all metadata and connections."""
        self.close()
        self._leaders.clear()

    def broker_setting(self, name: str) -> str | None:
        """Return a broker setting; None if unknown or not authorized."""
        return self.trying(lambda: self._broker_setting(name))

    def _broker_setting(self, name: str) -> str | None:
        if not self._brokers:
            self._topics([])
        broker = next(iter(self._brokers))
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(broker), configuration_keys=[name]
        )
        answer = self._connection(self._brokers[broker]).ask(
            DescribeConfigsRequest(resources=[asked]), highest=_CONFIGS
        )
        [result] = answer.results
        check(result.error_code, f"settings of broker {broker}", "DescribeConfigs on the cluster")
        return next((entry.value for entry in result.configs if entry.name == name), None)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets as tools do, without group membership.

        Raises GroupCommitFailed, also if the group has members, LoginRefused, ServerUnavailable.
        """
        self.trying(lambda: self._commit(group, offsets, metadata))

    def committed(self, group: str, *, stable: bool = False) -> dict[TopicPartition, Committed]:
        """Return a group's committed offsets. `stable` waits for transactions that are about to end."""
        return self.trying(lambda: self._committed(group, stable))

    def _connection(self, place: tuple[str, int]) -> Connection:
        found = self._connections.get(place)
        if found is None or not found.idle:
            # Its pending response would be matched to the next request.
            if found is not None:
                found.close()
            found = self._connections[place] = Connection(*place, self.options)
        return found

    def any_broker(self) -> Connection:
        """Return a connection to a broker that answers. Raises ServerUnavailable."""
        failure: ServerUnavailable | None = None
        for place in dict.fromkeys((*self._connections, *self.options.servers, *self._brokers.values())):
            try:
                return self._connection(place)
            except ServerUnavailable as error:
                self._connections.pop(place, None)
                failure = failure or error
        assert failure is not None
        raise failure

    def _topics(self, names: Collection[str] | None) -> dict[str, TopicInfo]:
        wanted = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.any_broker().ask(request, highest=_METADATA)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found = {}
        for topic in answer.topics:
            if topic.error_code in {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION}:
                raise UnknownTopic(f"no topic {topic.name!r} at {self.options}")
            check(topic.error_code, f"topic {topic.name!r}", on_topic("Describe", topic.name))
            for one in topic.partitions:
                self._leaders[TopicPartition(topic.name, one.partition_index)] = one.leader_id
            numbers = tuple(sorted(one.partition_index for one in topic.partitions))
            found[topic.name] = TopicInfo(topic.name, topic.topic_id or UUID(int=0), numbers, topic.is_internal)
        return found

    def _offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for connection, partitions in self._by_leader(times):
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(self.options.read_committed),
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsRequest.ListOffsetsPartition(
                                partition_index=number, timestamp=times[TopicPartition(topic, number)]
                            )
                            for number in numbers
                        ],
                    )
                    for topic, numbers in by_topic(partitions).items()
                ],
            )
            for answered in connection.ask(request, highest=_LIST_OFFSETS).topics:
                for one in answered.partitions:
                    partition = TopicPartition(answered.name, one.partition_index)
                    check(one.error_code, f"offsets of {partition}", on_topic("Describe", answered.name))
                    found[partition] = one.offset
        return found

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> list[tuple[Connection, list[TopicPartition]]]:
        partitions = list(partitions)
        unknown = {partition.topic for partition in partitions if partition not in self._leaders}
        if unknown:
            self._topics(unknown)
        grouped: dict[str, tuple[Connection, list[TopicPartition]]] = {}
        for partition in partitions:
            connection = self.leader(partition)
            grouped.setdefault(connection.place, (connection, []))[1].append(partition)
        return list(grouped.values())

    def coordinator(self, key: str, *, transactional: bool = False) -> Connection:
        """Return a connection to the coordinator of a group, or of a transactional ID. Raises Stale, LoginRefused."""
        return self.coordinators([key], transactional=transactional)[0]

    def coordinators(self, keys: Sequence[str], *, transactional: bool = False) -> list[Connection]:
        """Return connections as `coordinator`, in the order of the keys. All requests are sent at once: bound them."""
        connection = self.any_broker()
        for key in keys:
            connection.send(FindCoordinatorRequest(key=key, key_type=int(transactional)), highest=_COORDINATOR)
        answers = [connection.receive() for _ in keys]
        for key, answer in zip(keys, answers, strict=True):
            what = f"transactional ID {key!r}" if transactional else f"group {key!r}"
            check(answer.error_code, what, f"Describe on {what}")
        return [self._connection((answer.host, answer.port)) for answer in answers]

    def brokers(self) -> list[Connection]:
        """Return a connection to each broker. Raises ServerUnavailable."""
        self._topics([])
        return [self._connection(place) for place in self._brokers.values()]

    def _commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(topic, number)],
                        committed_metadata=metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ]
        answer = self.coordinator(group).ask(OffsetCommitRequest(group_id=group, topics=topics), highest=_COMMIT)
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code in {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION}:
                    raise GroupCommitFailed(
                        f"group {group!r} has members of its own, which alone may commit: give the query another group"
                    )
                if one.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise GroupCommitFailed(f"{topic.name}-{one.partition_index} does not exist")
                refused = one.error_code == Code.TOPIC_AUTHORIZATION_FAILED
                needs = on_topic("Read", topic.name) if refused else _on_group("Read", group)
                check(one.error_code, f"group {group!r}, position of {topic.name}-{one.partition_index}", needs)

    def _committed(self, group: str, stable: bool) -> dict[TopicPartition, Committed]:
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=stable)
        answer = self.coordinator(group).ask(request, highest=_COMMITTED)
        check(answer.error_code, f"group {group!r}", _on_group("Describe", group))
        for topic in answer.topics if stable else ():
            for one in topic.partitions:
                what = f"group {group!r}, {topic.name}-{one.partition_index}"
                check(one.error_code, what, on_topic("Describe", topic.name))
        return {
            TopicPartition(topic.name, one.partition_index): Committed(one.committed_offset, one.metadata or "")
            for topic in answer.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partition numbers by topic."""
    grouped: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        grouped[topic].append(number)
    return grouped


def on_topic(operation: str, name: str) -> str:
    """Return the ACL operation on a topic, for messages."""
    return f"{operation} on topic {name!r}"


def _on_group(operation: str, name: str) -> str:
    return f"{operation} on group {name!r}"


def check(code: int, what: str, needs: str) -> None:
    """Raise the exception for an error code other than 0.

    `what` is the operation and `needs` the required ACL, for the message. Raises Stale if a retry may help,
    LoginRefused, UnknownTopic, Fenced, ServerUnavailable.
    """
    if code:
        _fail(code, what, needs)


def _fail(code: int, what: str, needs: str) -> NoReturn:
    if code in RETRIABLE:
        raise Stale(f"{what}: {code_name(code)}")
    if code in REFUSALS:
        raise LoginRefused(f"{what}: {code_name(code)}: no right to it; it takes {needs} (headrace acls create)")
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"{what}: there is none")
    if code in FENCED:
        raise Fenced(f"{what}: {code_name(code)}", code)
    raise ServerUnavailable(f"{what}: {code_name(code)}")


_kept: dict[tuple[int, ClientOptions], Cluster] = {}


def kept(options: ClientOptions) -> Cluster:
    """Return this process's connections to a cluster, shared by its tasks. A forked process opens its own."""
    key = (os.getpid(), options)
    if key not in _kept:
        _kept[key] = Cluster(options)
        atexit.register(_kept[key].close)
    return _kept[key]


__all__ = ["EARLIEST", "LATEST", "Cluster", "Committed", "Stale", "TopicInfo", "by_topic", "check", "kept", "on_topic"]
