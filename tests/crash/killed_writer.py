"""Queries to be killed: each copies a topic into a sink of ours, and stops at the step for which it is armed.

The argument is JSON: `kafka`, `kind` (`topic`, `once` or `delta`), `copies` (topic -> folder), and `options` of the
sink. A file `arm <step>` in a folder arms a step; the one process that comes to it takes the file, says who it is in
`reached`, and stays until there is a file `go <its id>`. A query that has ended says why in `ended`.
The steps: write, written, commit, committed. With `once` also sending (half of a task's first rows are acknowledged),
and within a commit: stored and decided (the decision, before and after its transaction ends), some and all (of the
tasks' transactions are committed), and completing.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headrace.client.errors import Fenced
from headrace.client.transactions import Identity, Transactions
from headrace.spark import session
from headrace.spark.sink.delta_sink import DeltaDataSource
from headrace.spark.sink.exactly_once import ExactlyOnceWriter, Prepared
from headrace.spark.sink.sink import TaskWriter
from headrace.spark.source.source import HeadraceDataSource


class StoppingWriter(DataSourceStreamArrowWriter):
    """A writer of ours, with steps at which it may be killed."""

    def __init__(self, writer: DataSourceStreamArrowWriter, folder: str) -> None:
        self._writer = writer
        self._folder = folder

    def _step(self, name: str) -> None:
        folder = Path(self._folder)
        taken = folder / f"taken {os.getpid()}"
        try:
            (folder / f"arm {name}").rename(taken)
        except FileNotFoundError:
            return
        taken.write_text(str(os.getpid()))
        go = folder / f"go {os.getpid()}"
        taken.rename(folder / "reached")
        while not go.exists():
            time.sleep(0.05)
        go.unlink()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._step("write")
        if isinstance(self._writer, ExactlyOnceWriter):
            self._stop_sending()
        message = self._writer.write(iterator)
        self._step("written")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._step("commit")
        if isinstance(self._writer, ExactlyOnceWriter):
            self._stop_within(sum(isinstance(one, Prepared) and one.participant is not None for one in messages))
        self._writer.commit(messages, batchId)
        self._step("committed")

    def _stop_sending(self) -> None:
        """Stop in the midst of the rows; tasks of this process follow each other."""
        add = TaskWriter.add

        def stopping_add(self_: TaskWriter, batch: Any) -> None:
            TaskWriter.add = add  # type: ignore[method-assign]
            half = batch.num_rows // 2
            add(self_, batch.slice(0, half))
            self_.finish()
            self._step("sending")
            add(self_, batch.slice(half))

        TaskWriter.add = stopping_add  # type: ignore[assignment, method-assign]

    def _stop_within(self, participants: int) -> None:
        """Stop after requests of this commit; this process runs no other one."""
        names = ["stored", "decided", *["some"] * (participants - 1), "all", "completing"]
        steps = iter(names if participants else ())
        commit_offsets, end, end_all = Transactions.commit_offsets, Transactions.end, Transactions.end_all

        def stopping_commit(self_: Transactions, *arguments: Any) -> None:
            commit_offsets(self_, *arguments)
            self._step(next(steps, ""))

        def stopping_end(self_: Transactions, identity: Identity, *, commit: bool) -> Identity:
            following = end(self_, identity, commit=commit)
            self._step(next(steps, ""))
            return following

        def stopping_ends(self_: Transactions, identities: Sequence[Identity], *, commit: bool) -> list[Fenced | None]:
            refused: list[Fenced | None] = []
            for one in identities:
                refused += end_all(self_, [one], commit=commit)
                self._step(next(steps, ""))
            return refused

        Transactions.commit_offsets = stopping_commit  # type: ignore[method-assign, assignment]
        Transactions.end = stopping_end  # type: ignore[method-assign, assignment]
        Transactions.end_all = stopping_ends  # type: ignore[method-assign, assignment]

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)


class Stopping(DataSource):
    """Either sink, under a name of its own; `folder` is an option of this one only."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name not in {"folder", "sink"}}
        kind = DeltaDataSource if self.options["sink"] == "delta" else HeadraceDataSource
        if kind is HeadraceDataSource:
            given.pop("path", None)
        return StoppingWriter(kind(given).streamWriter(schema, overwrite), self.options["folder"])


_SLOW = "failed to connect back"
"""Spark gives a Python process ten seconds to start. On a busy machine, the query is started again."""


def begun(spark: SparkSession, given: dict[str, Any], topic: str, folder: Path) -> StreamingQuery:
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", given["kafka"])
        # Brokers are killed, too, and start on a busy machine.
        .option("kafka.request.timeout.ms", 120_000)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    kind = given["kind"]
    target = {"path": str(folder / "table")} if kind == "delta" else {"topic": f"{topic}-out"}
    if kind != "delta":
        target["kafka.bootstrap.servers"] = given["kafka"]
    if kind == "once":
        target["deliveryGuarantee"] = "exactly-once"
    target |= given["options"]
    query = frame.writeStream.format("stopping").options(**target, folder=str(folder), sink=kind)
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    return query.trigger(availableNow=True).start()


def main() -> None:
    given = json.loads(sys.argv[1])
    copies = {topic: Path(folder) for topic, folder in given["copies"].items()}
    # Of its attempts a task may lose three; a task that stops keeps its core.
    master = f"local[{2 * len(copies)},4]"
    spark = session.create("killed", master=master, optimize=False, log_level="off", memory="512m")
    spark.dataSource.register(Stopping)
    queries: dict[str, StreamingQuery] = {}
    failures: dict[str, str] = {}

    def start(topic: str) -> None:
        """Start a query, and wait until it has come to its step or has ended."""
        while True:
            queries[topic] = query = begun(spark, given, topic, copies[topic])
            while query.isActive and not (copies[topic] / "reached").exists():
                time.sleep(0.05)
            if query.isActive or _SLOW not in ended(query):
                return

    def wait(topic: str) -> None:
        while _SLOW in (said := ended(queries[topic])):
            start(topic)
        failures[topic] = said
        print(topic, said, file=sys.stderr, flush=True)
        (copies[topic] / "ended").write_text(said)

    # One after the other: all at once would be too slow for Spark.
    for topic in copies:
        start(topic)
        if not queries[topic].isActive:
            wait(topic)
    for topic in copies:
        if topic not in failures:
            wait(topic)
    sys.exit(any(failures.values()))


def ended(query: StreamingQuery) -> str:
    """Wait for the end of a query; return why, or nothing if it has copied what there was."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
