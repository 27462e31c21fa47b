"""Check the records of produced batches before they get an offset.

Most batches are checked at once. Large ones are decompressed in threads, and others of the same partition wait for
them, so that no batch overtakes an earlier one of its producer. Waiting batches are bounded by the memory for requests.
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
from headrace.topics.errors import CorruptBatch, MessageTooLarge, StorageUnavailable, TopicError
from headrace.topics.model import AppendDone
from headrace.topics.record_checks import RecordChecks, check


class _Waiting(msgspec.Struct, eq=False):
    checks: RecordChecks | None
    place: str
    batch: Buffer
    append: Callable[[], None]
    done: AppendDone


class RecordChecker:
    """Checks the batches of all partitions of a server."""

    def __init__(self, decompression: Decompression) -> None:
        self._decompression = decompression
        self._waiting: dict[str, deque[_Waiting]] = {}
        """Stream -> its waiting batches, the first of which is being checked."""
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self,
        stream: str,
        place: str,
        checks: RecordChecks | None,
        batch: Buffer,
        append: Callable[[], None],
        done: AppendDone,
    ) -> None:
        """Call `append` once the records of a batch are accepted, after all earlier batches of its stream.

        `place` is the partition as Kafka's messages name it. Without `checks`, the batch only keeps its turn.

        Raises:
            InvalidRecords, CorruptBatch, errors of `append`. For a waiting batch, `done` gets them.
        """
        waiting = self._waiting.get(stream)
        if waiting is None:
            if checks is None or self._checked_here(checks, place, batch):
                append()
                return
            waiting = self._waiting[stream] = deque()
            task = asyncio.get_running_loop().create_task(self._check_waiting(waiting))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, stream))
        waiting.append(_Waiting(checks, place, batch, append, done))

    def _checked_here(self, checks: RecordChecks, place: str, batch: Buffer) -> bool:
        """Check a small batch. Return whether that was possible in this turn of the event loop."""
        if len(batch) > HERE or self._decompression.turn_is_over:
            return False
        try:
            self._decompression.count(check(checks, place, batch, limit=HERE))
        except BatchTooLarge:
            return False
        except BatchError as error:
            raise _unreadable(error) from None
        return True

    async def _check_waiting(self, waiting: deque[_Waiting]) -> None:
        while waiting:
            first = waiting[0]
            try:
                if first.checks is not None:
                    await self._check(first.checks, first.place, first.batch)
                first.append()
            except TopicError as refused:
                tell(first.done, refused, "a batch whose records were checked")
            waiting.popleft()

    def _ended(self, stream: str, task: "asyncio.Task[None]") -> None:
        """Fail the batches that a cancelled task has left."""
        self._tasks.discard(task)
        for each in self._waiting.pop(stream):
            tell(each.done, StorageUnavailable("the server is stopping"), "a batch whose records were not checked")

    async def _check(self, checks: RecordChecks, place: str, batch: Buffer) -> None:
        await self._decompression.turn()
        if self._checked_here(checks, place, batch):
            return
        look = partial(check, checks, place, batch)
        try:
            if peek(batch).codec == NONE:
                await self._decompression.usual(look)
                return
            try:
                await self._decompression.usual(partial(look, limit=USUAL))
            except BatchTooLarge:
                await self._decompression.large(partial(look, limit=MOST))
        except BatchTooLarge as error:
            raise MessageTooLarge(str(error)) from None
        except BatchError as error:
            raise _unreadable(error) from None


def _unreadable(error: BatchError) -> CorruptBatch:
    return CorruptBatch(f"the records of a batch cannot be read: {error}")
