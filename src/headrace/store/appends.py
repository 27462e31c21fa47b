"""Appends on their way to Redis: small ones that come while others are under way go together.

Each message costs Redis and this server a wake-up, a read and a write, more than a small batch itself. So while a group
is under way, what comes is collected, and leaves when the answer is there. At low load nothing waits;
the busier it gets, the larger the groups. Large batches are worth a message of their own and never wait.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from headrace.keyspace.keys import producers_of, state_of
from headrace.keyspace.scripts import script, without_limit
from headrace.store.connection import Chunk, Connection, Reply, encode
from headrace.store.replies import error_of, error_of_text
from headrace.topics.errors import StorageFull, StorageUnavailable
from headrace.topics.model import Append, Appended

AppendDone = Callable[[Appended | Exception], None]

APPEND = script("append")
APPEND_ALL_THE_SAME = without_limit(APPEND)
"""For batches that are acknowledged already."""
_SHA = APPEND.sha.encode()
LARGE = 64 << 10
"""Bytes from which on a batch goes alone."""
GROUP_BYTES = 256 << 10
GROUP_BATCHES = 128
"""What a group may hold before it leaves although another is under way."""
COPY_BELOW = 4_096
"""Batches smaller than this go into the same piece as their command: one copy is cheaper than a vector entry."""
_KEYS, _FIXED, _EACH = 3, 2, 7  # keys of a batch, and arguments of the script: once, and for each batch

_log = structlog.get_logger("headrace.store")


class _Waiting(NamedTuple):
    keys: bytes
    append: Append
    done: AppendDone
    place: bytes = b""


class AnsweredByRedis:
    """Appends that are acknowledged when Redis has them: what `JournaledAppends` is asked besides is plain here."""

    def lags(self, stream: str) -> bool:
        """Whether Redis has yet to get what has been acknowledged: never, here."""
        return False

    def whole(self) -> bool:
        """Whether Redis has refused nothing that has been acknowledged: always, here."""
        return True

    async def restored(self) -> None:
        """Nothing is acknowledged before Redis has it."""

    async def close(self) -> None:
        """Nothing to close."""


class AppendQueue(AnsweredByRedis):
    """Sends appends over a connection, in the order they are given."""

    def __init__(self, connection: Connection, epoch: int, now_ms: Callable[[], int]) -> None:
        self._connection = connection
        self._epoch = b"%d" % epoch
        self._now_ms = now_ms
        self._keys: dict[str, bytes] = {}
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._under_way = 0

    def append(self, stream: str, append: Append, done: AppendDone) -> None:
        """Send an append soon; `done` gets the answer from the connection's reader."""
        keys = self._keys.get(stream)
        if keys is None:
            names = (stream, state_of(stream), producers_of(stream))
            keys = self._keys[stream] = b"".join(bulk(name.encode()) for name in names)
        size = len(append.batch)
        if size >= LARGE:
            self.flush()
            self._send([_Waiting(keys, append, done)], counted=False)
            return
        self._waiting.append(_Waiting(keys, append, done))
        self._waiting_bytes += size
        if not self._under_way or self._waiting_bytes >= GROUP_BYTES or len(self._waiting) >= GROUP_BATCHES:
            self._connection.before_flush(self.flush)

    def flush(self) -> None:
        """Send what waits, now."""
        waiting = self._waiting
        if waiting:
            self._waiting, self._waiting_bytes = [], 0
            self._send(waiting, counted=True)

    def forget(self, stream: str) -> None:
        """The stream is gone."""
        self._keys.pop(stream, None)

    def _send(self, group: list[_Waiting], *, counted: bool) -> None:
        self._under_way += counted
        call = script_call(group, self._epoch, b"%d" % self._now_ms())
        self._connection.send(call, partial(self._answered, group, counted))

    def _answered(self, group: list[_Waiting], counted: bool, reply: Reply) -> None:
        self._under_way -= counted
        answers = reply if type(reply) is list else [refused(reply)] * len(group)
        for waiting, answer in zip(group, answers, strict=True):
            try:
                waiting.done(result_of(answer))
            except Exception:
                # One request's trouble; every other one still gets its own answer.
                _log.exception("the answer to an append could not be handled")
        if self._waiting and not self._under_way:
            self._connection.before_flush(self.flush)


class Waiting(Protocol):
    """An append that is to be sent."""

    @property
    def keys(self) -> bytes:
        """The script's keys for its log, as RESP."""

    @property
    def append(self) -> Append:
        """The batch."""

    @property
    def place(self) -> bytes:
        """Where it must go, as the script takes it: a base offset, `+` and the least one, or empty."""


def script_call(group: Sequence[Waiting], epoch: bytes, now: bytes) -> list[Chunk]:
    """One call of the append script in pieces, large batches uncopied.

    Args:
        group: what to append, in order.
        epoch: the server's fencing epoch.
        now: milliseconds since the epoch.
    """
    count = len(group)
    # EVALSHA, its digest, the number of keys, the keys, the arguments
    parts = 3 + (_KEYS + _EACH) * count + _FIXED
    key_count = b"%d" % (_KEYS * count)
    small: list[Chunk] = [
        b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n" % (parts, _SHA, len(key_count), key_count)
    ]
    small += [waiting.keys for waiting in group]
    small.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(epoch), epoch, len(now), now))
    chunks: list[Chunk] = []
    for waiting in group:
        append = waiting.append
        batch = append.batch
        # Records without a time are as old as their arrival: retention must not take them for ancient ones.
        newest = b"%d" % append.max_timestamp if append.max_timestamp >= 0 else now
        span = b"%d" % append.span
        size = len(batch)
        small.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n" % (len(span), span, len(newest), newest, size))
        if size < COPY_BELOW:
            small.append(batch)
        else:
            chunks += (b"".join(small), batch)
            small = []
        small.append(_producer(append))
        small.append(bulk(waiting.place) if waiting.place else _ANY)
    chunks.append(b"".join(small))
    return chunks


_ANY = b"$0\r\n\r\n"
_NO_PRODUCER = b"\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n"


def _producer(append: Append) -> bytes:
    """The end of the batch's own argument, and those about its producer."""
    if append.producer_id < 0:
        return _NO_PRODUCER
    # Written out: a loop over the three takes twice as long, and every append of most clients comes by here.
    producer_id, epoch, first = b"%d" % append.producer_id, b"%d" % append.producer_epoch, b"%d" % append.base_sequence
    return b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        len(producer_id), producer_id, len(epoch), epoch, len(first), first,
    )  # fmt: skip


def bulk(text: bytes) -> bytes:
    """One part of a command in RESP."""
    return encode([text]).partition(b"\r\n")[2]


def refused(reply: Reply) -> Exception:
    """The error of a whole group: nothing is written where memory was full; else nobody knows how far it came."""
    error = error_of(reply)
    if isinstance(error, StorageFull | StorageUnavailable):
        return error
    return StorageUnavailable(f"Redis broke off an append: {error}")


def result_of(answer: bytes | Exception) -> Appended | Exception:
    """What the script says of one batch."""
    if type(answer) is not bytes:
        return answer  # type: ignore[return-value]
    if answer.startswith(b"-"):
        return error_of_text(answer[1:].decode())
    if answer.startswith(b"D"):
        return Appended(int(answer[1:]), duplicate=True)
    return Appended(int(answer))
