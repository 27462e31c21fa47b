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
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.native import is_native

_log = structlog.get_logger("headrace.storage.logs")


async def replay(
    connection: Connection, epoch: int, journal: Journal, size: int, *, empty: bool = False
) -> Journal | None:
    """Store what is in the journal where it is missing; the journal to go on with. Done twice it is the same as once.

    Entries of a log that is gone were deleted with it, unless a topic still has it: logs are told apart by their ids,
    not by their keys. Where an entry cannot be placed (something else is under its log's keys, the log has less than
    it had, or is lost) or is damaged, the journal is set aside beside the data, and a new one begins. A log that cannot
    be restored does not keep the others from it.

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
    registered = _Registered(scripts)
    by_log = sorted(doubtful, key=lambda entry: (entry.stream, entry.number))
    for stream, found in groupby(by_log, key=lambda entry: entry.stream):
        placed, left_over = await _replay_log(scripts, epoch, stream, list(found), registered, empty=empty)
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


class _Registered:
    """The log topics of all virtual clusters, read once and only where they are needed."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._streams: dict[str, int] | None = None
        self._unknown = False

    async def has(self, stream: str) -> bool:
        """Whether a log topic may have this stream: nothing of the journal is given up while that is uncertain."""
        return stream in await self._known() or self._unknown

    async def since_ms(self, stream: str) -> int:
        """When the log topic that has this stream was created; 0: no topic is known to have it."""
        return (await self._known()).get(stream, 0)

    async def _known(self) -> dict[str, int]:
        if self._streams is None:
            self._streams = await self._read()
        return self._streams

    async def _read(self) -> dict[str, int]:
        keyspace, streams = Keyspace(), dict[str, int]()
        clusters = await self._fields("HKEYS", keyspace.documents("clusters"))
        for name in {keyspace.cluster, *(each.decode("utf-8", "replace") for each in clusters)}:
            try:
                topics = msgspec.structs.replace(keyspace, cluster=name).topics
            except ValueError:
                continue  # no cluster has such a name
            for text in await self._fields("HVALS", topics):
                try:
                    topic = registry.topic(text)
                except msgspec.MsgspecError:
                    self._unknown = True
                    continue
                if not is_native(topic):
                    streams.update(dict.fromkeys(topic.streams, topic.created_ms))
        return streams

    async def _fields(self, command: str, key: str) -> list[bytes]:
        reply = await self._scripts.shards.at(key).call(command, key)
        try:
            found: list[bytes] = checked(reply)
        except StorageUnavailable:
            raise
        except TopicError:
            self._unknown = True
            return []
        return found


async def _replay_log(
    scripts: Scripts, epoch: int, stream: str, found: list[Entry], registered: _Registered, *, empty: bool
) -> tuple[int, list[Entry]]:
    """How many entries of a log were missing and are stored now, and those that cannot be."""
    older: list[Entry] = []
    try:
        stored = checked(await scripts.shards.at(stream).call("HGET", state_of(stream), "i"))
        if stored is not None and all(entry.log_id != stored for entry in found):
            # They went with an earlier log under this key. The one that is there now is none of the journal's business.
            return 0, []
        if stored is None:
            # The log's id is lost, if there is a log: what is older than the topic went with an earlier one. Or the
            # clock was set back, so that it is reported, and kept with the journal.
            since_ms = await registered.since_ms(stream)
            older = [entry for entry in found if entry.now_ms < since_ms]
            found = [entry for entry in found if entry.now_ms >= since_ms]
            if not found:
                return 0, older
        placed, unfit = await _restore_log(scripts, epoch, stream, found)
        return placed, older + unfit
    except UnknownTopic:
        # Deleted with all that is in it, or lost.
        return 0, older + found if empty or await registered.has(stream) else []
    except (Fenced, StorageFull, StorageUnavailable):
        raise
    except (TopicError, ValueError) as error:
        # One log in a state that no server leaves it in. The others are to be stored, and the server is to start.
        if not await registered.has(stream):
            return 0, []
        _log.error("the journal of a partition cannot be replayed", stream=stream, reason=str(error))
        return 0, older + found


async def _restore_log(scripts: Scripts, epoch: int, stream: str, found: list[Entry]) -> tuple[int, list[Entry]]:
    keys = [stream, state_of(stream), foreign_of(stream)]
    # Keys are never used again: where the state is gone, what is there is still this log.
    answer = await scripts.run("open", keys, epoch, 0, "", found[-1].log_id, "resume")
    term, start, end, _, newest, size, _, rows, log_id, *_ = answer
    opened = Opened(int(term), int(end), int(newest), int(size), partition.epochs(rows))
    # Those of an earlier log under this key went with it.
    ours = {entry.base_offset: entry for entry in found if entry.log_id == log_id}
    batches = [Acknowledged(offset, entry.append, entry.now_ms) for offset, entry in sorted(ours.items())]
    plan = await restore.plan(scripts, stream, opened, batches, int(start))
    await restore.place(scripts, stream, opened, plan.missing)
    return len(plan.missing), [ours[each.base_offset] for each in plan.unfit]
