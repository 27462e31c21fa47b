"""A consumer group's positions, committed through the Kafka door so that every tool sees a query's lag.

A query is no member of its group: it commits as tools do, without a generation, so the group must have no members.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.spark.errors import GroupCommitFailed

_TIMEOUT_S: Final = 10.0
_PYTHON_SOURCE: Final = "PythonMicroBatchStream"
"""How Spark describes sources written in Python; it does not say the format's name."""


class GroupCommitter:
    """Commits positions of one group; the connection is made with the first commit and kept."""

    def __init__(self, bootstrap_servers: str, group: str) -> None:
        self._servers = bootstrap_servers
        self._group = group
        self._admin: Any = None

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Make `offsets` (the next to read, by partition) the group's positions; waits at most ten seconds.

        Raises:
            GroupCommitFailed: no answer, or the group has members, or a partition was refused.
        """
        # Not at the top: executors import this module's neighbours and never commit.
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition  # noqa: PLC0415
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        if not offsets:
            return
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self._servers}, logger=_quiet())
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(self._group, wanted)]
        try:
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=_TIMEOUT_S)
            result = answers[self._group].result(timeout=_TIMEOUT_S + 5)
        except (KafkaException, TimeoutError) as error:
            raise GroupCommitFailed(self._failure(error)) from error
        for partition in result.topic_partitions:
            if partition.error is not None:
                raise GroupCommitFailed(self._failure(partition.error))

    def _failure(self, reason: object) -> str:
        text = reason.args[0].str() if isinstance(reason, Exception) and hasattr(reason.args[0], "str") else str(reason)
        return f"group {self._group!r} was not committed at {self._servers}: {text}"


def _quiet() -> Any:
    """A logger for librdkafka, whose own messages would go to standard error beside a query's progress."""
    import logging  # noqa: PLC0415

    return logging.getLogger("headrace.spark.kafka")


class ConsumerGroupListener(StreamingQueryListener):
    """Commits the end of every batch to a consumer group as soon as Spark reports the batch done.

    With a `query` name only that query's batches count; without one, those of every headrace query of the session.
    A position that could not be committed is carried by the next batch's; the last failure is in `error`.
    """

    def __init__(self, bootstrap_servers: str, group: str, *, query: str | None = None) -> None:
        super().__init__()
        self._committer = GroupCommitter(bootstrap_servers, group)
        self._query = query
        self.error: GroupCommitFailed | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Commit what the batch ended with."""
        if self._query is not None and event.progress.name != self._query:
            return
        for source in event.progress.sources:
            if source.description.rpartition(".")[2].startswith(_PYTHON_SOURCE):
                self._commit(_offsets(source.endOffset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Nothing new was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """The last batch has been reported before."""

    def _commit(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        self.error = None
        for topic, offsets in positions.items():
            try:
                self._committer.commit(topic, offsets)
            except GroupCommitFailed as error:
                self.error = error


def _offsets(end_offset: str | None) -> dict[str, dict[int, int]]:
    """A source's end as topic -> partition -> next offset; empty when it is not of that form, so not ours."""
    try:
        return msgspec.json.decode(end_offset or "{}", type=dict[str, dict[int, int]])
    except msgspec.DecodeError:
        return {}


def commit_groups(
    spark: SparkSession, bootstrap_servers: str, group: str, *, query: str | None = None
) -> ConsumerGroupListener:
    """Register a ConsumerGroupListener with a session; give it to `spark.streams.removeListener` to end it."""
    listener = ConsumerGroupListener(bootstrap_servers, group, query=query)
    spark.streams.addListener(listener)
    return listener
