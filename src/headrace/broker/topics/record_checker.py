"""Check the records of produced batches before they get an offset.

Most batches are checked at once. Large ones are read in threads, and unknown schemas take a look at the registry of
other brokers. Later batches of the same partition wait for these, so that no batch overtakes an earlier one of its
producer. Waiting batches are bounded by the memory for requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from headrace.aio.tasks import tell
from headrace.broker.partition.cache import Buffer
from headrace.broker.runtime.decompression import HERE, MOST, USUAL, Decompression
from headrace.records.batch import peek
from headrace.records.compression import NONE
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.topics.errors import CorruptBatch, InvalidConfig, MessageTooLarge, StorageUnavailable, TopicError
from headrace.topics.model import AppendDone
from headrace.topics.record_checks import DISABLED, RecordChecks, Scanned, Schemas, faults, rejected, scan


class CheckedBatch(msgspec.Struct, eq=False):
    """A batch on its way to a partition."""

    topic: str
    partition: int
    checks: RecordChecks | None
    """None: it only keeps its turn."""
    batch: Buffer
    append: Callable[[], None]
    """Called once the records are accepted."""
    done: AppendDone
    """Called with the error if they are rejected later."""
    scanned: Scanned | None = None


class RecordChecker:
    """Checks the batches of all partitions of a server."""

    def __init__(self, decompression: Decompression) -> None:
        self._decompression = decompression
        self.schemas: Schemas | None = None
        """The schema registry, once it is loaded. None: it is disabled."""
        self._waiting: dict[str, deque[CheckedBatch]] = {}
        """Stream -> its waiting batches, the first of which is being checked."""
        self._tasks: set[asyncio.Task[None]] = set()

    def check_attainable(self, checks: RecordChecks | None, present: RecordChecks | None = None) -> None:
        """Raise InvalidConfig if checks that are new need what is disabled."""
        if self.schemas is not None or checks is None:
            return
        before = () if present is None else {each.part for each in present.schemas}
        for part in (each.part for each in checks.schemas):
            if part not in before:
                raise InvalidConfig(f"{part.validation}=true: {DISABLED}")

    def append(self, stream: str, given: CheckedBatch) -> None:
        """Append a batch once its records are accepted, after all earlier batches of its stream.

        Raises:
            InvalidRecords, CorruptBatch, errors of the append. For a waiting batch, `done` gets them.
        """
        waiting = self._waiting.get(stream)
        if waiting is None:
            checks = given.checks
            if checks is None or (self._read_here(checks, given) and not self._unknown(checks, given)):
                given.append()
                return
            waiting = self._waiting[stream] = deque()
            task = asyncio.get_running_loop().create_task(self._check_waiting(stream, waiting))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, stream, waiting))
        waiting.append(given)

    def _read_here(self, checks: RecordChecks, given: CheckedBatch) -> bool:
        """Read a small batch. Return whether that was possible in this turn of the event loop."""
        if len(given.batch) > HERE or self._decompression.turn_is_over:
            return False
        try:
            given.scanned = scan(checks, given.batch, limit=HERE)
        except BatchTooLarge:
            return False
        except BatchError as error:
            raise _unreadable(error) from None
        self._decompression.count(given.scanned.size)
        return True

    def _unknown(self, checks: RecordChecks, given: CheckedBatch, *, final: bool = False) -> list[bytes]:
        """Return the unknown schemas of a batch that was read. None: it is accepted.

        Raises InvalidRecords. With `final`, unknown schemas are wrong.
        """
        assert given.scanned is not None, "it has been read"
        found = faults(checks, given.topic, given.partition, given.scanned, self.schemas)
        if found.total and (final or not found.unknown):
            raise rejected(found)
        return found.unknown

    async def _check_waiting(self, stream: str, waiting: deque[CheckedBatch]) -> None:
        while waiting:
            first = waiting[0]
            try:
                if first.checks is not None:
                    await self._check(first.checks, first)
                first.append()
            except TopicError as refused:
                tell(first.done, refused, "a batch whose records were checked")
            waiting.popleft()
        # In the turn of the last look at the queue: a batch that comes between would wait for a task that has ended.
        del self._waiting[stream]

    def _ended(self, stream: str, waiting: deque[CheckedBatch], task: "asyncio.Task[None]") -> None:
        """Fail the batches that a cancelled task has left."""
        self._tasks.discard(task)
        if self._waiting.get(stream) is waiting:
            del self._waiting[stream]
        for each in waiting:
            tell(each.done, StorageUnavailable("the server is stopping"), "a batch whose records were not checked")

    async def _check(self, checks: RecordChecks, given: CheckedBatch) -> None:
        if given.scanned is None:
            await self._decompression.turn()
            if not self._read_here(checks, given):
                given.scanned = await self._read(checks, given.batch)
        unknown = self._unknown(checks, given)
        if unknown:
            assert self.schemas is not None, "without a registry, no schema is unknown"
            await self.schemas.learn(unknown, names=checks.needs_names)
            self._unknown(checks, given, final=True)

    async def _read(self, checks: RecordChecks, batch: Buffer) -> Scanned:
        look = partial(scan, checks, batch)
        try:
            if peek(batch).codec == NONE:
                return await self._decompression.usual(look)
            try:
                return await self._decompression.usual(partial(look, limit=USUAL))
            except BatchTooLarge:
                return await self._decompression.large(partial(look, limit=MOST))
        except BatchTooLarge as error:
            raise MessageTooLarge(str(error)) from None
        except BatchError as error:
            raise _unreadable(error) from None


def _unreadable(error: BatchError) -> CorruptBatch:
    return CorruptBatch(f"the records of a batch cannot be read: {error}")
