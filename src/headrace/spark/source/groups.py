"""Commit a consumer group's offsets through the Kafka listener, so that every tool sees a query's lag.

A query is no member of its group. It commits without a generation, so the group must have no members.
"""

import uuid
from collections.abc import Mapping
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.client import options as client_options
from headrace.client.cluster import Cluster
from headrace.client.errors import GroupCommitFailed, OptionError, SparkError
from headrace.client.offsets import Offsets, TopicPartition, from_json
from headrace.client.options import ClientOptions

_PYTHON_SOURCE: Final = "PythonMicroBatchStream"
"""Spark's description of Python sources, without the format's name."""


class GroupCommitter:
    """Commits a group's offsets through a connection that is made at the first commit.

    It signs offsets in their metadata, so two queries that use one group detect each other.
    """

    def __init__(self, server: ClientOptions | str, group: str) -> None:
        """Prepare. `server`: the connection's options, or HOST:PORT. Raise OptionError."""
        if isinstance(server, str):
            parsed = client_options.parse({"kafka.bootstrap.servers": server})
            assert parsed is not None
            server = parsed
        self._cluster = Cluster(server)
        self._group = group
        self._signature = f"spark {uuid.uuid4().hex[:12]}"
        self._done: Offsets = {}
        self.intruder: str | None = None
        """One line if another client has committed this group's offsets since the last commit."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit `offsets`, the next to read. Raise GroupCommitFailed, also if the group has members."""
        if not offsets:
            return
        try:
            self.intruder = self._look_around() if self._done else None
            self._cluster.commit(self._group, offsets, self._signature)
        except SparkError as error:
            raise GroupCommitFailed(
                f"group {self._group!r} was not committed at {self._cluster.options}: {error}"
            ) from error
        self._done = dict(offsets)

    def _look_around(self) -> str | None:
        found = self._cluster.committed(self._group)
        other = [one for one in self._done if one in found and found[one].metadata != self._signature]
        if not other:
            return None
        one = other[0]
        return (
            f"group {self._group!r} is committed by another program as well ({one}: committed {self._done[one]}, "
            f"found {found[one].offset}): give each query its own group, otherwise its lag is wrong"
        )


class ConsumerGroupListener(StreamingQueryListener):
    """Commits the end of every batch to a consumer group when Spark reports the batch as done.

    With a `query` name only that query's batches count, otherwise those of every Headrace query of the session. The
    next batch retries a failed commit. `error` has the last failure.
    """

    def __init__(self, bootstrap_servers: ClientOptions | str, group: str, *, query: str | None = None) -> None:
        super().__init__()
        self._committer = GroupCommitter(bootstrap_servers, group)
        self._query = query
        self.error: GroupCommitFailed | None = None
        self.intruder: str | None = None
        """One line if another query uses the same group."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing before the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Commit the batch's end."""
        if self._query is not None and event.progress.name != self._query:
            return
        for source in event.progress.sources:
            if source.description.rpartition(".")[2].startswith(_PYTHON_SOURCE):
                self._commit(_offsets(source.endOffset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing without new records."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing: the last batch was reported before."""

    def _commit(self, positions: Offsets) -> None:
        self.error = None
        try:
            self._committer.commit(positions)
        except GroupCommitFailed as error:
            self.error = error
        else:
            self.intruder = self._committer.intruder


def _offsets(end_offset: str | None) -> Offsets:
    try:
        return from_json(msgspec.json.decode(end_offset or "{}", type=dict[str, dict[str, int | str]]))
    except (msgspec.DecodeError, OptionError):
        return {}


def commit_groups(
    spark: SparkSession,
    bootstrap_servers: str,
    group: str,
    *,
    query: str | None = None,
    options: Mapping[str, str] | None = None,
) -> ConsumerGroupListener:
    """Register a ConsumerGroupListener with a session. Pass it to `spark.streams.removeListener` to end it.

    `options` are additional `kafka.*` options, such as a login's.
    """
    given = {"kafka.bootstrap.servers": bootstrap_servers, **(options or {})}
    server = client_options.parse({name.lower(): value for name, value in given.items()})
    assert server is not None
    listener = ConsumerGroupListener(server, group, query=query)
    spark.streams.addListener(listener)
    return listener
