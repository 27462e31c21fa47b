"""Stores batches of the journal that Redis has not: at a start what an earlier server left, later what was refused."""

import asyncio
from collections.abc import Sequence

import structlog

from headrace.keyspace.keys import producers_of, state_of
from headrace.store.appends import APPEND_ALL_THE_SAME, refused, result_of
from headrace.store.connection import Connection, Reply
from headrace.store.errors import Displaced
from headrace.store.journal import Entry
from headrace.store.replies import error_of
from headrace.topics.errors import UnknownTopic

_AT_ONCE = 64
_FOREIGN = ("Redis answered: ERR The ID specified in XADD", "Redis answered: WRONGTYPE")
"""What only somebody else's writes bring about, and what no second try helps."""
_log = structlog.get_logger("headrace.store")


async def replay(connection: Connection, epoch: int, entries: Sequence[Entry]) -> int:
    """Store acknowledged batches where they are missing. Done twice it is the same as once.

    They fit into Redis when they were acknowledged, and must go in whatever has come between: `maxmemory` does not
    hold for them.

    Args:
        connection: to a Redis that nobody else writes to.
        epoch: this server's fencing epoch.
        entries: in order of their numbers.

    Returns:
        How many of them could not be stored, since somebody else has written to their logs. Those are lost, and logged.

    Raises:
        StorageUnavailable, Fenced, StorageFull: some may be stored and others not; try again.
    """
    lost = 0
    for start in range(0, len(entries), _AT_ONCE):
        some = entries[start : start + _AT_ONCE]
        replies = await asyncio.gather(*(_send(connection, epoch, entry) for entry in some))
        # In order: the first that failed for a reason that passes ends this, before those that it displaced.
        for entry, reply in zip(some, replies, strict=True):
            result = result_of(reply[0]) if type(reply) is list else _error(reply)
            if isinstance(result, Displaced) or str(result).startswith(_FOREIGN):
                lost += 1
                _log.error(
                    "an acknowledged batch is lost: its log was written to by somebody else",
                    stream=entry.stream,
                    offset=entry.base_offset,
                    reason=str(result),
                )
            # A log that is gone was deleted with all that is in it.
            elif isinstance(result, Exception) and not isinstance(result, UnknownTopic):
                raise result
    return lost


def _error(reply: Reply) -> Exception:
    error = error_of(reply)
    return error if str(error).startswith(_FOREIGN) else refused(reply)


async def _send(connection: Connection, epoch: int, entry: Entry) -> Reply:
    append, stream = entry.append, entry.stream
    producer: tuple[int | str, ...] = ("", "", "")
    if append.producer_id >= 0:
        producer = append.producer_id, append.producer_epoch, append.base_sequence
    newest = append.max_timestamp if append.max_timestamp >= 0 else entry.now_ms
    keys = stream, state_of(stream), producers_of(stream)
    about = append.span, newest, bytes(append.batch), *producer, entry.base_offset
    return await connection.call("EVALSHA", APPEND_ALL_THE_SAME.sha, len(keys), *keys, epoch, entry.now_ms, *about)
