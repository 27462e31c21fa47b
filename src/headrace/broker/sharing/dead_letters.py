"""Copies of dead letters: records that members reject, or that reach the delivery limit (KIP-1191).

A record is done only after the dead letter topic has its copy. If this server ends between the two steps, the next
leader copies it again. The server repeats a failed copy, and the record stays in the window of the share partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakSet

import structlog

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.runtime.clock import Clock, pause
from headrace.broker.runtime.decompression import MOST, USUAL, Decompression
from headrace.broker.topics.live import AppendBatch, LiveTopic
from headrace.groups.configs import GroupConfig
from headrace.groups.sharing.dead_letter import Origin, headers_of, reason
from headrace.groups.sharing.partition import DeadLetters, SharePartition
from headrace.metrics.counters import DeadLetterCounters
from headrace.records.batch import peek
from headrace.records.build import build
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.records.walk import Record, records
from headrace.topics.errors import InvalidConfig, StorageUnavailable, TopicError
from headrace.topics.model import Appended

MOST_RECORDS = 500
MOST_BYTES = 1 << 20
"""Bytes of keys and values in a batch of the dead letter topic, unless a single record has more."""
_AT_ONCE = 4
"""Copies in progress in a virtual cluster on one broker. Each holds a batch with its records."""
_FIRST_PAUSE_MS = 1_000
_LAST_PAUSE_MS = 60_000
_log = structlog.get_logger("headrace.broker.sharing")

Letter = tuple[Record, int]
"""A record that a group has given up, and its number of deliveries."""


class Waiting(Protocol):
    """Dead letters of a partition in a share group."""

    @property
    def waiting(self) -> int:
        """Number of records that wait for their copies."""

    def close(self) -> None:
        """Stop."""


class DeadLetterTopics:
    """Writes to the dead letter topics of a virtual cluster."""

    def __init__(
        self,
        find: Callable[[str], LiveTopic],
        cluster: str,
        elsewhere: Callable[[], AppendBatch | None],
        decompression: Decompression,
        clock: Clock,
    ) -> None:
        """`find` returns a topic by its name, or raises UnknownTopic. `elsewhere`: see `Services.append_batch`."""
        self.counters = DeadLetterCounters()
        self._find = find
        self._cluster = cluster
        self._elsewhere = elsewhere
        self._decompression = decompression
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._copies: WeakSet[Waiting] = WeakSet()
        self.stopped = False
        """Whether the server ends. The next leader copies what waits."""

    def stop(self) -> None:
        """Copy nothing more: the threads and the storage end."""
        self.stopped = True
        for each in list(self._copies):
            each.close()

    @property
    def waiting(self) -> int:
        """Number of records that wait for their copies."""
        return sum(each.waiting for each in self._copies)

    def add(self, copies: Waiting) -> None:
        """Count what waits there."""
        self._copies.add(copies)

    async def copy(self, group: str, log: LeaderPartition, letters: DeadLetters, config: GroupConfig) -> int:
        """Copy dead letters of one share partition, as many as fit in a batch. Return the offset after them.

        Raises:
            UnknownTopic, InvalidConfig: the dead letter topic does not exist, or does not allow them.
            TopicError: a record cannot be read or written now.
        """
        following = letters.first

        async def read() -> list[Letter]:
            nonlocal following
            if config.dead_letter_copy:
                found, following = await self._read(log, letters)
            else:
                following = min(letters.last + 1, letters.first + MOST_RECORDS)
                found = list(map(empty, range(letters.first, following)))
            return [(record, letters.delivery_count) for record in found]

        await self.copy_read(group, log, config, read)
        return following

    async def copy_read(
        self, group: str, log: Partition, config: GroupConfig, read: Callable[[], Awaitable[Sequence[Letter]]]
    ) -> None:
        """Copy the records that `read` returns, as one batch. Raises as `copy`."""
        async with self._slots:
            target = self._target(config.dead_letter_topic, log)
            found = await read()
            if found:
                await self._append(target, log.index % len(target.partitions), self._batch(group, log, config, found))
                self.counters.copied += len(found)

    async def _append(self, live: LiveTopic, index: int, batch: bytearray) -> None:
        elsewhere = self._elsewhere()
        if elsewhere is not None and not live.open_to_all:
            await elsewhere(self._cluster, live, index, batch)
            return
        done: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
        live.append(index, batch, self._clock.now_ms(), partial(_settle, done), most_bytes=MOST)
        result = await done
        if isinstance(result, Exception):
            raise result if isinstance(result, TopicError) else StorageUnavailable(str(result))

    def _target(self, name: str, log: Partition) -> LiveTopic:
        live = self._find(name)
        if not live.config.dead_letters:
            raise InvalidConfig(
                f"topic {name!r} allows no dead letters: set its errors.deadletterqueue.group.enable to true"
            )
        if name == log.topic:
            raise InvalidConfig(f"topic {name!r} cannot be the dead letter topic of its own records")
        return live

    async def _read(self, log: LeaderPartition, letters: DeadLetters) -> tuple[list[Record], int]:
        first = letters.first
        log.check_readable(first)
        if log.cached(first):
            batches, _ = log.read_cached(first, 1, whole_first=True)
        else:
            batches, _ = await log.read_stored(first, 1)
        if not batches:
            raise TopicError(f"offset {first} of {log.topic}-{log.index} cannot be read now")
        batch = batches[0]
        header = peek(batch)
        following = min(header.base_offset + header.span, letters.last + 1)
        if header.base_offset > first:
            # The cleaner has removed the record.
            return [], min(header.base_offset, letters.last + 1)
        size = 0
        found: list[Record] = []
        for record in await self._records(batch, range(first, following)):
            size += len(record.key or b"") + len(record.value or b"")
            if found and (len(found) == MOST_RECORDS or size > MOST_BYTES):
                return found, record.offset
            found.append(record)
        return found, following

    async def _records(self, batch: Buffer, offsets: range) -> list[Record]:
        base_offset = peek(batch).base_offset
        try:
            try:
                found = await self._decompression.usual(partial(records, batch, base_offset, limit=USUAL))
            except BatchTooLarge:
                found = await self._decompression.large(partial(records, batch, base_offset))
        except BatchError as error:
            _log.warning(
                "dead letters are copied without their unreadable records", offset=base_offset, reason=str(error)
            )
            return list(map(empty, offsets))
        return [record for record in found if record.offset in offsets]

    def _batch(self, group: str, log: Partition, config: GroupConfig, found: Sequence[Letter]) -> bytearray:
        limit, now_ms = config.share_delivery_count_limit, self._clock.now_ms()
        # Not the timestamp of the record: retention would remove an old one at once.
        return build(
            (
                record.key,
                record.value,
                now_ms,
                headers_of(
                    Origin(log.topic, log.index, record.offset, group, count, reason(count, limit)), record.headers
                ),
            )
            for record, count in found
        )


def _settle(done: "asyncio.Future[Appended | Exception]", result: Appended | Exception) -> None:
    if not done.done():
        done.set_result(result)


def empty(offset: int) -> Record:
    """Return a dead letter with only its origin."""
    return Record(offset, -1, None, None, ())


class Copying:
    """Copies dead letters of one partition in steps. It repeats a failed step after a pause."""

    def __init__(
        self,
        group: str,
        log: Partition,
        topics: DeadLetterTopics,
        config: Callable[[], GroupConfig],
        clock: Clock,
        step: Callable[[GroupConfig], Awaitable[bool]],
        stopped: Callable[[], None],
    ) -> None:
        """`step` copies some dead letters, and returns whether there were any.

        `stopped` is called when nothing is left, and when a step failed.
        """
        self._group = group
        self._log = log
        self._topics = topics
        self._config = config
        self._clock = clock
        self._step = step
        self._stopped = stopped
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.failing = False
        """Whether the last step failed."""
        self._reason = ""
        """Why it failed, as in the log."""

    @property
    def _place(self) -> str:
        return f"{self._log.topic}-{self._log.index}"

    @property
    def active(self) -> bool:
        """Whether a step is in progress, or to be repeated."""
        return self._task is not None

    def begin(self) -> None:
        """Begin, or look again after the step in progress. Do nothing while the server stops."""
        if self._topics.stopped:
            return
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Stop at once."""
        task, self._task, self.failing = self._task, None, False
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        pause_ms, task = _FIRST_PAUSE_MS, self._task
        more = True
        while self._task is task and (more or self._again):
            self._again = False
            config = self._config()
            try:
                more = await self._step(config)
            except Exception as error:  # the records would wait for ever
                if not isinstance(error, TopicError):
                    _log.exception("dead letters were not copied", group=self._group, topic=self._log.topic)
                self._report(error, config.dead_letter_topic)
                await pause(self._clock, pause_ms)
                pause_ms, more = min(2 * pause_ms, _LAST_PAUSE_MS), True
                continue
            pause_ms = _FIRST_PAUSE_MS
            if self.failing:
                self.failing, self._reason = False, ""
                _log.info("dead letters are copied again", group=self._group, partition=self._place)
        if self._task is task:
            self._task = None
            self._stopped()

    def _report(self, error: Exception, topic: str) -> None:
        self._topics.counters.failures += 1
        # A topic that was created may not allow dead letters yet.
        if not self.failing or str(error) != self._reason:
            self._reason = str(error)
            _log.warning(
                "dead letters wait: the server cannot copy them", group=self._group, partition=self._place, topic=topic,
                reason=self._reason,
            )  # fmt: skip
        self.failing = True
        self._stopped()


