"""Read a topic's log from any Kafka broker."""

import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from headrace.client import fetch
from headrace.client.cluster import EARLIEST, LATEST, Cluster, kept
from headrace.client.errors import DataLoss
from headrace.client.offsets import Extent, Offsets, Range, TopicPartition, limit
from headrace.client.options import ClientOptions
from headrace.spark.source.topic_log import Subscription, TopicLog, Topics, Unreadable, decode, was_replaced

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_SAMPLE_BYTES: Final = 64 << 10


class KafkaLog:
    """Reads through this process's shared connections, which remain open after `with`."""

    def __init__(self, options: ClientOptions, *, own: bool = False) -> None:
        """Prepare. With `own`, use separate connections and close them with this object, for readers in threads."""
        self._cluster = Cluster(options) if own else kept(options)
        self._own = own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._own:
            self._cluster.close()

    def topics(self, wanted: Subscription) -> Topics:
        """Return the topics. Internal topics match no pattern, as in Spark's Kafka source."""
        found = self._cluster.topics(wanted.named() or None)
        chosen = {
            name: topic
            for name, topic in found.items()
            if wanted.pattern is None or (wanted.wants(name) and not topic.internal)
        }
        return {
            name: TopicLog(name, str(topic.id) if topic.id.int else "", topic.partitions)
            for name, topic in chosen.items()
        }

    def extents(self, topics: Topics) -> dict[TopicPartition, Extent]:
        """Return the logs' bounds, with two requests to each leader."""
        partitions = [TopicPartition(topic.name, number) for topic in topics.values() for number in topic.partitions]
        first = self._cluster.offsets_at(dict.fromkeys(partitions, EARLIEST))
        last = self._cluster.offsets_at(dict.fromkeys(partitions, LATEST))
        return {one: Extent(first[one], max(first[one], last[one])) for one in partitions}

    def offsets_at(self, topics: Topics, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return offsets by ListOffsets."""
        del topics
        found = self._cluster.offsets_at(times)
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def sizes(self, topics: Topics, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return sizes estimated from the first batches."""
        del topics
        sizes = {}
        for partition, offset in start.items():
            sample = fetch.batches(self._cluster, Range(partition, offset, offset + 1), fetch_bytes=_SAMPLE_BYTES)
            found = next(sample, None)
            sample.close()  # type: ignore[attr-defined]
            if found is not None:
                sizes[partition] = len(found.batch) / max(1, found.next_offset - found.base_offset)
        return sizes

    def limited(self, topics: Topics, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Limit a batch. Offsets count records, apart from compacted ones and control records."""
        del topics
        return limit(start, end, rows)

    def cut(self, topics: Topics, ranges: list[Range]) -> list[Range]:
        """Return the ranges unchanged: brokers find the records."""
        del topics
        return ranges

    def behind_gaps(self, topics: Topics, start: Offsets, end: Offsets) -> Offsets:
        """Return the starts unchanged."""
        del topics, end
        return start

    def records(
        self,
        stream: str,
        offsets: Range,
        *,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
        unreadable: Unreadable | None = None,
        topic_id: str = "",
    ) -> "Iterator[pa.RecordBatch]":
        """Return records. Gaps of compaction or transactions are no data loss.

        Fetch names the topic, so Metadata returns its ID before the first and after the last batch.
        """
        del stream
        topic = offsets.partition.topic
        present = self._other_id(topic, topic_id)
        if present is not None:
            if fail_on_data_loss:
                raise was_replaced(topic, present, topic_id)
            _log.warning("%s was deleted, and created again, before %s was read: it has no records", topic, offsets)
            return
        found = self._batches(offsets, fail_on_data_loss=fail_on_data_loss)
        yield from decode(found, offsets, include_headers=include_headers, unreadable=unreadable)
        present = self._other_id(topic, topic_id)
        if present is not None:
            raise was_replaced(topic, present, topic_id)

    def _other_id(self, topic: str, expected: str) -> str | None:
        found = self._cluster.topics([topic])[topic].id if expected else UUID(int=0)
        return str(found) if found.int and str(found) != expected else None

    def _batches(self, offsets: Range, *, fail_on_data_loss: bool) -> Iterator[tuple[int, memoryview]]:
        rest = offsets
        while rest.start < rest.end:
            try:
                for one in fetch.batches(self._cluster, rest):
                    rest = Range(rest.partition, max(rest.start, one.next_offset), rest.end)
                    yield one.base_offset, one.batch
            except fetch.OutOfRange as error:
                start = self._cluster.offsets_at({rest.partition: EARLIEST})[rest.partition]
                behind = min(start, rest.end) if start > rest.start else rest.end
                if fail_on_data_loss:
                    raise DataLoss(
                        f"offsets {rest.start} to {behind - 1} of {rest.partition} are gone: deleted while they were "
                        "being read; set failOnDataLoss=false to go on without them"
                    ) from error
                rest = Range(rest.partition, behind, rest.end)
            else:
                return
