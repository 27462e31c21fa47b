"""Appends without the script, where this server alone can reach the Redis.

What the script costs is mostly Lua: each batch is copied and hashed on its way in and out of it. Where nobody else
writes, this server knows of itself where a log ends and what its producers sent last. Whatever is plainly in order then
goes as XADD and HSET between MULTI and EXEC: to the byte what the script would have written, and as atomic. Everything
else, a retry, a gap, a producer not seen before, is left to the script, which decides by what Redis has; so the rules
stay in one place. What is known here is learnt from Redis right behind a call of the script, and forgotten at the first
doubt.

Of one log there is at most one call under way: the next one begins where that one has ended. See decision 0007.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from headrace.keyspace.keys import producers_of, state_of
from headrace.store.appends import (
    COPY_BELOW,
    GROUP_BATCHES,
    GROUP_BYTES,
    LARGE,
    AnsweredByRedis,
    AppendDone,
    bulk,
    refused,
    result_of,
    script_call,
)
from headrace.store.connection import Chunk, Connection, Reply
from headrace.store.resp import BULK, NUMBER, PAIR, fill
from headrace.topics.model import Append, Appended
from headrace.topics.sequences import SEQUENCES

_MOST_OFFSET = 2**53 - 1
_REMEMBERED = 5
"""Batches of a producer that the script can tell again, as it keeps them."""
_MOST_PRODUCERS = 1_000
"""Producers known of one log; all are forgotten when there are more. The script knows every one."""
_MOST_BYTES = 4 << 20
"""What one call may hold, so that answers come in a steady flow."""
_COMPANY_S = 0.005
"""How long a batch that nobody waits for waits for others."""
_NOT_HANDLED = "the answer to an append could not be handled"
"""One request's trouble; every other one still gets its own answer."""
_NO_ERROR = frozenset({bytes, int})
"""What XADD and HSET answer."""
_ENTRY = PAIR + b"$1\r\nb\r\n$" + NUMBER + b"\r\n"
_ENTRY_END = b"\r\n$1\r\nt\r\n" + BULK + b"$1\r\ns\r\n" + BULK
_STATE = b"$1\r\nn\r\n" + BULK + b"$1\r\nt\r\n" + BULK + b"$1\r\ns\r\n" + BULK
_MULTI = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC = b"*1\r\n$4\r\nEXEC\r\n"
_log = structlog.get_logger("headrace.store")


class _Producer:
    """What the producers hash has of a producer: see `keyspace/lua/append.lua`."""

    __slots__ = ("batches", "epoch", "expected", "put")

    def __init__(self, stored: bytes, put: bytes) -> None:
        words = stored.split(b" ")
        self.put = put
        """The command that stores it, but for the value."""
        self.epoch = int(words[0])
        self.batches = [b" ".join(words[place : place + 3]) for place in range(2, len(words), 3)]
        self.expected = (int(words[3]) + 1) % SEQUENCES

    def take(self, append: Append, base_offset: int) -> None:
        first = append.base_sequence
        self.expected = expected = (first + append.span) % SEQUENCES
        batches = self.batches
        batches.insert(0, b"%d %d %d" % (first, expected - 1 if expected else SEQUENCES - 1, base_offset))
        del batches[_REMEMBERED:]

    def command(self, now: bytes) -> bytes:
        value = b"%d %b %b" % (self.epoch, now, b" ".join(self.batches))
        return b"%b$%d\r\n%b\r\n" % (self.put, len(value), value)


