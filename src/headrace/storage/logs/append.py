"""Append batches to the streams of logs, at offsets that the leader has assigned.

Each log has at most one call in flight. Later batches share the next call, a MULTI that Redis accepts or rejects as a
whole, so a rejection leaves no gap. Each call ends with XLEN: after an unexpected length, another program has written
to the stream.

A lost response, a rejected write or an unexpected reply ends the leadership. All calls fail, and the log must be
recovered.

If Redis is on this machine, small calls of several logs wait for all responses and leave together, so that each process
wakes up once. The journal acknowledges small batches before they are sent (see `journal.acks`), so they linger.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns

import structlog

from headrace.aio.tasks import tell
from headrace.metrics.counters import TICKS, StoreCounters
from headrace.storage.free_space import FreeSpace
from headrace.storage.journal.acks import JournaledAcks
from headrace.storage.logs.leader_log import Batch, BatchCall, LeaderLog, ScriptCall, ignore_loss
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import PING, Chunk, Reply
from headrace.storage.redis.replies import error_of
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.topics.errors import StorageFull, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append, PlaceDone

LARGE = 64 << 10
"""Minimum bytes of a batch that is neither copied nor acknowledged from the journal."""
_LINGER_SHARE = 16
"""Acknowledged batches linger until they fill this fraction (1/n) of the journal, or for `_LINGER_S`."""
_LINGER_S = 0.005
_CALL_BYTES = 4 << 20
"""Maximum bytes of one call, for a steady flow of responses."""
_CALL_BATCHES = 512
_COPY_BELOW = 4_096
"""Smaller batches are copied next to their command, which is cheaper than a vector entry."""
_NS_PER_TICK = 1_000_000_000 // TICKS
_APPEND = "an append"
"""Name of the call in logs."""
_MULTI = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC = b"*1\r\n$4\r\nEXEC\r\n"
_log = structlog.get_logger("headrace.storage.logs")


class StreamAppender:
    """Sends each log's batches in order, over the connection of its recovery."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        early: JournaledAcks | None = None,
        disk: FreeSpace | None = None,
        counted: StoreCounters | None = None,
        file: AppendOnlyFile | None = None,
    ) -> None:
        """Start without logs."""
        self.logs: dict[str, LeaderLog] = {}
        """Logs that this server leads, by stream."""
        self._now_ms = now_ms
        self._early = early
        self._disk = disk
        self._file = file
        self._due: dict[LeaderLog, None] = {}
        """Logs to send from at the end of this turn of the event loop."""
        self._lingering: dict[LeaderLog, None] = {}
        """Logs whose acknowledged batches linger."""
        self._lingering_bytes = 0
        self._linger_bytes = 0 if early is None else early.size // _LINGER_SHARE
        self._timer: asyncio.TimerHandle | None = None
        self._counted = counted or StoreCounters()
        self._asked: dict[Connection, int] = {}
        """Calls in flight per connection."""

    def place(self, stream: str, append: Append, base_offset: int, done: PlaceDone) -> None:
        """Append a batch; see `broker.log_ports.LogStorage.place`.

        `done` is called before this returns, or by the reader of the connection.
        """
        log = self.logs.get(stream)
        if log is None:
            done(UnknownTopic(f"{stream} was deleted"))
            return
        if log.fenced_reason is not None:
            done(log.fenced_reason)
            return
        size = len(append.batch)
        if self._disk is not None and not self._disk.has_room(size):
            self._refuse(log, self._disk.refusal(), done)
            return
        batch = Batch(append, base_offset, done)
        log.waiting.append(batch)
        log.waiting_bytes += size
        early = self._early
        if early is not None and size < LARGE and not log.unacknowledged:
            batch.entered = early.enter(log.key, log.id, base_offset, append)
        if batch.entered is None:
            log.unacknowledged += 1
            self._send_soon(log)
            return
        batch.done = None
        log.acknowledged.append(batch)
        self._lingering[log] = None
        self._lingering_bytes += size
        if self._lingering_bytes >= self._linger_bytes:
            self._send_lingering()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self._lingered)
        done(None)

    def _refuse(self, log: LeaderLog, error: StorageFull, done: PlaceDone) -> None:
        """The leader has assigned the offset, so it must recover the log."""
        done(error)
        self.fail(log, error)

    def run(
        self, log: LeaderLog, command: bytes, apply: Callable[[Reply], None] | None = None
    ) -> "asyncio.Future[Reply]":
        """Send a command after all placed batches, and return the reply, which may be an error.

        `apply` is called before the log's next call. Raises the error that ended the leadership.
        """
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if log.fenced_reason is not None:
            answer.set_exception(type(log.fenced_reason)(str(log.fenced_reason)))
            return answer

        def answered(reply: Reply) -> None:
            if apply is not None:
                apply(reply)
            # The waiter may have been canceled.
            if not answer.done():
                answer.set_result(reply)

        log.waiting.append(ScriptCall(command, answered))
        self._send_soon(log)
        return answer

    def _send_soon(self, log: LeaderLog) -> None:
        log.urgent = True
        if log.under_way is None:
            self._due[log] = None
            connection = log.connection
            busy = connection in self._asked
            if not (busy and connection.near and self._early is None and log.waiting_bytes < LARGE):
                connection.before_flush(self._send_due)

    def _lingered(self) -> None:
        self._timer = None
        self._send_lingering()

    def _send_lingering(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for log in self._lingering:
            self._send_soon(log)
        self._lingering.clear()
        self._lingering_bytes = 0

    def flush(self) -> None:
        """Send lingering batches now."""
        self._send_lingering()
        self._send_due()

    def _send_due(self) -> None:
        due, self._due = self._due, {}
        for log in due:
            if log.under_way is None and log.waiting:
                self._send(log)

    def _send(self, log: LeaderLog) -> None:
        waiting = log.waiting
        first = waiting[0]
        if isinstance(first, ScriptCall):
            waiting.popleft()
            log.urgent = bool(waiting)
            log.under_way = first
            connection = log.connection
            self._asked[connection] = self._asked.get(connection, 0) + 1
            connection.send([first.command], partial(self._script_answered, log, first, connection))
            return
        if self._file is not None:
            self._file.grows()
        batches: list[Batch] = []
        size = 0
        while waiting and size < _CALL_BYTES and len(batches) < _CALL_BATCHES:
            batch = waiting[0]
            if isinstance(batch, ScriptCall):
                break
            batches.append(batch)
            size += len(batch.append.batch)
            waiting.popleft()
        log.waiting_bytes -= size
        log.urgent = bool(waiting)
        call = BatchCall(batches, size, 0 if self._early is None else self._early.stored_to)
        log.under_way = call
        connection = log.connection
        self._asked[connection] = self._asked.get(connection, 0) + 1
        count = len(batches)
        replies: list[Reply] = []
        answered = partial(self._answered, log, call, connection, replies)
        # Several batches: MULTI, XADD for each, XLEN, EXEC.
        before = [replies.append] * (1 if count == 1 else count + 2)
        connection.send_several(self._commands(log, batches), [*before, answered])

    def _commands(self, log: LeaderLog, batches: Sequence[Batch]) -> list[Chunk]:
        several = len(batches) > 1
        small: list[Chunk] = [_MULTI] if several else []
        chunks: list[Chunk] = []
        xadd, term, newest, total = log.xadd, log.term, log.newest, log.size
        for batch in batches:
            append = batch.append
            data = append.batch
            size = len(data)
            # Without a timestamp, use the arrival, so that retention does not expire the records.
            time = append.max_timestamp if append.max_timestamp >= 0 else self._now_ms()
            if time > newest:  # noqa: PLR1730  # max() takes three times as long
                newest = time
            total += size
            entry_id = b"%d-%d" % (term, batch.base_offset + append.span)
            small.append(b"%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n" % (xadd, len(entry_id), entry_id, size))
            if size < _COPY_BELOW:
                small.append(data)
            else:
                chunks += (b"".join(small), data)
                small = []
            newest_text, total_text = b"%d" % newest, b"%d" % total
            small.append(
                b"\r\n$1\r\nt\r\n$%d\r\n%b\r\n$1\r\ns\r\n$%d\r\n%b\r\n"
                % (len(newest_text), newest_text, len(total_text), total_text)
            )
        log.newest, log.size = newest, total
        small.append(log.xlen)
        if several:
            small.append(_EXEC)
        chunks.append(b"".join(small))
        return chunks

    def _heard(self, connection: Connection) -> None:
        left = self._asked[connection] - 1
        if left:
            self._asked[connection] = left
            return
        del self._asked[connection]
        if self._due:
            connection.before_flush(self._send_due)

    def _answered(
        self, log: LeaderLog, call: BatchCall, connection: Connection, replies: list[Reply], last: Reply
    ) -> None:
        """Clients get their responses before Redis gets more work, because it competes for a core."""
        try:
            if log.under_way is call:
                self._take_answers(log, call, replies, last)
        finally:
            self._heard(connection)

    def _take_answers(self, log: LeaderLog, call: BatchCall, replies: list[Reply], last: Reply) -> None:
        counted, count = self._counted, len(call.batches)
        counted.append_durations.add((perf_counter_ns() - call.sent_ns) // _NS_PER_TICK)
        entries = log.entries + count
        # Nearly every call is one batch in its place.
        if last != entries or count > 1 or type(replies[0]) is not bytes:
            error = _fault(log, count, replies, last)
            if error is not None:
                if isinstance(error, StorageFull):
                    counted.refusal = str(error)
                self.fail(log, error)
                return
        counted.refusal = ""
        log.entries = entries
        counted.appends += count
        counted.append_bytes += call.size
        if self._early is not None:
            self._early.proven(call.proof)
        if self._disk is not None and log.unacknowledged and self._disk.low():
            if self._disk.gone:
                self.fail(log, self._disk.refusal())
                return
            # A response does not prove a write to disk; the response to a later command does.
            log.connection.send([PING], partial(self._proven, log, call))
            return
        self._settle(log, call)

    def _proven(self, log: LeaderLog, call: BatchCall, reply: Reply) -> None:
        if log.under_way is not call:
            return
        if isinstance(reply, Exception):
            self.fail(log, error_of(reply))
        else:
            self._settle(log, call)

    def _settle(self, log: LeaderLog, call: BatchCall) -> None:
        log.under_way = None
        for batch in call.batches:
            done = batch.done
            if done is None:
                log.acknowledged.popleft()
                assert batch.entered is not None
                assert self._early is not None
                self._early.stored(batch.entered)
                continue
            if log.fenced_reason is None:  # a callback may have ended the leadership
                log.unacknowledged -= 1
            tell(done, None, _APPEND)
        self._go_on(log)

    def _go_on(self, log: LeaderLog) -> None:
        if log.waiting and (log.urgent or log.waiting_bytes >= self._linger_bytes):
            self._send_soon(log)

    def _script_answered(self, log: LeaderLog, called: ScriptCall, connection: Connection, reply: Reply) -> None:
        self._heard(connection)
        ours = log.under_way is called
        if ours:
            log.under_way = None
        called.answered(reply)
        if ours and Connection.is_redirection(reply):
            # As with a batch: recover the log on its new shard.
            self.fail(log, error_of(reply))
        elif log.fenced_reason is None:
            self._go_on(log)

    def fail(self, log: LeaderLog, error: Exception) -> None:
        """End the leadership: all calls fail, and the log must be recovered."""
        if log.fenced_reason is not None:
            return
        log.fenced_reason = error
        under_way = () if log.under_way is None else log.under_way.batches
        failed = [*under_way, *log.waiting]
        self._counted.refused += sum(isinstance(each, Batch) for each in failed)
        log.waiting.clear()
        log.waiting_bytes = 0
        log.under_way = None
        log.urgent = False
        log.unacknowledged = 0
        self._lingering.pop(log, None)
        behind = bool(log.acknowledged)
        for each in failed:
            if isinstance(each, ScriptCall):
                each.answered(error)
            elif each.done is not None:
                tell(each.done, error, _APPEND)
        log.on_lost(error)
        if behind:
            _log.warning("acknowledged batches are not in Redis yet", stream=log.name, reason=str(error))

    def settle_dropped(self, log: LeaderLog) -> None:
        """Discard the pending batches of a deleted log."""
        log.on_lost = ignore_loss
        acknowledged, log.acknowledged = log.acknowledged, deque()
        self.fail(log, UnknownTopic(f"{log.name} was deleted"))
        for each in acknowledged:
            entered = each.entered
            if entered is not None and self._early is not None:
                self._early.stored(entered)


_BEHIND = "equal or smaller than the target stream top item"
"""Redis's error for an id below the last one: a later leader has a higher term."""


def _fault(log: LeaderLog, count: int, replies: list[Reply], last: Reply) -> Exception | None:
    refusal = last
    if count == 1:
        told = [*replies, last]
    elif type(last) is list:
        told, refusal = last, None
    else:
        told = []
        refusal = next((each for each in replies if type(each) is not bytes), last)
    if len(told) == count + 1:
        length = told.pop()
        refusal = next((each for each in told if type(each) is not bytes), length)
        if refusal is length:
            if length == log.entries + count:
                return None
            if not isinstance(length, Exception):
                _log.warning(
                    "a log has unexpected entries: another program wrote to it; the leader recovers it",
                    stream=log.name,
                    entries=length,
                    expected=log.entries + count,
                )
                return StorageUnavailable(
                    f"{log.name} has {length} entries instead of {log.entries + count}: another program wrote to it"
                )
            refusal = length
        elif not isinstance(refusal, Exception):
            return StorageUnavailable(f"{log.name}: the stream is gone")
    error = error_of(refusal) if isinstance(refusal, Exception) else None
    if isinstance(error, StorageFull | StorageUnavailable):
        return error
    if _BEHIND in str(refusal):
        return StorageUnavailable(f"{log.name} has entries of another broker that has opened it since, try again")
    return StorageUnavailable(f"Redis refused an append: {error or refusal}")
