"""A storage in memory: `broker.ports` without Redis. `tests/storage/test_contract.py` holds it to the real one."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from headrace.groups.model import GroupChange, StoredGroup
from headrace.groups.sharing.state import ShareState
from headrace.groups.snapshot import Snapshot
from headrace.membership.view import ALONE, Lock
from headrace.metrics.unreadable_values import Unreadable
from headrace.records.batch import peek
from headrace.records.markers import parse_marker
from headrace.storage.native.topics import RedisNative
from headrace.topics.errors import Fenced, StorageUnavailable, TopicChanged, TopicExists, UnknownTopic
from headrace.topics.leader_epochs import EpochRow, LeaderEpochs
from headrace.topics.model import Append, Lost, OpenedLog, PlaceDone, StoredBatch, Topic
from headrace.topics.native import STORAGE
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.segments import CleanedBatch, CleanedLog
from headrace.topics.transactions import (
    MOST_UNRELATED,
    AbortedTotal,
    AbortedTransaction,
    AbortedTransactions,
    OpenTransaction,
    Producers,
    TransactionChanges,
    Transactions,
    Unstable,
)
from headrace.transactions.model import NEW, SaveTransaction, StoredTransaction, TransactionChange, TransactionState


def _joined(found: list[StoredBatch], most: int) -> list[StoredBatch]:
    """All but the last as one, of at most so many bytes together; one at least."""
    size, fits = 0, 0
    for each in found:
        size += len(each.batch)
        if size > most and fits:
            break
        fits += 1
    if fits < 3:
        return found[:fits]
    *several, last = found[:fits]
    data = bytearray(b"".join(each.batch for each in several))
    return [StoredBatch(several[0].base_offset, last.base_offset, memoryview(data), len(several)), last]


class _Log:
    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.start = 0
        self.term = 0
        self.rows: list[EpochRow] = []
        self.producers: dict[int, ProducerStateEntry] = {}
        self.high_watermark = 0
        self.lost: Lost | None = None
        self.snapshot = 0
        self.unstable: dict[int, Unstable] = {}
        self.aborted: list[AbortedTransaction] = []
        self.index_lost = False

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start


class _Look:
    """`LogLook`."""

    def __init__(self, logs: "MemoryLogs", log: _Log) -> None:
        self.log_start, self.next_offset, self.high_watermark = log.start, log.end, log.high_watermark
        self.epochs = LeaderEpochs(log.rows) if log.rows else None
        self.cleaned = CleanedLog()
        self.read, self.find_timestamp = logs.read, logs.find_timestamp
        self.find_max_timestamp = logs.find_max_timestamp
        self._logs, self._log = logs, log

    async def transactions(self) -> Transactions | None:
        return None if self._log.index_lost else self._logs.transactions(self._log, whole=False)

    async def aborted(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        return []


class MemoryCopies:
    """`Copies`: a test says when there are enough of them."""

    can_replicate = True

    def __init__(self) -> None:
        self.asked: list[PlaceDone] = []
        self.patient: list[PlaceDone] = []
        """Callers that wait without a limit."""
        self.why = ""
        """Why there would be too few."""
        self.promoted = 0
        """How often another primary has taken over."""

    def primary(self, stream: str) -> object:
        return self.promoted

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: PlaceDone) -> None:
        (self.patient if wait_ms is None else self.asked).append(done)

    def why_too_few(self, stream: str, copies: int) -> str:
        return self.why

    def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest waiting request that has a timeout."""
        self.asked.pop(0)(error)

    def come(self, error: Exception | None = None) -> None:
        """Wake the callers that wait without a limit."""
        patient, self.patient = self.patient, []
        for done in patient:
            done(error)


class NoSegments:
    """`LogSegments` of logs that are never cleaned."""

    def cleaned(self, stream: str) -> CleanedLog:
        return CleanedLog()

    async def read(self, stream: str, number: int, offset: int, count: int) -> list[StoredBatch]:
        return []

    async def advance(self, stream: str, number: int, start: int, end: int, batches: Sequence[CleanedBatch]) -> None:
        raise AssertionError("nothing is cleaned here")

    async def write(self, stream: str, number: int, batches: Sequence[CleanedBatch]) -> None:
        raise AssertionError("nothing is cleaned here")

    async def swap(self, stream: str, numbers: Sequence[int], replacement: int | None) -> None:
        raise AssertionError("nothing is cleaned here")

    async def is_memory_short(self, stream: str) -> bool:
        return False

    async def close(self, stream: str) -> None:
        raise AssertionError("nothing is cleaned here")


