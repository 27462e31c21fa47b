"""The archive's batches without Spark: an archiver in this process, and what is in its table then."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable
from tests.harness.storage import BareStorage

from headrace.client.offsets import Extent, Range, TopicPartition
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.write.batch import BatchArchiver, Fences, RangeResult, Target, clip
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import DEAD_COLUMNS, ArchiveTable
from headrace.spark.archive.files import Destination, Written, write_range
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.topics.model import Topic


class Group:
    """A consumer group that remembers what was committed to it."""

    def __init__(self) -> None:
        self.commits: list[dict[int, int]] = []

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.commits.append({one.partition: offset for one, offset in offsets.items()})


class Archiver:
    """An archiver of one topic: what a process would be, with its own idea of which ranges come next."""

    def __init__(
        self,
        storage: BareStorage,
        topic: Topic,
        table: Path | Place,
        *,
        skip_lost: bool = False,
        skip_unreadable: bool = False,
        step: Callable[[str], None] = lambda _: None,
        decoding: Decoding | None = None,
    ) -> None:
        self.storage = storage
        self.topic = topic
        place = table if isinstance(table, Place) else Place.of(str(table))
        self.table = ArchiveTable(place)
        self.dead = None if decoding is None else ArchiveTable(place.sibling("_dlq"), DEAD_COLUMNS)
        self.group = Group()
        self.destination = Destination(
            redis=storage.url,
            table=place,
            topic=topic.name,
            topic_id=str(topic.id),
            fail_on_data_loss=not skip_lost,
            skip_unreadable=skip_unreadable,
            decoding=decoding,
        )
        self.log = LogReader(storage.url, committed=True)
        self.archiver = BatchArchiver(
            lambda: {topic.name: Target(topic.name, str(topic.id), self.table, self.dead)},
            extents=self.extents,
            group=self.group,
            skip_lost=skip_lost,
            step=step,
        )

    def extents(self) -> dict[TopicPartition, Extent]:
        return self.log.extents(self.log.topics(Subscription(names=(self.topic.name,))))

    def destined(self, fences: Fences) -> Destination:
        """With what a typed table has already."""
        if self.dead is None:
            return self.destination
        aside = {one.partition: offsets for one, offsets in fences.aside.items()}
        columns = fences.columns[self.topic.name]
        refused = fences.refused.get(self.topic.name, {})
        return replace(self.destination, columns=columns, dead=self.dead.place, aside=aside, refused=refused)

    def archive(self, *ranges: tuple[int, int, int]) -> int:
        """Archive ranges (partition, start, end); the rows that went into the table."""

        def write(fences: Fences) -> Sequence[RangeResult]:
            results = []
            for number, low, high in ranges:
                offsets = clip(Range(TopicPartition(self.topic.name, number), low, high), fences.offsets)
                stream = self.topic.streams[number]
                told: list[str] = []
                written = Written(())
                if offsets.end > offsets.start:
                    written = write_range(self.destined(fences), stream, offsets, told, [])
                results.append(
                    RangeResult(offsets, written.files, tuple(told), dead=written.dead, columns=written.columns)
                )
            return results

        result = self.archiver.archive(write)
        self.unreadable = result.topics[self.topic.name].unreadable
        return result.rows


def archived(table: Path) -> list[tuple[int, int]]:
    """(partition, offset) of every row, as a reader without Spark and without Headrace sees the table."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def pairs(partition: int, offsets: range) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]
