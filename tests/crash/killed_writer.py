"""A query to be killed: copies a topic into a sink of ours, and waits for ever at the step for which it is armed.

Arguments: address of the server, topic, folder, and `topic`, `once` or `delta`. A file `arm <step>` in the folder arms
a step; the one process that comes to it takes the file, says who it is in `reached`, and stays.
The steps: write, written, commit, committed. With `once`, within a commit: stored and decided (the decision, before and
after its transaction ends), some and all (of the tasks' transactions are committed), and completing.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.errors import Fenced
from headrace.client.transactions import Identity, Transactions
from headrace.spark import session
from headrace.spark.sink.delta_sink import DeltaDataSource
from headrace.spark.sink.exactly_once import ExactlyOnceWriter, Prepared
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
        taken.rename(folder / "reached")
        while True:
            time.sleep(3600)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._step("write")
        message = self._writer.write(iterator)
        self._step("written")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._step("commit")
        if isinstance(self._writer, ExactlyOnceWriter):
            self._stop_within(sum(isinstance(one, Prepared) and one.participant is not None for one in messages))
        self._writer.commit(messages, batchId)
        self._step("committed")

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


def main() -> None:
    kafka, topic, folder, kind = sys.argv[1:]
    # Of its attempts a task may lose three.
    spark = session.create("killed", master="local[2,4]", optimize=False, log_level="off", memory="512m")
    spark.dataSource.register(Stopping)
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    target = {"path": str(Path(folder) / "table")} if kind == "delta" else {"topic": f"{topic}-out"}
    if kind != "delta":
        target["kafka.bootstrap.servers"] = kafka
    if kind == "once":
        target["deliveryGuarantee"] = "exactly-once"
    query = frame.writeStream.format("stopping").options(**target, folder=folder, sink=kind)
    query = query.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
