"""Stores at a start what an earlier server has acknowledged from the journal and Redis has not."""

from itertools import groupby
from uuid import uuid4

import msgspec
import structlog

from headrace.storage.journal.journal import Entry, Journal
from headrace.storage.layout import partition, registry
from headrace.storage.layout.keys import Keyspace, foreign_of, state_of
from headrace.storage.logs import restore
from headrace.storage.logs.restore import Acknowledged, Opened
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import UnknownTopic

_log = structlog.get_logger("headrace.storage.logs")


async def replay(
    connection: Connection, epoch: int, journal: Journal, size: int, *, empty: bool = False
) -> Journal | None:
    """Store what is in the journal where it is missing; the journal to go on with. Done twice it is the same as once.

    Entries of a log that is gone were deleted with it, unless a topic still has it. Where an entry cannot be placed
    (its log was written to by somebody else, or has less than it had, or is lost) or is damaged, the journal is set
    aside beside the data, and a new one begins.

    Args:
        connection: to a Redis that nobody else writes to.
        epoch: this server's epoch.
        journal: of the data directory.
        size: bytes that it shall have from now on; 0: it is not needed any more.
        empty: this Redis had nothing at all: whatever the journal names was lost, not deleted.

    Raises:
        StorageUnavailable, Fenced: nothing of the journal is given up; start again.
        StoreError: the new journal cannot be made.
    """
    scripts = Scripts(connection)
    doubtful, damaged = journal.found()
    stored, unfit = 0, []
    by_log = sorted(doubtful, key=lambda entry: (entry.stream, entry.number))
    for stream, found in groupby(by_log, key=lambda entry: entry.stream):
        placed, left_over = await _replay_log(scripts, epoch, stream, list(found), empty=empty)
        stored += placed
        unfit += left_over
    # A write that changes nothing: it is refused where the disk had no room for those before it.
    checked(await connection.call("HDEL", f"{{journal-{uuid4().hex}}}", ""))
    checked(await connection.call("PING"))
    if stored:
        _log.info("stored the batches that were acknowledged before the last stop", batches=stored)
    if unfit or damaged:
        _tell(unfit, damaged, str(journal.set_aside()))
        return Journal.open(journal.path, size).renewed(size) if size else None
    if size:
        return journal.renewed(size)
    journal.remove()
    return None


def _tell(unfit: list[Entry], damaged: list[range], kept_in: str) -> None:
    """Say what of the journal is not in Redis, or may not be."""
    for entry in unfit:
        _log.error(
            "an acknowledged batch cannot be placed: its log was written to by somebody else, or has lost records",
            stream=entry.stream,
            offset=entry.base_offset,
            records=entry.append.span,
            kept_in=kept_in,
        )
    if damaged:
        _log.error(
            "entries of the journal are damaged: their batches were acknowledged and may be missing from Redis",
            entries=sum(map(len, damaged)),
            numbers=", ".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in damaged),
            kept_in=kept_in,
        )


async def _is_registered(scripts: Scripts, stream: str) -> bool:
    """Whether a topic of any virtual cluster has this log."""
    keyspace = Keyspace()
    key = keyspace.documents("clusters")
    clusters = checked(await scripts.shards.at(key).call("HKEYS", key))
    for name in {keyspace.cluster, *(each.decode() for each in clusters)}:
        topics = msgspec.structs.replace(keyspace, cluster=name).topics
        found = checked(await scripts.shards.at(topics).call("HVALS", topics))
        if any(stream in registry.topic(text).streams for text in found):
            return True
    return False


async def _replay_log(
    scripts: Scripts, epoch: int, stream: str, found: list[Entry], *, empty: bool
) -> tuple[int, list[Entry]]:
    """How many entries of a log were missing and are stored now, and those that cannot be."""
    keys = [stream, state_of(stream), foreign_of(stream)]
    try:
        # Keys are never used again: where the state is gone, what is there is still this log.
        answer = await scripts.run("open", keys, epoch, 0, "", found[-1].log_id, "resume")
    except UnknownTopic:
        # Deleted with all that is in it, or lost.
        return 0, found if empty or await _is_registered(scripts, stream) else []
    term, start, end, _, newest, size, _, rows, log_id, *_ = answer
    opened = Opened(int(term), int(end), int(newest), int(size), partition.epochs(rows))
    # Those of an earlier log under this key went with it.
    ours = {entry.base_offset: entry for entry in found if entry.log_id == log_id}
    batches = [Acknowledged(offset, entry.append, entry.now_ms) for offset, entry in sorted(ours.items())]
    plan = await restore.plan(scripts, stream, opened, batches, int(start))
    await restore.place(scripts, stream, opened, plan.missing)
    return len(plan.missing), [ours[each.base_offset] for each in plan.unfit]
