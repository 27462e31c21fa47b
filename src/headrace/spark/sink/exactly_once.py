"""Write a topic exactly once: tasks prepare transactions, and the driver commits them by one stored decision.

`decision` has the rules. This module connects them with Spark and Kafka:

1. `begin`, on the driver before each batch, fences earlier drivers, reads the last decision, and completes it.
2. `write`, in a task, fills a transaction of its own and leaves it open.
3. `commit`, on the driver, stores the decision and ends the transactions.

Spark calls the steps in different processes, which share only the pickled writer and the messages.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.client.cluster import Cluster, Committed, kept
from headrace.client.errors import Code, DecisionError, Fenced, OptionError, SparkError, WriteRefused
from headrace.client.offsets import TopicPartition
from headrace.client.transactions import Identity, Transactions
from headrace.lakehouse.paths import local_path
from headrace.spark.sink import decision as rules
from headrace.spark.sink.decision import CommitAll, Decision, Outcome, Participant, Steps, Store
from headrace.spark.sink.sink import SinkOptions, TaskWriter, partition_count
from headrace.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Attempt:
    """One execution of a batch. The driver begins it, and its tasks receive it."""

    driver: Identity
    done: int
    """First batch that is not done."""
    query: UUID | None
    """The query of the last decision; None: there is none."""
    partitions: int
    """Of the topic."""

    @property
    def sink(self) -> str:
        """The transactional ID of the sink, and its group."""
        return self.driver.transactional_id


@dataclass
class Prepared(WriterCommitMessage):
    """The result of a task attempt."""

    attempt: Attempt
    query: UUID
    rows: int
    participant: Participant | None = None
    """None: it had no rows to write."""
    partitions: list[TopicPartition] = field(default_factory=list)


def sink_id(options: SinkOptions) -> str:
    """Return the sink's transactional ID. Raise OptionError if neither an option nor a local checkpoint has it."""
    if options.transactional_id is not None:
        return options.transactional_id
    try:
        folder = None if options.checkpoint is None else local_path(options.checkpoint)
        if folder is not None:
            return str(UUID(json.loads((Path(folder) / "metadata").read_text("utf-8"))["id"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise OptionError(
        "deliveryGuarantee=exactly-once needs option 'transactionalId', because the query's ID is not in a local "
        "checkpoint: a name that no other query has"
    )


class Driver:
    """The driver's part. Not thread-safe."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._transactions = Transactions(cluster)
        self._topic = topic

    def begin(self, sink: str) -> Attempt:
        """Begin a batch: fence earlier drivers, complete what they decided, and abort what they left.

        Raises BatchLost, DecisionError, SparkError.
        """
        partitions = partition_count(self._cluster, self._topic)
        # Of drivers that the next line fences. A transaction that is decided is committed before the rest is aborted.
        left = self._open(sink)
        driver = self._transactions.begin(sink)
        decided = self.decided(sink)
        if decided is not None and decided.participants:
            driver = self.run(rules.finish(decided), driver, partitions)[1]
            decided = self.decided(sink)
        self._abort(left or ())
        if decided is None:
            return Attempt(driver, 0, None, partitions)
        return Attempt(driver, decided.done, decided.query, partitions)

    def decided(self, sink: str) -> Decision | None:
        """Return the stored decision. Raise DecisionError."""
        found = self._transactions.committed(sink)
        stored = {
            place.partition: (one.offset, one.metadata) for place, one in found.items() if place.topic == self._topic
        }
        return rules.decode(stored, sink)

    def commit(self, attempt: Attempt, batch: int, query: UUID, places: Mapping[Participant, str]) -> None:
        """Commit a batch's transactions, whose partitions `places` names. Raises BatchLost, Fenced, SparkError."""
        participants = {_identity(one, attempt.sink): one for one in places}
        open_ = self._open(attempt.sink)
        ongoing: set[Participant] | None = None
        if open_ is not None:
            listed = set(open_)
            # A list may lack transactions whose coordinator moves or has just started. Ask it before giving them up.
            listed.update(self._transactions.ongoing_of([one for one in participants if one not in listed]))
            ongoing = {participant for one, participant in participants.items() if one in listed}
        names = {one.transactional_id for one in participants}
        losers = [one for one in open_ or () if one.transactional_id not in names]
        self.run(rules.commit(batch, query, list(places), places, ongoing), attempt.driver, attempt.partitions)
        # The batch is written. What fails here, the next one does.
        with contextlib.suppress(SparkError):
            self._abort(losers)

    def run(self, steps: Steps[_T], driver: Identity, partitions: int) -> tuple[_T, Identity]:
        """Take the steps; return their result and the driver's next identity."""
        outcomes: Sequence[Outcome] | None = None
        with contextlib.closing(steps):
            while True:
                try:
                    # The first value that a generator receives must be None.
                    step = next(steps) if outcomes is None else steps.send(outcomes)
                except StopIteration as end:
                    return end.value, driver
                if isinstance(step, Store):
                    driver, outcomes = self._store(step.decision, driver, partitions), ()
                else:
                    assert isinstance(step, CommitAll)
                    outcomes = self._commit(step.participants, driver.transactional_id)

    def abort(self, sink: str, batch: int, participants: Sequence[Participant]) -> None:
        """Abort what a failed batch prepared, unless it was decided. Raise SparkError."""
        # After this, no earlier driver can decide.
        self._transactions.begin(sink)
        decided = self.decided(sink)
        if decided is not None and decided.done > batch:
            return
        self._transactions.end_all([_identity(one, sink) for one in participants], commit=False)

    def _store(self, decision: Decision, driver: Identity, partitions: int) -> Identity:
        texts = rules.encode(decision, partitions)
        offsets = {
            TopicPartition(self._topic, number): Committed(decision.done, text) for number, text in enumerate(texts)
        }
        sink = driver.transactional_id
        try:
            self._transactions.commit_offsets(driver, sink, offsets)
            return self._transactions.end(driver, commit=True)
        except Fenced as error:
            raise Fenced(f"another driver writes as {sink!r}, or has restarted this query: {error}") from error

    def _commit(self, participants: Sequence[Participant], sink: str) -> list[Outcome]:
        refused = self._transactions.end_all([_identity(one, sink) for one in participants], commit=True)
        return [Outcome.COMMITTED if error is None else _outcome(error) for error in refused]

    def _open(self, sink: str) -> list[Identity] | None:
        """Return the ongoing transactions of tasks, also of killed ones: readers would wait for their timeout."""
        return self._transactions.ongoing(lambda name: rules.is_of_sink(name, sink))

    def _abort(self, left: Sequence[Identity]) -> None:
        # A later attempt has another epoch, and is not affected.
        self._transactions.end_all(left, commit=False)


def _outcome(error: Fenced) -> Outcome:
    return Outcome.UNKNOWN if error.code == Code.INVALID_PRODUCER_ID_MAPPING else Outcome.ABORTED


def _identity(participant: Participant, sink: str) -> Identity:
    return Identity(
        participant.transactional_id(sink),
        participant.producer_id,
        participant.producer_epoch,
        participant.version,
    )


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """A streaming write whose records become visible to readers of committed records, once."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.topic is not None
        self._options = options
        self._topic = options.topic
        self._attempt: Attempt | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin a batch when Spark pickles the writer for its tasks.

        Spark calls `streamWriter` before each batch and again for each commit, in processes that do not know which of
        both it is. Only a writer for tasks is pickled. A commit learns from the messages what was begun.
        """
        if self._attempt is None:
            driver = Driver(kept(self._options.kafka), self._topic)
            try:
                self._attempt = driver.begin(sink_id(self._options))
            except SparkError as error:
                # Of other errors, Spark's serializer prints a traceback.
                raise PicklingError(f"{type(error).__name__}: {error}") from error
        return self.__dict__

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Prepare a task's transaction."""
        settle()
        context = TaskContext.get()
        query, batch = (None if context is None else context.getLocalProperty(name) for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise WriteRefused(
                "Spark did not report the query and its batch, so a repeated batch could not be recognized"
            )
        assert self._attempt is not None
        return prepare(self._options, self._attempt, UUID(query), int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Decide, and end the transactions."""
        prepared = [one for one in messages if isinstance(one, Prepared)]
        places = {
            one.participant: ", ".join(map(str, one.partitions)) for one in prepared if one.participant is not None
        }
        if places:
            attempt = prepared[0].attempt
            Driver(kept(self._options.kafka), self._topic).commit(attempt, batchId, prepared[0].query, places)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Abort the transactions, unless they were decided."""
        prepared = [one for one in messages if isinstance(one, Prepared) and one.participant is not None]
        if prepared:
            participants = [one.participant for one in prepared if one.participant is not None]
            Driver(kept(self._options.kafka), self._topic).abort(prepared[0].attempt.sink, batchId, participants)


def prepare(
    options: SinkOptions, attempt: Attempt, query: UUID, batch: int, batches: "Iterator[pa.RecordBatch]"
) -> Prepared:
    """Write a task's rows in a transaction that stays open; write nothing if the batch is done.

    Raises:
        DecisionError: The sink belongs to another query.
        SparkError: Writing failed. The transaction is aborted.
    """
    if attempt.query not in {None, query}:
        raise DecisionError(
            f"transactional ID {attempt.sink!r} is that of query {attempt.query}, whose batches have other rows: "
            f"choose another 'transactionalId', or delete group {attempt.sink!r} if that query is no more"
        )
    if batch < attempt.done:
        return Prepared(attempt, query, sum(rows.num_rows for rows in batches))
    writer: TaskWriter | None = None
    transactions = Transactions(kept(options.kafka))
    suffix, identity = b"", None
    try:
        for rows in batches:
            if rows.num_rows:
                if writer is None:
                    suffix = _suffixes(attempt.sink).take(attempt.driver)
                    identity = transactions.begin(rules.transactional_id(attempt.sink, suffix))
                    writer = TaskWriter(options, transactions.cluster, identity)
                writer.add(rows)
        if writer is None or identity is None:
            return Prepared(attempt, query, 0)
        written = writer.finish()
    except BaseException:
        if identity is not None:
            with contextlib.suppress(SparkError):
                transactions.end(identity, commit=False)
        raise
    participant = Participant(suffix, identity.producer_id, identity.producer_epoch, identity.version, written.rows)
    return Prepared(attempt, query, written.rows, participant, writer.partitions)


class Suffixes:
    """The transactional IDs of one process. No other one has them, so no late task of another one fences a task.

    An ID is used once per attempt of a batch: its transaction may wait for the decision.
    """

    def __init__(self) -> None:
        self._used: dict[bytes, Identity] = {}
        """With the driver that began the last attempt that used it."""

    def take(self, driver: Identity) -> bytes:
        """Return a suffix that neither this attempt, which `driver` began, nor a later one has used."""
        # The driver begins an attempt after it has ended the transactions of the one before.
        ended = (
            suffix
            for suffix, last in self._used.items()
            if last.producer_id == driver.producer_id and last.producer_epoch < driver.producer_epoch
        )
        suffix = next(ended, None) or secrets.token_bytes(rules.SUFFIX_BYTES)
        self._used[suffix] = driver
        return suffix


_kept: Final[dict[tuple[int, str], Suffixes]] = {}


def _suffixes(sink: str) -> Suffixes:
    return _kept.setdefault((os.getpid(), sink), Suffixes())
