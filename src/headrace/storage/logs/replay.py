"""Stores at a start what an earlier server has acknowledged from the journal and Redis has not.

Acknowledged batches of a log go behind its log end, right after the opening of the log.
"""

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import NamedTuple
from uuid import uuid4

import msgspec
import structlog

from headrace.records.accelerator import stamp
from headrace.records.batch import CRC_AT
from headrace.storage.journal.journal import Entry, Journal
from headrace.storage.layout import entries, partition, registry
from headrace.storage.layout.keys import Keyspace, foreign_of, state_of
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append
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
        _log.info("journal replayed", batches=stored)
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
            "an acknowledged batch cannot be appended: another program wrote to its log, or the log has lost records",
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
    plan = await restore_plan(scripts, stream, opened, batches, int(start))
    await place_batches(scripts, stream, opened, plan.missing)
    return len(plan.missing), [ours[each.base_offset] for each in plan.unfit]


_HEADERS_AT_ONCE = 64
_PLACED_BYTES = 4 << 20
_BASE_OFFSET = Struct(">q").unpack_from
_CRC = Struct(">I").unpack_from


class Acknowledged(NamedTuple):
    """A batch with the offset that it was acknowledged with."""

    base_offset: int
    append: Append
    now_ms: int
    """When it arrived: milliseconds since the epoch."""


class Opened(NamedTuple):
    """What the opening of a log has told, as far as placing needs it."""

    term: int
    log_end: int
    newest: int
    size: int
    epochs: LeaderEpochs


class Plan(NamedTuple):
    """What becomes of acknowledged batches."""

    missing: list[Acknowledged]
    """Go behind the log end, in order."""
    unfit: list[Acknowledged]
    """Something else lies where they should, or what was before them is gone."""


async def restore_plan(
    scripts: Scripts, stream: str, opened: Opened, batches: Sequence[Acknowledged], log_start: int
) -> Plan:
    """Compare what was acknowledged with what the log has."""
    missing: list[Acknowledged] = []
    unfit: list[Acknowledged] = []
    log_end = opened.log_end
    below = [each for each in batches if each.base_offset < log_end]
    stored = await _checksums(scripts, stream, opened, below) if below else {}
    for each in batches:
        if each.base_offset == log_end and each.append.span > 0:
            missing.append(each)
            log_end += each.append.span
        elif each.base_offset >= opened.log_end or (
            each.base_offset >= log_start and stored.get(each.base_offset) != _CRC(each.append.batch, CRC_AT)[0]
        ):
            unfit.append(each)
    return Plan(missing, unfit)


async def _checksums(scripts: Scripts, stream: str, opened: Opened, batches: Sequence[Acknowledged]) -> dict[int, int]:
    """CRC by base offset, of the stored batches from the first of these to the last."""
    found: dict[int, int] = {}
    offset, last = batches[0].base_offset, batches[-1].base_offset
    while offset <= last:
        answer = await scripts.run("tail", [stream], entries.range_start(opened.epochs, offset), _HEADERS_AT_ONCE)
        if not answer:
            break
        for header in answer[1::2]:
            found[_BASE_OFFSET(header)[0]] = _CRC(header, CRC_AT)[0]
        offset = entries.next_offset_of(answer[-2])
    return found


async def place_batches(
    scripts: Scripts, stream: str, opened: Opened, batches: Sequence[Acknowledged]
) -> tuple[int, LeaderEpochs, int, int]:
    """Store batches at their offsets; from there on the log goes on under the leader epoch of this opening.

    Returns:
        Entries in the stream, leader epochs, newest time and bytes appended of the last entry.

    Raises:
        StorageUnavailable, StorageFull, Fenced, UnknownTopic: some may be stored.
    """
    newest, size = opened.newest, opened.size
    keys = [stream, state_of(stream)]
    arguments: list[str | bytes | int] = []
    held = 0
    epoch = opened.epochs.rows[-1].epoch
    for each in batches:
        append = each.append
        data = append.batch
        stamp(data, each.base_offset, epoch)
        newest = max(newest, append.max_timestamp if append.max_timestamp >= 0 else each.now_ms)
        size += len(data)
        arguments += [f"{opened.term}-{each.base_offset + append.span}", bytes(data), newest, size]
        held += len(data)
        if held >= _PLACED_BYTES:
            await scripts.run("place", keys, opened.term, "", *arguments)
            arguments, held = [], 0
    length, rows = await scripts.run("place", keys, opened.term, "finish", *arguments)
    return int(length), partition.epochs(rows), newest, size