class DeadLetterCopies:
    """Copies of one share partition's dead letters, one batch at a time."""

    def __init__(
        self,
        group: str,
        log: LeaderPartition,
        topics: DeadLetterTopics,
        config: Callable[[], GroupConfig],
        clock: Clock,
        copied: Callable[[], None],
    ) -> None:
        """`copied` is called after each batch, to store the share partition, and when copies fail."""
        self._group = group
        self._log = log
        self._topics = topics
        self._copied = copied
        self._core: SharePartition | None = None
        self._copying = Copying(group, log, topics, config, clock, self._step, copied)
        topics.add(self)

    @property
    def failing(self) -> bool:
        """Whether the last copy failed."""
        return self._copying.failing

    @property
    def waiting(self) -> int:
        """Number of records that wait for their copies."""
        core = self._core
        return 0 if core is None else sum(last - first + 1 for first, last, _ in core.dead_letters())

    def look(self, core: SharePartition) -> None:
        """Begin to copy, if there are dead letters."""
        if self._core is not core:
            self._copying.close()
            self._core = core
        if not self._copying.active and core.dead_letters():
            self._copying.begin()

    def close(self) -> None:
        """Stop. The next leader continues."""
        self._core = None
        self._copying.close()

    async def _step(self, config: GroupConfig) -> bool:
        core = self._core
        if core is None:
            return False
        core.advance_log_start(self._log.log_start)
        letters = core.dead_letters()
        if not letters:
            return False
        if config.dead_letter_topic:
            following = await self._topics.copy(self._group, self._log, letters[0], config)
            core.dead_lettered(letters[0].first, following - 1)
        else:
            for each in letters:
                core.dead_lettered(each.first, each.last)
        self._copied()
        return True
