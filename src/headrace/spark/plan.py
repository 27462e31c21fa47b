"""Offsets of a query: where it starts, how far one batch goes, which ranges the tasks read. Pure: no Redis, no clock.

Everywhere an end offset is the next one to read, never the last one read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.spark.errors import DataLoss, OptionError
from headrace.spark.options import EARLIEST, LATEST, Positions

Offsets = dict[int, int]
"""Next offset by partition."""


@dataclass(frozen=True)
class Extent:
    """What a partition's log holds: offsets `start` up to, not including, `end`."""

    start: int
    end: int


@dataclass(frozen=True)
class Range:
    """Offsets `start` up to, not including, `end` of one partition."""

    partition: int
    start: int
    end: int


def resolve(name: str, positions: Positions, log: Mapping[int, Extent]) -> Offsets:
    """Offsets for every partition of the log; `name` is the option they came from.

    Raises:
        OptionError: JSON that misses a partition or names one that does not exist.
    """
    if isinstance(positions, int):
        return {partition: _place(positions, extent) for partition, extent in log.items()}
    missing, extra = sorted(set(log) - set(positions)), sorted(set(positions) - set(log))
    if missing:
        raise OptionError(f"option {name!r} misses partitions {missing}: use -1 for latest, -2 for earliest")
    if extra:
        raise OptionError(f"option {name!r} names partitions {extra}, which the topic does not have")
    return {partition: _place(positions[partition], extent) for partition, extent in log.items()}


def _place(position: int, extent: Extent) -> int:
    if position == LATEST:
        return extent.end
    if position == EARLIEST:
        return extent.start
    return position


def with_new_partitions(start: Mapping[int, int], log: Mapping[int, Extent]) -> Offsets:
    """`start` plus the partitions that were added since: those are read from where their log starts."""
    return {partition: start.get(partition, extent.start) for partition, extent in log.items()}


def limit(start: Mapping[int, int], end: Mapping[int, int], max_rows: int | None) -> Offsets:
    """The end of a batch of at most `max_rows` offsets, shared out in proportion to what waits in each partition.

    What rounding leaves over goes to the partitions with the largest remainders, so the sum is exact and every
    partition is read sooner or later.
    """
    waiting = {partition: max(0, end[partition] - start[partition]) for partition in start}
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return {partition: start[partition] + count for partition, count in waiting.items()}
    shares = {partition: count * max_rows // total for partition, count in waiting.items()}
    by_remainder = sorted(waiting, key=lambda partition: (-(waiting[partition] * max_rows % total), partition))
    for partition in by_remainder[: max_rows - sum(shares.values())]:
        shares[partition] += 1
    return {partition: start[partition] + share for partition, share in shares.items()}


def split(
    start: Mapping[int, int], end: Mapping[int, int], *, at_least: int | None = None, max_records: int | None = None
) -> list[Range]:
    """The ranges to read, one task each: one per partition, or more where it asks for more.

    Args:
        start: first offsets.
        end: offsets to stop before.
        at_least: a hint at how many tasks there should be; large partitions are cut in proportion to their size.
        max_records: no range is longer.
    """
    whole = [Range(partition, start[partition], end[partition]) for partition in sorted(end)]
    whole = [item for item in whole if item.end > item.start]
    total = sum(item.end - item.start for item in whole)
    ranges = []
    for item in whole:
        size = item.end - item.start
        pieces = 1
        if at_least is not None and len(whole) < at_least:
            pieces = round(size * at_least / total)
        if max_records is not None:
            pieces = max(pieces, -(-size // max_records))
        ranges += _cut(item, pieces)
    return ranges


def _cut(item: Range, pieces: int) -> list[Range]:
    size = item.end - item.start
    pieces = min(max(1, pieces), size)
    edges = [item.start + size * index // pieces for index in range(pieces + 1)]
    return [Range(item.partition, low, high) for low, high in pairwise(edges)]


def within_log(topic: str, start: Mapping[int, int], log: Mapping[int, Extent], *, fail_on_data_loss: bool) -> Offsets:
    """`start` moved into the log.

    Raises:
        DataLoss: with `fail_on_data_loss`, an offset below the log start or above the log end.
    """
    moved = {}
    for partition, offset in start.items():
        extent = log[partition]
        if fail_on_data_loss and offset < extent.start:
            raise DataLoss(
                f"offsets {offset} to {extent.start - 1} of {topic}-{partition} are gone (log start {extent.start}); "
                "set failOnDataLoss=false to go on from the log start"
            )
        if fail_on_data_loss and offset > extent.end:
            raise DataLoss(
                f"offset {offset} of {topic}-{partition} is beyond the log end {extent.end}: the log was replaced or "
                "lost its end; set failOnDataLoss=false to go on from the log end"
            )
        moved[partition] = min(max(offset, extent.start), extent.end)
    return moved


def to_json(topic: str, offsets: Mapping[int, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark's checkpoint keeps them, the form of Spark's Kafka source: `{topic: {partition: next}}`."""
    return {topic: {str(partition): offset for partition, offset in sorted(offsets.items())}}


def from_json(topic: str, stored: Mapping[str, Any]) -> Offsets:
    """The inverse of `to_json`.

    Raises:
        OptionError: the checkpoint belongs to a query that reads another topic.
    """
    if set(stored) != {topic}:
        raise OptionError(f"the checkpoint is of topic {sorted(stored)}, the query reads {topic!r}: use another one")
    return {int(partition): int(offset) for partition, offset in stored[topic].items()}
