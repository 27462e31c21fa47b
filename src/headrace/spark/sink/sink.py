"""Write `format("headrace")`: convert rows to records as Spark's Kafka sink does.

The writers of this module write at least once. `commit` only receives counts. A repeated attempt (a retry, speculation)
writes its rows again, because a failed attempt gets no notice. See `exactly_once` for the other one.
"""

import contextlib
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.client.cluster import Cluster, kept
from headrace.client.errors import OptionError, UnknownTopic, WriteRefused
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.client.produce import Producer
from headrace.client.transactions import Identity, TransactionalProducer, Transactions
from headrace.records.batch import SEQUENCES
from headrace.records.build import build, build_columns
from headrace.records.partitioner import partitions_of
from headrace.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import pyarrow as pa


_BYTES: Final = (BinaryType(), StringType())
_HELD_BYTES: Final = 32 << 20
"""Maximum total bytes of rows that wait for others of their partition."""
_GUARANTEES: Final = {"at-least-once": False, "exactly-once": True}
NAMES: Final = ("topic", "deliveryGuarantee", "transactionalId", "checkpointLocation", "path")


@dataclass(frozen=True)
class SinkOptions:
    """The target of rows. It is sent to the executors."""

    kafka: ClientOptions
    topic: str | None
    """The topic of every row; None: a column has it."""
    exactly_once: bool = False
    transactional_id: str | None = None
    """Of the sink, with `exactly_once`; None: the query's ID."""
    checkpoint: str | None = None


@dataclass
class Written(WriterCommitMessage):
    """The result of a task attempt."""

    rows: int
    batches: int


def parse(options: "Mapping[str, str]") -> SinkOptions:
    """Return the options of a write. Raise OptionError."""
    from headrace.client import options as client_options  # noqa: PLC0415
    from headrace.spark.source import options as source_options  # noqa: PLC0415

    options = source_options.without_table_properties(options)
    # A declared pipeline passes its query's name as an option.
    source_options.refuse_unknown(options, NAMES, also=frozenset(("includeheaders", "redis", "queryname")))
    given = {name.lower(): value for name, value in options.items()}
    kafka = client_options.parse(given)
    if kafka is None:
        raise OptionError("no server named: writing needs option 'kafka.bootstrap.servers'")
    exactly_once = _GUARANTEES[source_options.choice("deliveryGuarantee", given, tuple(_GUARANTEES))]
    transactional_id = given.get("transactionalid")
    if exactly_once:
        if given.get("topic") is None:
            raise OptionError("deliveryGuarantee=exactly-once needs option 'topic': its offsets hold what is decided")
        if kafka.acks != -1:
            raise OptionError("deliveryGuarantee=exactly-once needs kafka.acks=all")
        if transactional_id is not None and not transactional_id.strip():
            raise OptionError("option 'transactionalId' is empty")
    elif transactional_id is not None or kafka.transaction_timeout_ms is not None:
        name = "transactionalId" if transactional_id is not None else "kafka.transaction.timeout.ms"
        raise OptionError(f"option {name!r} needs deliveryGuarantee=exactly-once")
    return SinkOptions(kafka, given.get("topic"), exactly_once, transactional_id, given.get("checkpointlocation"))


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise OptionError for columns that do not make records, as Spark's Kafka sink names them."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError(f"a column 'value' is required; there are: {', '.join(types) or 'none'}")
    for name in ("key", "value"):
        if name in types and types[name] not in _BYTES:
            raise OptionError(f"column {name!r} must be string or binary, not {types[name].simpleString()}: cast it")
    if "topic" not in types and options.topic is None:
        raise OptionError("option 'topic' or a column 'topic' must say where rows go")
    if "topic" in types and types["topic"] != StringType():
        raise OptionError(f"column 'topic' must be string, not {types['topic'].simpleString()}")
    if "partition" in types and types["partition"] != IntegerType():
        raise OptionError(f"column 'partition' must be int, not {types['partition'].simpleString()}: cast it")
    if "headers" in types and not _are_headers(types["headers"]):
        found = types["headers"].simpleString()
        raise OptionError(f"column 'headers' must be array<struct<key:string,value:binary>>, not {found}")


