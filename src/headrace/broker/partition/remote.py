"""Records that have gone from Redis and are read back from their topic's archive (tiered storage, KIP-405).

A topic with `remote.storage.enable` whose archive has written down where its table lies: retention takes from Redis
what the table has, never more, and what is gone is read from the table. The table is read in threads; its memory counts
in the budget of what is read. Where the table begins is written down, so that a server which cannot read the table yet
still knows where the log starts.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import structlog

from headrace.aio.tasks import in_thread
from headrace.broker.documents import readable
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.budget import ReadBudget
from headrace.topics.archive import STARTS, Archive, Archived, start_id
from headrace.topics.errors import ArchiveUnavailable, OffsetOutOfRange, TopicError
from headrace.topics.model import StoredBatch, Topic

_STOP_S = 3.0
"""How long a server that ends waits for deleted topics' archives to be forgotten."""
_THREADS = 4
"""Tables that are read at a time: one whose object store does not answer does not hold up all others."""
_WORKING_BYTES = 24 << 20
"""What a read takes beside its answer, about: a row group as it is stored, and as columns."""
_log = structlog.get_logger("headrace.broker.partition")

T = TypeVar("T")


class Table(Protocol):
    """The archive of one topic. Blocking, and one call at a time; raises ArchiveUnavailable when it cannot be read."""

    def refresh(self) -> Mapping[int, Archived]:
        """Look at the table as it is now: what it has, by partition."""

    def read(self, partition: int, offset: int, end: int, limit: int) -> list[StoredBatch]:
        """About `limit` bytes of batches with the records from `offset` to before `end`.

        Raises:
            OffsetOutOfRange: the table begins behind `offset`.
        """

    def first_at(self, partition: int, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record in the range that is not older than `timestamp`."""

    def latest(self, partition: int, start: int, end: int) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record in the range with the largest time there."""

    def start_after(self, partition: int, before_ms: int | None, max_bytes: int | None) -> int:
        """Where a partition begins without the leading files that are older, or too many; None: no such bound."""


class Lake(Protocol):
    """Knows archives. `headrace.lakehouse.read` is the real one."""

    kind: str
    """Kind of the documents that say where archives lie; their ids are topic ids."""

    def described(self, document: bytes) -> Archive:
        """What such a document says. Raises ArchiveUnavailable."""

    def open(self, topic_id: str, table: str) -> Table:
        """Blocking. Raises ArchiveUnavailable: what it takes is not installed, or there is no such table."""


class TopicArchive:
    """The archive of one topic: its table, opened when somebody needs it."""

    def __init__(self, archives: "Archives", topic_id: str, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.archive: Archive | None = None
        """What the archive has written down, when it was last looked at."""
        self.extents: Mapping[int, Archived] = {}
        """What the table has, as of the last look at it."""
        self._archives = archives
        self._table: Table | None = None
        self._one = asyncio.Lock()
        self._told = ""

    def described(self, archive: Archive) -> None:
        """The archive has written this down."""
        if self.archive is None or self.archive.table != archive.table:
            self._table = None
        self.archive = archive

    async def refresh(self) -> None:
        """Look at the table as it is now. Raises ArchiveUnavailable."""
        self.extents = await self.run(lambda table: table.refresh())

    async def keep_start(self, index: int, offset: int) -> None:
        """Write down that nothing below `offset` of a partition is read any more."""
        await self._archives.keep_start(self.topic_id, index, offset)

    async def run(self, work: Callable[[Table], T]) -> T:
        """Have something done with the table, in a thread. Raises ArchiveUnavailable, and what `work` raises."""
        async with self._one:
            try:
                if self.archive is None:
                    await self._archives.look(self)
                if self.archive is None:
                    raise ArchiveUnavailable(f"no document has the location of the archive of topic {self.name} lies")
                done = await self._archives.thread(partial(self._work, self.archive.table, work))
            except ArchiveUnavailable as error:
                self._tell(str(error))
                raise ArchiveUnavailable(f"topic {self.name}: {error}") from None
            self._tell("")
            return done

    def _work(self, place: str, work: Callable[[Table], T]) -> T:
        if self._table is None:
            self._table = self._archives.lake.open(self.topic_id, place)
            self.extents = self._table.refresh()
        return work(self._table)

    def _tell(self, error: str) -> None:
        if error == self._told:
            return
        self._told = error
        if error:
            _log.error("old records cannot be read from the archive", topic=self.name, reason=error)
        else:
            _log.info("old records can be read from the archive again", topic=self.name)


class RemotePartition:
    """What the archive has of one partition, as the partition reads it."""

    def __init__(self, archive: TopicArchive, index: int, start: int) -> None:
        self.archive = archive
        self.index = index
        self.start = start
        """The first offset that is read from the archive."""

    def has(self, offset: int, local_start: int) -> bool:
        """Whether a record that is not in Redis, whose log starts at `local_start`, is to be found in the table."""
        extent = self.archive.extents.get(self.index)
        return offset < local_start or (extent is not None and offset < extent.end)

    async def read(self, offset: int, end: int, limit: int) -> list[StoredBatch]:
        """About `limit` bytes of batches with the records from `offset` to before `end`.

        Raises:
            ArchiveUnavailable; OffsetOutOfRange: the table begins behind `offset` by now.
        """
        try:
            return await self.archive.run(lambda table: table.read(self.index, offset, end, limit))
        except OffsetOutOfRange:
            await self.archive.refresh()
            extent = self.archive.extents.get(self.index)
            self.start = max(self.start, end if extent is None else extent.start)
            raise

    async def first_at(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record before `end` that is not older than `timestamp`."""
        return await self.archive.run(lambda table: table.first_at(self.index, timestamp, self.start, end))

    async def latest(self, end: int) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record before `end` with the largest time there."""
        return await self.archive.run(lambda table: table.latest(self.index, self.start, end))

    async def raise_start(self, offset: int) -> None:
        """Read nothing below `offset` any more, durable when this returns."""
        if offset > self.start:
            await self.archive.keep_start(self.index, offset)
            self.start = offset


class Archives:
    """All archives that this server reads: their documents, and the threads that read them."""

    def __init__(self, documents: DocumentStorage, lake: Lake, reads: ReadBudget) -> None:
        """Nothing is opened.

        Args:
            documents: where archives write down where they lie.
            lake: opens them.
            reads: budget of the answers under way, which the reading counts in.
        """
        self.lake = lake
        self._documents = documents
        self._reads = reads
        self._threads = ThreadPoolExecutor(_THREADS, "headrace-cold")
        self._topics: dict[str, TopicArchive] = {}
        self._starts: dict[str, int] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    async def load_starts(self) -> None:
        """Read where archived partitions begin, as far as that is written down; no table is opened."""
        self._starts |= await readable(self._documents, STARTS, lambda _, text: int(text))

    def partition(self, topic: Topic, index: int) -> RemotePartition | None:
        """What a topic's table has of a partition, as of the last `load_starts`; None: nothing is written down."""
        start = self._starts.get(start_id(str(topic.id), index))
        return None if start is None else RemotePartition(self._archive_of(topic), index, start)

    def start_of(self, topic: Topic, index: int) -> int:
        """Where a partition's archived records are known to begin; -1: that is not known."""
        return self._starts.get(start_id(str(topic.id), index), -1)

    def _archive_of(self, topic: Topic) -> TopicArchive:
        topic_id = str(topic.id)
        archive = self._topics.get(topic_id)
        if archive is None:
            archive = self._topics[topic_id] = TopicArchive(self, topic_id, topic.name)
        return archive

    async def refresh(self, topic: Topic) -> TopicArchive | None:
        """Look at a topic's archive and its table as they are now; None: it has none, or it cannot be read."""
        archive = self._archive_of(topic)
        try:
            await self.look(archive)
            if archive.archive is None:
                return None
            await archive.refresh()
        except ArchiveUnavailable:
            return None  # it has been told
        return archive

    async def look(self, archive: TopicArchive) -> None:
        """Read what a topic's archive has written down. Raises ArchiveUnavailable, StorageUnavailable."""
        document = (await self._documents.load(self.lake.kind)).get(archive.topic_id)
        if document is not None:
            archive.described(self.lake.described(document))

    async def keep_start(self, topic_id: str, index: int, offset: int) -> None:
        """Write down where a partition's archived records begin."""
        name = start_id(topic_id, index)
        await self._documents.save({(STARTS, name): b"%d" % offset})
        self._starts[name] = offset

    async def thread(self, work: Callable[[], T]) -> T:
        """Do something with a table in a thread; its memory is counted meanwhile."""
        self._reads.take(_WORKING_BYTES)
        try:
            return await in_thread(self._threads, work)
        finally:
            self._reads.release(_WORKING_BYTES)

    def dismiss(self, topic: Topic) -> None:
        """A topic is not here any more."""
        self._topics.pop(str(topic.id), None)

    def forget(self, topic: Topic) -> None:
        """A topic was deleted: one of its name that is created later has nothing to do with its archive."""
        topic_id = str(topic.id)
        task = asyncio.get_running_loop().create_task(self._forget(topic_id, topic.partitions))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, topic_id: str, partitions: int) -> None:
        names = [start_id(topic_id, index) for index in range(partitions)]
        for name in names:
            self._starts.pop(name, None)
        gone: dict[tuple[str, str], bytes | None] = {(self.lake.kind, topic_id): None}
        # Those too that only another broker knows, which has led the partition.
        gone.update({(STARTS, name): None for name in names})
        try:
            await self._documents.save(gone)
        except TopicError as error:
            _log.warning(
                "a deleted topic's archive could not be forgotten",
                topic_id=topic_id,
                reason=str(error),
            )

    async def stop(self) -> None:
        """Wait until deleted topics' archives are forgotten, then end the threads; queued reads are dropped."""
        if self._forgetting:
            # Those that Redis does not answer end with its connection.
            await asyncio.wait(tuple(self._forgetting), timeout=_STOP_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
