"""Read records of tiered (remote) storage from their topic's archive (KIP-405).

For topics with `remote.storage.enable`, retention removes only archived records from Redis. Threads read the archive
table, and its memory counts in the read budget. The start of the table is saved, so that a server knows the log start
offset before it can read the table.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
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
"""Seconds that a stopping server waits for the removal of deleted topics' archives."""
_THREADS = 4
"""Threads for table reads, so that one unavailable object store does not block all reads."""
_WORKING_BYTES = 24 << 20
"""Approximate memory of a read in addition to its result: a row group, stored and as columns."""
_log = structlog.get_logger("headrace.broker.partition")

T = TypeVar("T")


class Table(Protocol):
    """The archive table of one topic. Calls block, one at a time, and may raise ArchiveUnavailable."""

    def refresh(self, partitions: Iterable[int]) -> Mapping[int, Archived]:
        """Reload the table and return its extent by partition.

        Of `partitions`, also those without records: all archived ones may have been aborted.
        """

    def read(self, partition: int, offset: int, end: int, limit: int) -> list[StoredBatch]:
        """Return about `limit` bytes of batches with records from `offset` to before `end`.

        Raises:
            OffsetOutOfRange: the table begins after `offset`.
        """

    def first_at(self, partition: int, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range from `timestamp` on."""

    def latest(self, partition: int, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range with the largest time."""

    def start_after(self, partition: int, before_ms: int | None, max_bytes: int | None) -> int:
        """Return the partition's start without the first files that exceed a bound; None for no bound."""


class Lake(Protocol):
    """Opens archives; implemented by `headrace.lakehouse.read`."""

    kind: str
    """Kind of the documents with archive locations. Their ids are topic ids."""

    def described(self, document: bytes) -> Archive:
        """Decode an archive document. Raises ArchiveUnavailable."""

    def open(self, topic_id: str, table: str) -> Table:
        """Open a table (blocks). Raises ArchiveUnavailable if a dependency or the table is missing."""


class TopicArchive:
    """The archive of one topic. Its table is opened on first use."""

    def __init__(self, archives: "Archives", topic_id: str, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.archive: Archive | None = None
        """The archive's document, as of the last read."""
        self.extents: Mapping[int, Archived] = {}
        """Extents of the table, as of the last refresh."""
        self._archives = archives
        self._table: Table | None = None
        self._one = asyncio.Lock()
        self._told = ""

    def described(self, archive: Archive) -> None:
        """Apply the archive's document."""
        if self.archive is None or self.archive.table != archive.table:
            self._table = None
        self.archive = archive

    async def refresh(self) -> None:
        """Reload the table. Raises ArchiveUnavailable."""
        self.extents = await self.run(self._refresh)

    async def keep_start(self, index: int, offset: int) -> None:
        """Save that reads of a partition begin at `offset`."""
        await self._archives.keep_start(self.topic_id, index, offset)

    async def run(self, work: Callable[[Table], T]) -> T:
        """Call `work` with the table in a thread. Raises ArchiveUnavailable and its errors."""
        async with self._one:
            try:
                if self.archive is None:
                    await self._archives.look(self)
                if self.archive is None:
                    raise ArchiveUnavailable(f"no document has the location of the archive of topic {self.name}")
                done = await self._archives.thread(partial(self._work, self.archive.table, work))
            except ArchiveUnavailable as error:
                self._tell(str(error))
                raise ArchiveUnavailable(f"topic {self.name}: {error}") from None
            self._tell("")
            return done

    def _work(self, place: str, work: Callable[[Table], T]) -> T:
        if self._table is None:
            self._table = self._archives.lake.open(self.topic_id, place)
            self.extents = self._refresh(self._table)
        return work(self._table)

    def _refresh(self, table: Table) -> Mapping[int, Archived]:
        return table.refresh(() if self.archive is None else tuple(self.archive.ends))

    def _tell(self, error: str) -> None:
        if error == self._told:
            return
        self._told = error
        if error:
            _log.error("tiered records cannot be read from the archive", topic=self.name, reason=error)
        else:
            _log.info("tiered records can be read from the archive again", topic=self.name)


class RemotePartition:
    """The archived part of one partition."""

    def __init__(self, archive: TopicArchive, index: int, start: int) -> None:
        self.archive = archive
        self.index = index
        self.start = start
        """First offset to read from the archive."""

    def has(self, offset: int, local_start: int) -> bool:
        """Whether `offset` is in the archive, for a log that starts at `local_start` in Redis."""
        extent = self.archive.extents.get(self.index)
        return offset < local_start or (extent is not None and offset < extent.end)

    async def read(self, offset: int, end: int, limit: int) -> list[StoredBatch]:
        """See `Table.read`.

        Raises:
            ArchiveUnavailable: the archive cannot be read.
            OffsetOutOfRange: the table now begins after `offset`.
        """
        try:
            return await self.archive.run(lambda table: table.read(self.index, offset, end, limit))
        except OffsetOutOfRange:
            await self.archive.refresh()
            extent = self.archive.extents.get(self.index)
            self.start = max(self.start, end if extent is None else extent.start)
            raise

    async def first_at(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """As `Table.first_at`, before `end`."""
        return await self.archive.run(lambda table: table.first_at(self.index, timestamp, self.start, end))

    async def latest(self, end: int) -> tuple[int, int] | None:
        """As `Table.latest`, before `end`."""
        return await self.archive.run(lambda table: table.latest(self.index, self.start, end))

    async def end(self) -> int:
        """Return the offset below which all records are in the archive. Raises ArchiveUnavailable."""
        await self.archive.refresh()
        extent = self.archive.extents.get(self.index)
        return self.start if extent is None else extent.end

    async def raise_start(self, offset: int) -> None:
        """Raise the archive's start to `offset`, and return when this is durable."""
        if offset > self.start:
            await self.archive.keep_start(self.index, offset)
            self.start = offset


class Archives:
    """All archives that this server reads, with their documents and threads."""

    def __init__(self, documents: DocumentStorage, lake: Lake, reads: ReadBudget) -> None:
        self.lake = lake
        self._documents = documents
        self._reads = reads
        self._threads = ThreadPoolExecutor(_THREADS, "headrace-cold")
        self._topics: dict[str, TopicArchive] = {}
        self._starts: dict[str, int] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    async def load_starts(self) -> None:
        """Load the saved starts of archived partitions without opening a table."""
        self._starts |= await readable(self._documents, STARTS, lambda _, text: int(text))

    def partition(self, topic: Topic, index: int) -> RemotePartition | None:
        """Return the archived part by the last `load_starts`; None without a saved start."""
        start = self._starts.get(start_id(str(topic.id), index))
        return None if start is None else RemotePartition(self._archive_of(topic), index, start)

    def start_of(self, topic: Topic, index: int) -> int:
        """Return the saved start of a partition; -1 if unknown."""
        return self._starts.get(start_id(str(topic.id), index), -1)

    def _archive_of(self, topic: Topic) -> TopicArchive:
        topic_id = str(topic.id)
        archive = self._topics.get(topic_id)
        if archive is None:
            archive = self._topics[topic_id] = TopicArchive(self, topic_id, topic.name)
        return archive

    async def refresh(self, topic: Topic) -> TopicArchive | None:
        """Reload a topic's archive and table; None if there is none or it cannot be read."""
        archive = self._archive_of(topic)
        try:
            await self.look(archive)
            if archive.archive is None:
                return None
            await archive.refresh()
        except ArchiveUnavailable:
            return None  # already logged
        return archive

    async def look(self, archive: TopicArchive) -> None:
        """Load a topic's archive document. Raises ArchiveUnavailable, StorageUnavailable."""
        document = (await self._documents.load(self.lake.kind)).get(archive.topic_id)
        if document is not None:
            archive.described(self.lake.described(document))

    async def keep_start(self, topic_id: str, index: int, offset: int) -> None:
        """Save the start of an archived partition."""
        name = start_id(topic_id, index)
        await self._documents.save({(STARTS, name): b"%d" % offset})
        self._starts[name] = offset

    async def thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and count its memory in the read budget."""
        self._reads.take(_WORKING_BYTES)
        try:
            return await in_thread(self._threads, work)
        finally:
            self._reads.release(_WORKING_BYTES)

    def dismiss(self, topic: Topic) -> None:
        """Drop a topic that this server no longer has."""
        self._topics.pop(str(topic.id), None)

    def forget(self, topic: Topic) -> None:
        """Forget a deleted topic's archive. A later topic of that name does not inherit it."""
        topic_id = str(topic.id)
        task = asyncio.get_running_loop().create_task(self._forget(topic_id, topic.partitions))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, topic_id: str, partitions: int) -> None:
        names = [start_id(topic_id, index) for index in range(partitions)]
        for name in names:
            self._starts.pop(name, None)
        gone: dict[tuple[str, str], bytes | None] = {(self.lake.kind, topic_id): None}
        # Include starts that only another leader knows.
        gone.update({(STARTS, name): None for name in names})
        try:
            await self._documents.save(gone)
        except TopicError as error:
            _log.warning(
                "the archive entry of a deleted topic could not be removed",
                topic_id=topic_id,
                reason=str(error),
            )

    async def stop(self) -> None:
        """Wait for the removal of deleted topics' archives, then stop. Queued reads are dropped."""
        if self._forgetting:
            await asyncio.wait(tuple(self._forgetting), timeout=_STOP_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
