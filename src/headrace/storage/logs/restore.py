"""Stores acknowledged batches of a log that Redis has not, right behind the opening of the log."""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from headrace.records.batch import CRC_AT
from headrace.records.compiled import stamp
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import state_of
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append

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


async def plan(scripts: Scripts, stream: str, opened: Opened, batches: Sequence[Acknowledged], log_start: int) -> Plan:
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


async def place(
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
