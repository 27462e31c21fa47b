"""Read and write the cleaned segments of compacted logs.

A log's leader replaces segments, and moves batches from the stream into them. A reader may have an outdated list. What
it then looks for is missing, so it reads the list again before it takes missing offsets for a gap.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headrace.storage.layout import entries
from headrace.storage.layout import segments as segment_rows
from headrace.storage.layout.keys import clean_of, segment_of, state_of
from headrace.storage.logs.append import StreamAppender
from headrace.storage.logs.leader_log import LeaderLog
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import Reply
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.redis.shards import Shards
from headrace.topics.errors import UnknownTopic
from headrace.topics.model import StoredBatch
from headrace.topics.segments import NEVER_CLEANED, CleanedBatch, CleanedLog, CleanedSegment

_SHORT: Final = 0.8
"""Share of `maxmemory` from which memory is short."""
_MEMORY: Final = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)
ReadStream = Callable[[int], Awaitable[list[StoredBatch]]]
"""Reads batches of a log's stream from an offset on."""


async def list_segments(connection: Connection, stream: str) -> CleanedLog:
    """Return the cleaned segments of a log. Raises StorageUnavailable."""
    found = checked(await connection.call("HMGET", clean_of(stream), *segment_rows.FIELDS))
    if found[1] is None:
        # The list may be lost. Its copy was written in the same script.
        copied = checked(await connection.call("HGET", state_of(stream), segment_rows.COPY))
        if copied is not None:
            return segment_rows.decode_copy(copied)
    return segment_rows.decode(found)


async def read_segment(
    connection: Connection, stream: str, segment: CleanedSegment, offset: int, count: int, end: int | None = None
) -> list[StoredBatch]:
    """Return at most `count` batches from `offset` up to `end` of a segment that may be gone."""
    bound = segment.end if end is None else min(end, segment.end)
    if offset >= bound:
        return []
    place = segment_rows.bounds(offset, bound)
    key = segment_of(stream, segment.number)
    return entries.decode(checked(await connection.call("XRANGE", key, *place, "COUNT", count, reads=True)))


async def read_log(
    connection: Connection,
    stream: str,
    cleaned: CleanedLog,
    read_stream: ReadStream,
    offset: int,
    count: int,
    end: int | None,
) -> tuple[list[StoredBatch], CleanedLog]:
    """Return batches from `offset` on of one segment or of the stream, and the present segments.

    Args:
        connection: that of the log.
        stream: the log.
        cleaned: the last known segments.
        read_stream: reads the stream.
        offset: first offset.
        count: maximum number of batches of a segment.
        end: offset up to which batches of a segment are read; None for no limit.

    Raises:
        StorageUnavailable: it cannot be read.
    """
    while True:
        found = await _read_known(connection, stream, cleaned, read_stream, offset, count, end)
        if (found and found[0].base_offset <= offset) or (end is not None and offset >= end):
            return found, cleaned
        present = await list_segments(connection, stream)
        if present == cleaned:
            return found, cleaned
        cleaned = present


async def _read_known(
    connection: Connection,
    stream: str,
    cleaned: CleanedLog,
    read_stream: ReadStream,
    offset: int,
    count: int,
    end: int | None,
) -> list[StoredBatch]:
    for segment in cleaned.from_offset(offset):
        if found := await read_segment(connection, stream, segment, offset, count, end):
            return found
    return await read_stream(max(offset, cleaned.end))


class LogSegments:
    """Segments of the logs that this server leads: implements `broker.log_ports.LogSegments`.

    All calls run between the batches of the log, and fail with its leadership.
    """

    def __init__(self, appender: StreamAppender, shards: Shards) -> None:
        self._appender = appender
        self._shards = shards

    def _owned(self, stream: str) -> LeaderLog:
        log = self._appender.logs.get(stream)
        if log is None or log.epochs is None:
            raise UnknownTopic(f"{stream} has not been opened")
        return log

    def cleaned(self, stream: str) -> CleanedLog:
        """See `broker.log_ports.LogSegments`."""
        log = self._appender.logs.get(stream)
        return NEVER_CLEANED if log is None else log.cleaned

    async def read(self, stream: str, number: int, offset: int, count: int) -> list[StoredBatch]:
        """See `broker.log_ports.LogSegments`. Raises StorageUnavailable, UnknownTopic."""
        log = self._owned(stream)
        found = next((each for each in log.cleaned.segments if each.number == number), None)
        if found is None:
            return []
        return await read_segment(self._shards.at(stream), stream, found, offset, count)

    async def advance(self, stream: str, number: int, start: int, end: int, batches: Sequence[CleanedBatch]) -> None:
        """See `broker.log_ports.LogSegments`."""
        log = self._owned(stream)

        def apply(reply: Reply) -> None:
            if isinstance(reply, list):
                # The next append compares with it.
                log.entries = reply[3]
                log.cleaned = segment_rows.decode(reply[:3])

        keys = [stream, log.state, clean_of(stream), segment_of(stream, number)]
        command = Scripts.command("clean_advance", keys, log.term, number, start, end, *_arguments(batches))
        checked(await self._appender.run(log, command, apply))

    async def write(self, stream: str, number: int, batches: Sequence[CleanedBatch]) -> None:
        """See `broker.log_ports.LogSegments`."""
        log = self._owned(stream)

        def apply(reply: Reply) -> None:
            if not isinstance(reply, Exception):
                log.writing, known = number, log.cleaned
                log.cleaned = CleanedLog(known.segments, known.end, max(number + 1, known.next_number))

        keys = [log.state, clean_of(stream), segment_of(stream, number)]
        command = Scripts.command("clean_write", keys, log.term, number, *_arguments(batches))
        checked(await self._appender.run(log, command, apply))

    async def swap(self, stream: str, numbers: Sequence[int], replacement: int | None) -> None:
        """See `broker.log_ports.LogSegments`."""
        log = self._owned(stream)

        def apply(reply: Reply) -> None:
            if isinstance(reply, list):
                log.writing, log.cleaned = None, segment_rows.decode(reply)

        old = [segment_of(stream, number) for number in numbers]
        new = old[0] if replacement is None else segment_of(stream, replacement)
        written = "" if replacement is None else replacement
        command = Scripts.command("clean_swap", [log.state, clean_of(stream), new, *old], log.term, written, *numbers)
        checked(await self._appender.run(log, command, apply))

    async def is_memory_short(self, stream: str) -> bool:
        """See `broker.log_ports.LogSegments`. False if Redis does not say it."""
        reply = await self._shards.at(stream).call("INFO", "memory")
        facts = dict(_MEMORY.findall(reply)) if isinstance(reply, bytes) else {}
        return int(facts.get(b"used_memory", 0)) > _SHORT * int(facts.get(b"maxmemory", 0)) > 0

    async def close(self, stream: str) -> None:
        """See `broker.log_ports.LogSegments`."""
        log = self._owned(stream)
        number = log.writing
        if number is not None:
            keys = [log.state, clean_of(stream), segment_of(stream, number)]
            checked(await self._appender.run(log, Scripts.command("clean_close", keys, log.term, number)))
            log.writing = None


def _arguments(batches: Sequence[CleanedBatch]) -> list[str | bytes | int]:
    arguments: list[str | bytes | int] = []
    for each in batches:
        arguments += [each.next_offset, bytes(each.batch), each.newest]
    return arguments
