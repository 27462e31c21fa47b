"""Store acknowledged batches of an earlier server's journal that Redis does not have."""

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
from headrace.storage.layout.keys import Keyspace, clean_of, foreign_of, state_of
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
    """Store the journal's missing batches at the log ends, and return the journal to use. This is idempotent.

    Entries of a deleted log are dropped. Logs are identified by their ids, not their keys. If an entry is damaged or
    cannot be placed, the journal is set aside next to the data, and a new one begins.

    The Redis must have no other writers. `size` is the new size in bytes; 0 removes the journal. If Redis was `empty`,
    missing logs were lost, not deleted.

    Raises:
        StorageUnavailable, Fenced: the journal is unchanged; start again.
        StoreError: the new journal cannot be created.
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
    # This write changes nothing. It fails if the disk had no room for the earlier ones.
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
    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._streams: dict[str, int] | None = None
        self._unknown = False

    async def has(self, stream: str) -> bool:
        """Return whether a log topic may have this stream. An unreadable registry counts as yes."""
        return stream in await self._known() or self._unknown

    async def since_ms(self, stream: str) -> int:
        """Return the creation time of the log topic with this stream, or 0."""
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
                continue  # not a valid cluster name
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
    older: list[Entry] = []
    try:
        stored = checked(await scripts.shards.at(stream).call("HGET", state_of(stream), "i"))
        if stored is not None and all(entry.log_id != stored for entry in found):
            # They belong to an earlier log under this key.
            return 0, []
        if stored is None:
            # The log's id is lost. Entries older than the topic belong to an earlier log, unless the clock was set
            # back: keep and report them.
            since_ms = await registered.since_ms(stream)
            older = [entry for entry in found if entry.now_ms < since_ms]
            found = [entry for entry in found if entry.now_ms >= since_ms]
            if not found:
                return 0, older
        placed, unfit = await _restore_log(scripts, epoch, stream, found)
        return placed, older + unfit
    except UnknownTopic:
        # Deleted or lost.
        return 0, older + found if empty or await registered.has(stream) else []
    except (Fenced, StorageFull, StorageUnavailable):
        raise
    except (TopicError, ValueError) as error:
        # One log must not block the others or the start.
        if not await registered.has(stream):
            return 0, []
        _log.error("the journal of a partition cannot be replayed", stream=stream, reason=str(error))
        return 0, older + found


async def _restore_log(scripts: Scripts, epoch: int, stream: str, found: list[Entry]) -> tuple[int, list[Entry]]:
    keys = [stream, state_of(stream), foreign_of(stream), clean_of(stream)]
    # Keys are never reused: without a state, the stream is still this log.
    answer = await scripts.run("open", keys, epoch, 0, "", found[-1].log_id, "resume")
    term, start, end, _, newest, size, _, rows, log_id, *_ = answer
    cleaned_end = answer[14]
    opened = Opened(int(term), int(end), int(newest), int(size), partition.epochs(rows))
    ours = {entry.base_offset: entry for entry in found if entry.log_id == log_id}
    batches = [Acknowledged(offset, entry.append, entry.now_ms) for offset, entry in sorted(ours.items())]
    plan = await restore_plan(scripts, stream, opened, batches, max(int(start), int(cleaned_end)))
    await place_batches(scripts, stream, opened, plan.missing)
    return len(plan.missing), [ours[each.base_offset] for each in plan.unfit]


_HEADERS_AT_ONCE = 64
_PLACED_BYTES = 4 << 20
_BASE_OFFSET = Struct(">q").unpack_from
_CRC = Struct(">I").unpack_from


class Acknowledged(NamedTuple):
    """A batch with its acknowledged offset."""

    base_offset: int
    append: Append
    now_ms: int
    """Time of arrival in milliseconds since the epoch."""


class Opened(NamedTuple):
    """State of a recovered log that placing needs."""

    term: int
    log_end: int
    newest: int
    size: int
    epochs: LeaderEpochs


class Plan(NamedTuple):
    """Decision about acknowledged batches."""

    missing: list[Acknowledged]
    """To be stored at the log end, in order."""
    unfit: list[Acknowledged]
    """Another batch has their offset, or the records before them are missing."""


async def restore_plan(
    scripts: Scripts, stream: str, opened: Opened, batches: Sequence[Acknowledged], log_start: int
) -> Plan:
    """Compare acknowledged batches with the log, which begins in the stream at `log_start`."""
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
    """Store batches, and continue under the leader epoch of this recovery.

    Returns:
        Number of entries, leader epochs, newest time and appended bytes.

    Raises:
        StorageUnavailable, StorageFull, Fenced, UnknownTopic: some batches may be stored.
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
            await scripts.run("restore", keys, opened.term, "", *arguments)
            arguments, held = [], 0
    length, rows = await scripts.run("restore", keys, opened.term, "finish", *arguments)
    return int(length), partition.epochs(rows), newest, size