class MemoryLogs:
    """`LogStorage`. What is placed is answered when `answer` is called, as Redis answers later."""

    segments = NoSegments()

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.copies = MemoryCopies()
        self.logs: dict[str, _Log] = {}
        self.waiting: list[tuple[str, int, Append, int, PlaceDone]] = []
        self.mirrored: dict[tuple[str, str], int] = {}
        self.allowed = False
        self.aborted_total = AbortedTotal()
        self.reads = 0

    async def open(self, stream: str, lost: Lost, *, create: bool = False, view: int | None = None) -> OpenedLog:
        self._shared.check()
        log = self.logs.get(stream)
        if log is None:
            if not create:
                raise UnknownTopic(stream)
            log = self.logs[stream] = _Log()
        log.term += 1
        log.lost = lost
        if log.rows and log.rows[-1].first == log.end:
            log.rows.pop()
        log.rows.append(EpochRow(log.term, log.end, log.term))
        producers = {each: known.copy() for each, known in log.producers.items()}
        epochs = LeaderEpochs(log.rows)
        return OpenedLog(
            log_start=log.start,
            next_offset=log.end,
            epochs=epochs,
            producers=producers,
            high_watermark=log.high_watermark,
            transactions=None if log.index_lost else self.transactions(log, whole=False),
        )

    def transactions(self, log: _Log, *, whole: bool) -> Transactions:
        stored = () if whole else log.unstable.values()
        aborted = AbortedTransactions(() if whole else log.aborted, total=self.aborted_total)
        found = Transactions(stored, aborted, used=bool(stored or log.aborted or whole), rebuilt=whole)
        for each in log.batches:
            header = peek(each.batch)
            if each.base_offset < log.snapshot and not whole:
                continue
            if header.is_control:
                found.end(header.producer_id, each.base_offset, commit=parse_marker(each.batch).commit)
            elif header.is_transactional:
                found.begin(OpenTransaction(header.producer_id, each.base_offset, header.producer_epoch, 0))
        return found

    def allow_transactions(self) -> asyncio.Task[None] | None:
        if self.allowed:
            return None
        self.allowed = True
        return asyncio.ensure_future(self._allow())

    async def _allow(self) -> None:
        self._shared.check()

    async def rebuild_transactions(self, stream: str) -> Transactions:
        await asyncio.sleep(0)
        self._shared.check()
        return self.transactions(self.logs[stream], whole=True)

    async def aborted(
        self, stream: str, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        self._shared.check()
        stored = self.logs[stream].aborted
        found = [each for each in stored if offset <= each.marker_offset < before and each.first_offset < end]
        if producers is None or len(found) <= MOST_UNRELATED:
            return found
        return [each for each in found if each.producer_id in producers()]

    def forget(self, stream: str, lost: Lost) -> None:
        log = self.logs.get(stream)
        if log is not None and log.lost == lost:
            log.lost = None

    def place(self, stream: str, append: Append, base_offset: int, done: PlaceDone) -> None:
        self.waiting.append((stream, self.logs[stream].term, append, base_offset, done))

    def answer(self, count: int | None = None) -> None:
        """Answer the oldest placements, all by default; where the storage is unavailable they are lost."""
        answered = self.waiting[:count]
        del self.waiting[: len(answered)]
        for stream, term, append, base_offset, done in answered:
            log = self.logs.get(stream)
            error = StorageUnavailable("the connection was lost")
            if log is None or term != log.term:
                done(error)
                continue
            if self._shared.unavailable:
                done(error)
                if log.lost is not None:
                    log.lost(error)
                continue
            assert base_offset == log.end, "the owner leaves no hole"
            log.batches.append(StoredBatch(base_offset, base_offset + append.span, bytes(append.batch)))
            header = peek(append.batch)
            if header.is_control:
                marker = parse_marker(append.batch)
                ended = log.producers.setdefault(marker.producer_id, ProducerStateEntry(marker.producer_epoch))
                ended.end(marker.producer_epoch, marker.number, 0)
            if append.producer_id >= 0:
                known = log.producers.setdefault(append.producer_id, ProducerStateEntry(append.producer_epoch))
                known.take(append.producer_epoch, append.base_sequence, append.span, base_offset, 0)
            done(None)

    async def look(self, stream: str) -> _Look:
        self._shared.check()
        return _Look(self, self.logs.get(stream, _Log()))

    async def settle(self, stream: str) -> None:
        self._shared.check()
        self.answer()

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        self._shared.check()
        self.reads += 1
        log = self.logs[stream].batches
        first = bisect_right(log, offset, key=lambda stored: stored.next_offset)
        found = log[first : first + count]
        if end is not None:
            found = [stored for stored in found if stored.next_offset <= end]
        return found if join is None else _joined(found, join)

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        return next((b for b in self.logs[stream].batches if peek(b.batch).max_timestamp >= timestamp), None)

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        found = max(self.logs[stream].batches, key=lambda b: peek(b.batch).max_timestamp, default=None)
        return None if found is None or peek(found.batch).max_timestamp < 0 else found

    async def save_producers(
        self,
        stream: str,
        offset: int | None,
        changes: dict[int, ProducerStateEntry | None],
        high_watermark: int | None = None,
        transactions: TransactionChanges | None = None,
    ) -> None:
        self._shared.check()
        self.answer()
        log = self.logs[stream]
        if offset is not None:
            log.snapshot = offset
        if transactions is not None:
            self._save_transactions(log, transactions)
        log.high_watermark = log.high_watermark if high_watermark is None else high_watermark
        for producer_id, known in changes.items():
            if known is None:
                log.producers.pop(producer_id, None)
            else:
                log.producers[producer_id] = known

    def _save_transactions(self, log: _Log, changes: TransactionChanges) -> None:
        if changes.rebuilt:
            log.unstable.clear()
            log.aborted.clear()
            log.index_lost = False
        for first, each in changes.unstable.items():
            if each is None:
                log.unstable.pop(first, None)
            else:
                log.unstable[first] = each
        log.aborted = [each for each in (*log.aborted, *changes.aborted) if each.marker_offset >= changes.first_aborted]

    async def trim(
        self,
        stream: str,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
        up_to: int | None = None,
    ) -> int:
        self._shared.check()
        log = self.logs[stream]
        batches = log.batches

        def may_go() -> bool:
            return bool(batches) and (up_to is None or batches[0].next_offset <= up_to)

        while may_go() and before_ms is not None and peek(batches[0].batch).max_timestamp < before_ms:
            log.start = batches.pop(0).next_offset
        while may_go() and max_bytes is not None and sum(len(b.batch) for b in batches[1:]) >= max_bytes:
            log.start = batches.pop(0).next_offset
        if before_offset is not None:
            log.start = max(log.start, min(before_offset, log.end))
            while batches and batches[0].next_offset <= log.start:
                batches.pop(0)
        return log.start

    async def size(self, stream: str) -> int:
        return sum(len(b.batch) for b in self.logs[stream].batches)

    async def mirror_offset(self, stream: str, group: str, offset: int) -> None:
        self.mirrored[stream, group] = offset


class MemoryTopics:
    """`TopicStorage`."""

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.stored: dict[str, Topic] = {}
        self.converted: list[Topic] = []
        """As they were before, with streams that are to go."""
        self.ids = 0

    def unreadable(self, name: str) -> str | None:
        return None

    async def delete_unreadable(self, name: str) -> None:
        raise UnknownTopic(f"topic {name!r} can be read")

    async def load(self) -> list[Topic]:
        return [self.stored[name] for name in sorted(self.stored)]

    async def find(self, name: str) -> Topic | None:
        self._shared.check()
        return self.stored.get(name)

    async def create(self, topic: Topic) -> None:
        self._shared.check()
        if topic.name in self.stored:
            raise TopicExists(f"topic {topic.name!r} exists already")
        self.stored[topic.name] = topic

    async def replace(self, topic: Topic, before: Topic, view: int | None = None) -> None:
        self._shared.check()
        if self.stored.get(topic.name) != before:
            raise TopicChanged(f"topic {topic.name!r} is another one by now")
        self.stored[topic.name] = topic
        if before.config.get(STORAGE) != topic.config.get(STORAGE):
            self.converted.append(before)

    async def note(self, topic: Topic) -> None:
        self.converted.append(topic)

    async def finish_deletions(self, of: Topic | None = None) -> None:
        while self.converted:
            topic = self.converted.pop()
            if topic.streams not in {each.streams for each in self.stored.values()}:
                await self.drop_streams(topic)

    async def delete(self, topic: Topic) -> Topic:
        self._shared.check()
        stored = self.stored.get(topic.name)
        if stored is None or stored.id != topic.id:
            raise UnknownTopic(f"topic {topic.name!r} does not exist any more")
        del self.stored[topic.name]
        await self.drop_streams(stored)
        return stored

    async def drop_streams(self, topic: Topic) -> None:
        for stream in topic.streams:
            self._shared.logs.logs.pop(stream, None)
            self._shared.shares.forget(stream)

    async def allocate_producer_ids(self, count: int) -> int:
        self._shared.check()
        self.ids += count
        return self.ids - count


class MemoryGroups:
    """`GroupStorage`."""

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.stored: dict[str, Snapshot] = {}
        self.answers: asyncio.Event | None = None
        """What a save waits for, where storage hangs."""

    async def load(self) -> list[StoredGroup]:
        return [group.stored for group in self.stored.values() if not group.nothing]

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        if self.answers is not None:
            await self.answers.wait()
        self._shared.check()
        self.stored.setdefault(group, Snapshot.empty(group)).apply(changes)

    async def names(self) -> list[str]:
        return sorted(self.stored)

    async def drop_offline(self, group: str) -> None:
        raise AssertionError(f"{group} is not offline")

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        return self.stored.get(name, Snapshot.empty(name)).stored

    def is_offline(self, group: str) -> bool:
        return False

    def forget(self, group: str) -> None:
        pass


class MemoryTransactions:
    """`TransactionStorage`."""

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.stored: dict[str, StoredTransaction] = {}
        self.saved: list[TransactionState] = []
        """States in the order of their writes."""
        self.answers: asyncio.Event | None = None
        """What a save waits for, where storage hangs."""
        self.error: Exception | None = None
        """What a save raises."""
        self.forgotten: list[str] = []

    async def names(self) -> list[str]:
        self._shared.check()
        return sorted(self.stored)

    async def load_one(self, name: str, view: int | None = None) -> StoredTransaction:
        self._shared.check()
        return self.stored.get(name, NEW)

    async def save(self, name: str, change: TransactionChange, view: int | None = None) -> None:
        if self.answers is not None:
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        self._shared.check()
        if isinstance(change, SaveTransaction):
            self.stored[name] = change.state
            self.saved.append(change.state.state)
        else:
            self.stored.pop(name, None)

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


class MemoryShares:
    """`ShareStorage`."""

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.stored: dict[tuple[str, str], ShareState] = {}
        self.saved: list[ShareState] = []
        """States in the order of their writes."""
        self.answers: asyncio.Event | None = None
        """What a save waits for, where storage hangs."""
        self.error: Exception | None = None
        """What a save raises."""

    async def init(self, stream: str, group: str, state: ShareState, copies: int = 1) -> bool:
        self._shared.check()
        before = self.stored.get((stream, group))
        if before is not None and before.epoch >= state.epoch:
            if before.epoch > state.epoch:
                raise Fenced(f"epoch {state.epoch} is over")
            return False
        self.stored[stream, group] = state
        return True

    async def look(self, stream: str, group: str) -> ShareState | None:
        self._shared.check()
        return self.stored.get((stream, group))

    async def load(self, stream: str, group: str) -> tuple[int, ShareState | None]:
        self._shared.check()
        return 1, self.stored.get((stream, group))

    async def save(self, stream: str, group: str, term: int, state: ShareState, copies: int = 1) -> bool:
        if self.answers is not None:
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        self._shared.check()
        before = self.stored.get((stream, group))
        if before is None or before.epoch != state.epoch:
            return False
        self.stored[stream, group] = state
        self.saved.append(state)
        return True

    async def drop(self, stream: str, group: str, epoch: int) -> None:
        self._shared.check()
        self.stored.pop((stream, group), None)

    def forget(self, stream: str) -> None:
        for key in [key for key in self.stored if key[0] == stream]:
            del self.stored[key]


class MemoryDocuments:
    """`DocumentStorage`."""

    def __init__(self, shared: "MemoryStorage") -> None:
        self._shared = shared
        self.stored: dict[tuple[str, str], bytes] = {}
        self.unreadable = Unreadable()

    async def load(self, kind: str) -> dict[str, bytes]:
        return {name: value for (k, name), value in sorted(self.stored.items()) if k == kind}

    async def find(self, kind: str, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self.stored[kind, name] for name in names if (kind, name) in self.stored}

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        self._shared.check()
        return self.stored.setdefault((kind, name), document)

    async def save(
        self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None
    ) -> Mapping[str, int]:
        self._shared.check()
        for key, value in changes.items():
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        return {}

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[Lock]:
        yield ALONE


class MemoryStorage:
    """All of `broker.ports` but native topics, which are Redis' own business."""

    native: RedisNative

    def __init__(self) -> None:
        self.unavailable = False
        self.logs = MemoryLogs(self)
        self.topics = MemoryTopics(self)
        self.groups = MemoryGroups(self)
        self.transactions = MemoryTransactions(self)
        self.shares = MemoryShares(self)
        self.documents = MemoryDocuments(self)

    def check(self) -> None:
        """Raise what a storage raises that does not answer."""
        if self.unavailable:
            raise StorageUnavailable("the connection was lost")