class _Stream:
    """A log: its keys as RESP, and how it ends if that is known."""

    __slots__ = (
        "doubts", "in_flight", "keys", "known", "newest", "next_offset", "producers", "put_producer", "put_state",
        "read", "read_producers", "size", "xadd",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        stream, state, producers = (bulk(key.encode()) for key in (name, state_of(name), producers_of(name)))
        self.keys = stream + state + producers
        self.xadd = b"*9\r\n$4\r\nXADD\r\n" + stream
        self.put_state = b"*8\r\n$4\r\nHSET\r\n" + state
        self.put_producer = b"*4\r\n$4\r\nHSET\r\n" + producers
        self.read = b"*5\r\n$5\r\nHMGET\r\n" + state + b"$1\r\nn\r\n$1\r\nt\r\n$1\r\ns\r\n"
        self.read_producers = b"$5\r\nHMGET\r\n" + producers
        self.in_flight = 0
        self.known = False
        self.doubts = 0
        """How often everything was forgotten: what was asked before that is not believed."""
        self.next_offset = self.newest = self.size = 0
        """As `n`, `t` and `s` of the state."""
        self.producers: dict[int, _Producer] = {}

    def forget(self) -> None:
        """Know nothing."""
        self.known = False
        self.doubts += 1
        self.producers = {}

    def takes(self, append: Append, certain: int, least: int) -> bool:
        """Whether the script would take this batch as a new one, as far as it is certain here."""
        if not self.known or self.next_offset + append.span > _MOST_OFFSET or self.next_offset < least:
            return False
        if certain not in (-1, self.next_offset):
            return False
        if append.producer_id < 0:
            return True
        producer = self.producers.get(append.producer_id)
        return (
            producer is not None
            and producer.epoch == append.producer_epoch
            and producer.expected == append.base_sequence
        )

    def learn(self, end: Reply, asked: Sequence[int], values: Reply) -> None:
        """Take over what Redis answered: `n`, `t`, `s`, and the values of the producers asked for."""
        if type(end) is not list or type(values) is not list or None in end:
            self.forget()
            return
        if len(self.producers) > _MOST_PRODUCERS:
            self.producers = {}
        self.next_offset, self.newest, self.size = map(int, end)
        for producer_id, value in zip(asked, values, strict=False):
            if value is not None:
                self.producers[producer_id] = _Producer(value, self.put_producer + bulk(b"%d" % producer_id))
        self.known = True


class _Waiting:
    __slots__ = ("append", "base_offset", "certain", "done", "least", "stream")

    def __init__(self, stream: _Stream, append: Append, done: AppendDone, certain: int, least: int) -> None:
        self.stream = stream
        self.append = append
        self.done = done
        self.certain = certain
        self.least = least
        self.base_offset = -1

    @property
    def keys(self) -> bytes:
        return self.stream.keys

    @property
    def place(self) -> bytes:
        if self.certain >= 0:
            return b"%d" % self.certain
        return b"+%d" % self.least if self.least else b""


class DirectAppends(AnsweredByRedis):
    """Sends appends over a connection that nobody else's writes can come between; each log's in the order given."""

    def __init__(self, connection: Connection, epoch: int, now_ms: Callable[[], int]) -> None:
        self._connection = connection
        self._epoch = b"%d" % epoch
        self._now_ms = now_ms
        self._streams: dict[str, _Stream] = {}
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._waiting_impatiently = False
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = 0
        self._link = 0

    def append(self, stream: str, append: Append, done: AppendDone, certain: int = -1, least: int = 0) -> None:
        """Send an append soon; `done` gets the answer from the connection's reader.

        Args:
            stream: the log.
            append: the batch.
            done: gets its place or the error.
            certain: the base offset that it has been acknowledged with: it is refused at any other, and
                since nobody waits for it, it waits for company; -1: none.
            least: it is refused at a base offset below, which was given to a batch that Redis has yet to take.
        """
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _Stream(stream)
        size = len(append.batch)
        self._waiting.append(_Waiting(known, append, done, certain, least))
        self._waiting_bytes += size
        if certain >= 0 and not self._waiting_impatiently:
            self._send_in_company()
            return
        self._waiting_impatiently = True
        if not self._under_way or (not known.in_flight and self._worth_a_call(size)):
            self._connection.before_flush(self._send_free)

    def _send_in_company(self) -> None:
        """Nobody waits for any of these: send them when they are many, or after a moment."""
        if self._waiting_bytes >= GROUP_BYTES:
            if not self._under_way:
                self._connection.before_flush(self._send_free)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COMPANY_S, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if self._waiting:
            self._connection.before_flush(self._send_free)

    def _worth_a_call(self, size: int) -> bool:
        return size >= LARGE or self._waiting_bytes >= GROUP_BYTES or len(self._waiting) >= GROUP_BATCHES

    def flush(self) -> None:
        """Send what waits, now; the script sorts out what it meets."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._waiting_impatiently = False
        group: list[_Waiting] = []
        size = 0
        for each in waiting:
            group.append(each)
            size += len(each.append.batch)
            if size >= _MOST_BYTES:
                self._send(group)
                group, size = [], 0
        if group:
            self._send(group)

    def forget(self, stream: str) -> None:
        """The stream is gone, or something else than an append was done to it."""
        known = self._streams.get(stream)
        if known is None:
            return
        known.forget()
        if not known.in_flight and all(waiting.stream is not known for waiting in self._waiting):
            del self._streams[stream]

    def _send_free(self) -> None:
        """Send what waits for logs that have nothing under way."""
        group: list[_Waiting] = []
        left: list[_Waiting] = []
        size = 0
        for waiting in self._waiting:
            if waiting.stream.in_flight or size >= _MOST_BYTES:
                left.append(waiting)
            else:
                group.append(waiting)
                size += len(waiting.append.batch)
        self._waiting = left
        self._waiting_bytes -= size
        self._waiting_impatiently = any(waiting.certain < 0 for waiting in left)
        if left and not self._waiting_impatiently and self._waiting_bytes < GROUP_BYTES:
            # Where there are more, what is under way for their logs sends them with its answer.
            self._send_in_company()
        if group:
            self._send(group)

    def _send(self, group: list[_Waiting]) -> None:
        if self._link != self._connection.made:
            # Another connection, perhaps to a Redis that has lost something: nothing is certain any more.
            self._link = self._connection.made
            for stream in self._streams.values():
                stream.forget()
        transaction = _Transaction(b"%d" % self._now_ms())
        scripted: list[_Waiting] = []
        for waiting in group:
            stream = waiting.stream
            if stream.takes(waiting.append, waiting.certain, waiting.least) and (
                not stream.in_flight or stream in transaction.streams
            ):
                transaction.add(waiting)
            else:
                stream.known = False
                scripted.append(waiting)
                stream.in_flight += 1
        if transaction.batches:
            self._under_way += 1
            self._connection.send_several(transaction.chunks(), transaction.callbacks(self._executed))
        if scripted:
            self._under_way += 1
            call = script_call(scripted, self._epoch, transaction.now)
            self._connection.send(call, partial(self._answered, scripted))
            self._learn(scripted)

    def _learn(self, group: Iterable[_Waiting]) -> None:
        """Ask, behind the script, how it left the logs."""
        seen: dict[_Stream, dict[int, None]] = {}
        for waiting in group:
            producers = seen.setdefault(waiting.stream, {})
            if waiting.append.producer_id >= 0:
                producers[waiting.append.producer_id] = None
        for stream, producers in seen.items():
            stream.in_flight += 1
            asked = tuple(producers)
            chunks = [stream.read]
            callbacks: list[Callable[[Reply], None]] = []
            if asked:
                chunks.append(b"*%d\r\n" % (2 + len(asked)) + stream.read_producers)
                chunks += [bulk(b"%d" % producer) for producer in asked]
                answers: list[Reply] = []
                callbacks += [answers.append, partial(self._learnt_both, stream, stream.doubts, asked, answers)]
            else:
                callbacks.append(partial(self._learnt, stream, stream.doubts, (), []))
            self._connection.send_several([b"".join(chunks)], callbacks)

    def _learnt_both(
        self, stream: _Stream, doubts: int, asked: Sequence[int], answers: list[Reply], values: Reply
    ) -> None:
        self._learnt(stream, doubts, asked, values, answers[0])

    def _learnt(self, stream: _Stream, doubts: int, asked: Sequence[int], values: Reply, end: Reply) -> None:
        stream.in_flight -= 1
        # With another call already behind this one the answer is out of date.
        if not stream.in_flight:
            if stream.doubts == doubts:
                stream.learn(end, asked, values)
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting_impatiently or self._waiting_bytes >= GROUP_BYTES:
            self._connection.before_flush(self._send_free)

    def _answered(self, group: list[_Waiting], reply: Reply) -> None:
        """The script has answered."""
        self._under_way -= 1
        answers = reply if type(reply) is list else [refused(reply)] * len(group)
        for waiting, answer in zip(group, answers, strict=True):
            waiting.stream.in_flight -= 1
            _tell(waiting.done, result_of(answer))
        self._go_on()

    def _executed(self, transaction: "_Transaction", reply: Reply) -> None:
        """A transaction was executed, or not."""
        self._under_way -= 1
        for stream in transaction.streams:
            stream.in_flight -= 1
        self._go_on()
        if type(reply) is not list:
            error = refused(transaction.refusal or reply)
            for stream in transaction.streams:
                stream.forget()
            for waiting in transaction.batches:
                _tell(waiting.done, error)
            return
        if not _NO_ERROR.issuperset(map(type, reply)):
            self._undo(transaction, reply)
        for waiting, answer in zip(transaction.batches, reply, strict=False):
            try:
                waiting.done(Appended(waiting.base_offset) if type(answer) is bytes else refused(answer))
            except Exception:
                _log.exception(_NOT_HANDLED)

    def _undo(self, transaction: "_Transaction", reply: list[Reply]) -> None:
        """Somebody else has written to a log, so that XADD failed: the rest of that batch's transaction was done.

        Its producers are forgotten, or they would be told that the batch is there; the log's end goes back to the last
        batch that was stored, unless a call of the script has already gone on from it: then its offsets stay empty.
        What was appended then waits for the script, which knows no more than the state.
        """
        commands = []
        for stream, start in transaction.streams.items():
            stream.forget()
            end, failed = start, []
            _, newest, size = start
            for waiting, answer in zip(transaction.batches, reply, strict=False):
                if waiting.stream is not stream:
                    continue
                append = waiting.append
                # What is stored behind one that failed was written as if that were there: times and sizes never fall.
                newest, size = transaction.newest(newest, append), size + len(append.batch)
                if type(answer) is bytes:
                    end = waiting.base_offset + append.span, newest, size
                else:
                    failed.append(append.producer_id)
            if failed:
                _log.error("a log was written to by somebody else", stream=stream.keys.split(b"\r\n")[1].decode())
                if not stream.in_flight:
                    commands.append(fill(stream.put_state, _STATE, *end))
                commands += [
                    stream.put_producer.replace(b"*4\r\n$4\r\nHSET", b"*3\r\n$4\r\nHDEL") + bulk(b"%d" % producer)
                    for producer in failed
                    if producer >= 0
                ]
        if commands:
            commands = [_MULTI, *commands, _EXEC]
            self._connection.send_several([b"".join(commands)], [_ignore] * len(commands))


class _Transaction:
    """Batches for logs whose end is known, and what is to be written with them."""

    __slots__ = ("_chunks", "_producers", "_queued", "_small", "batches", "now", "streams")

    def __init__(self, now: bytes) -> None:
        self.now = now
        self.batches: list[_Waiting] = []
        self.streams: dict[_Stream, tuple[int, int, int]] = {}
        """Each with its next offset, newest time and size before."""
        self._producers: dict[_Producer, None] = {}
        self._small: list[Chunk] = [_MULTI]
        self._chunks: list[Chunk] = []
        self._queued: list[Reply] = []

    def add(self, waiting: _Waiting) -> None:
        """Append a batch that the log takes: it gets its offset now."""
        stream, append = waiting.stream, waiting.append
        if stream not in self.streams:
            self.streams[stream] = (stream.next_offset, stream.newest, stream.size)
            stream.in_flight += 1
        batch, span = append.batch, append.span
        size = len(batch)
        waiting.base_offset = base_offset = stream.next_offset
        stream.next_offset = base_offset + span
        stream.size += size
        # Records without a time are as old as their arrival: retention must not take them for ancient ones.
        newest = append.max_timestamp if append.max_timestamp >= 0 else int(self.now)
        if newest > stream.newest:  # noqa: PLR1730  # max() takes three times as long
            stream.newest = newest
        small = self._small
        small.append(fill(stream.xadd, _ENTRY, stream.next_offset, span, size))
        if size < COPY_BELOW:
            small.append(batch)
        else:
            self._chunks += (b"".join(small), batch)
            self._small = small = []
        small.append(fill(b"", _ENTRY_END, stream.newest, stream.size))
        if append.producer_id >= 0:
            producer = stream.producers[append.producer_id]
            producer.take(append, base_offset)
            self._producers[producer] = None
        self.batches.append(waiting)

    def newest(self, before: int, append: Append) -> int:
        """The log's newest time once this batch is in it, as `add` has it."""
        return max(before, append.max_timestamp if append.max_timestamp >= 0 else int(self.now))

    def chunks(self) -> list[Chunk]:
        """The commands."""
        small = self._small
        for stream in self.streams:
            small.append(fill(stream.put_state, _STATE, stream.next_offset, stream.newest, stream.size))
        small += [producer.command(self.now) for producer in self._producers]
        small.append(_EXEC)
        self._chunks.append(b"".join(small))
        return self._chunks

    def callbacks(self, executed: Callable[["_Transaction", Reply], None]) -> list[Callable[[Reply], None]]:
        """One for each answer: to MULTI, to the commands as they are queued, and to EXEC."""
        queued = 1 + len(self.batches) + len(self.streams) + len(self._producers)
        return [*[self._queued.append] * queued, partial(executed, self)]

    @property
    def refusal(self) -> Reply:
        """The first error of a command that Redis did not even queue; None when there is none."""
        return next((reply for reply in self._queued if type(reply) is not bytes), None)


def _tell(done: AppendDone, result: Appended | Exception) -> None:
    try:
        done(result)
    except Exception:
        _log.exception(_NOT_HANDLED)


def _ignore(_: Reply) -> None:
    pass


__all__ = ["DirectAppends"]