def _are_headers(kind: Any) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return fields == [("key", StringType()), ("value", BinaryType())]


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write a task's rows as `write_rows`."""
        return write_rows(self._options, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write a task's rows as `write_rows`."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Do nothing: the records are already written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Do nothing: written records stay (at least once)."""


def write_rows(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> Written:
    """Write a task's rows; return when the brokers have acknowledged them."""
    settle()
    writer = TaskWriter(options, kept(options.kafka))
    for batch in batches:
        if batch.num_rows:
            writer.add(batch)
    return writer.finish()


def check_topic(options: SinkOptions) -> None:
    """Check the topic of every row before any task. Raise UnknownTopic, ServerUnavailable, LoginRefused."""
    if options.topic is not None:
        with contextlib.closing(Cluster(options.kafka)) as cluster:
            partition_count(cluster, options.topic)


def partition_count(cluster: Cluster, topic: str) -> int:
    """Return a topic's number of partitions. Raise UnknownTopic, which says how to create it."""
    try:
        return len(cluster.topics([topic])[topic].partitions)
    except UnknownTopic as error:
        raise UnknownTopic(
            f"{error}: writing creates none, `headrace topics create {shlex.quote(topic)}` does"
        ) from None


class TaskWriter:
    """Groups a task attempt's rows by partition into large batches."""

    def __init__(self, options: SinkOptions, cluster: Cluster, identity: Identity | None = None) -> None:
        """Write in the transaction of `identity`, or without one."""
        self._options = options
        self._cluster = cluster
        self._identity = identity
        self._producer = (
            Producer(cluster) if identity is None else TransactionalProducer(Transactions(cluster), identity)
        )
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._partitions: dict[str, int] = {}
        self._held: dict[TopicPartition, list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: dict[TopicPartition, int] = defaultdict(int)
        # Tasks start at different partitions, or all rows without a key would go to the first.
        self._turn = time.monotonic_ns() // 1000
        self._rows = 0

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that have rows."""
        return sorted(self._producer.written)

    def add(self, batch: "pa.RecordBatch") -> None:
        """Write rows, or hold them for later ones of their partitions. Raises as `Producer.send`."""
        self._rows += batch.num_rows
        for topic, rows in _by_topic(batch, self._options.topic):
            for number, chosen in self._by_partition(topic, rows):
                place = TopicPartition(topic, number)
                self._held[place].append(chosen)
                self._sizes[place] += chosen.nbytes
                if self._sizes[place] >= self._options.kafka.batch_bytes:
                    self._release(place)
        while sum(self._sizes.values()) >= _HELD_BYTES:
            self._release(max(self._sizes, key=lambda place: self._sizes[place]))

    def finish(self) -> Written:
        """Write the rest, and wait until the brokers have acknowledged all."""
        for place in list(self._held):
            self._release(place)
        self._producer.flush()
        return Written(self._rows, sum(self._producer.written.values()))

    def _by_partition(self, topic: str, rows: "pa.RecordBatch") -> "Iterator[tuple[int, pa.RecordBatch]]":
        count = self._count(topic)
        named = _named(rows, topic, count)
        chosen = self._by_key(rows, count) if named is None else named
        if isinstance(chosen, int):
            yield chosen, rows
            return
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        order = np.argsort(chosen, kind="stable")
        edges = np.flatnonzero(np.diff(chosen[order], prepend=-1))
        grouped = rows.take(pa.array(order))
        for low, high in zip(edges, [*edges[1:], rows.num_rows], strict=True):
            yield int(chosen[order[low]]), grouped.slice(int(low), int(high - low))

    def _by_key(self, rows: "pa.RecordBatch", count: int) -> "np.ndarray[Any, Any] | int":
        import pyarrow as pa  # noqa: PLC0415

        # Rows without a key fill one partition's batch, then the next one's.
        self._turn += 1
        any_ = self._turn % count
        if "key" not in rows.schema.names or rows.column("key").null_count == rows.num_rows:
            return any_
        keys = rows.column("key")
        chosen = partitions_of(keys.cast(pa.binary()).fill_null(b""), count)
        if keys.null_count:
            chosen[keys.is_null().to_numpy(zero_copy_only=False)] = any_
        return chosen

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = partition_count(self._cluster, topic)
        return self._partitions[topic]

    def _release(self, place: TopicPartition) -> None:
        import pyarrow as pa  # noqa: PLC0415

        del self._sizes[place]
        rows = pa.Table.from_batches(self._held.pop(place)).combine_chunks()
        now = time.time_ns() // 1_000_000
        for part in rows.to_batches():
            transaction = None
            if self._identity is not None:
                sequence = self._sequences[place]
                self._sequences[place] = (sequence + part.num_rows) % SEQUENCES
                transaction = (self._identity.producer_id, self._identity.producer_epoch, sequence)
            for batch in _batches(part, now, self._options.kafka, transaction):
                self._producer.send(place, batch)


def _by_topic(batch: "pa.RecordBatch", fixed: str | None) -> "Iterator[tuple[str, pa.RecordBatch]]":
    if fixed is not None:
        yield fixed, batch
        return
    import pyarrow.compute as pc  # noqa: PLC0415

    topics = batch.column("topic")
    if topics.null_count:
        raise WriteRefused("a row's column 'topic' is null, and there is no option 'topic'")
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


def _named(rows: "pa.RecordBatch", topic: str, count: int) -> "np.ndarray[Any, Any] | None":
    if "partition" not in rows.schema.names or rows.column("partition").null_count == rows.num_rows:
        return None
    import numpy as np  # noqa: PLC0415

    column = rows.column("partition")
    if column.null_count:
        raise WriteRefused("column 'partition' is null in some rows and not in others: name it for all or for none")
    chosen: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False).astype(np.int64)
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= count:
        raise WriteRefused(f"topic {topic!r} has no partition {low if low < 0 else high}: it has {count}")
    return chosen


_Transaction = tuple[int, int, int] | None
"""ID and epoch of the producer, and the sequence number of the first row."""


def _batches(
    rows: "pa.RecordBatch", now: int, options: ClientOptions, transaction: _Transaction
) -> "Iterator[bytearray]":
    names = rows.schema.names
    headers = rows.column("headers") if "headers" in names else None
    if headers is None or headers.null_count == len(headers):
        key = _column(rows.column("key")) if "key" in names else None
        value = _column(rows.column("value"))
        yield from build_columns(
            key,
            value,
            rows.num_rows,
            now,
            codec=options.codec,
            max_bytes=options.batch_bytes,
            transaction=transaction,
        )
        return
    yield from _batches_with_headers(rows, now, options, transaction)


def _batches_with_headers(
    rows: "pa.RecordBatch", now: int, options: ClientOptions, transaction: _Transaction
) -> "Iterator[bytearray]":
    import pyarrow as pa  # noqa: PLC0415

    names = rows.schema.names
    keys = rows.column("key").cast(pa.binary()).to_pylist() if "key" in names else [None] * rows.num_rows
    values = rows.column("value").cast(pa.binary()).to_pylist()
    records = [
        (key, value, now, tuple((header["key"], header["value"]) for header in headers or ()))
        for key, value, headers in zip(keys, values, rows.column("headers").to_pylist(), strict=True)
    ]
    most = max(1, len(records) * options.batch_bytes // max(1, rows.nbytes))
    for first in range(0, len(records), most):
        producer_id, producer_epoch, sequence = transaction or (-1, -1, -1)
        yield build(
            records[first : first + most],
            codec=options.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence if transaction is None else (sequence + first) % SEQUENCES,
            transactional=transaction is not None,
        )


def _column(column: "pa.Array") -> Any:
    validity, offsets, data = column.buffers()
    return validity if column.null_count else None, offsets, data if data is not None else b"", column.offset
