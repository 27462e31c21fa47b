"""Offsets and ranges of a query, as pure functions. End offsets are exclusive."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headrace.client.errors import DataLoss, OptionError


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]
"""Next offset by partition."""
ID: Final = "id"
"""Key of a topic's id, next to its partitions, in the offsets of Spark's checkpoint."""
_NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Extent:
    """Offsets of a partition's log."""

    start: int
    end: int


@dataclass(frozen=True)
class Range:
    """Offsets of one partition."""

    partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition}[{self.start}, {self.end})"


def with_new_partitions(start: Mapping[TopicPartition, int], log: Mapping[TopicPartition, Extent]) -> Offsets:
    """Add new partitions to `start`, from their log start offset."""
    return {partition: start.get(partition, extent.start) for partition, extent in log.items()}


def limit(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], max_rows: int | None) -> Offsets:
    """Return the end of a batch of at most `max_rows` offsets, in proportion to each partition's backlog.

    The remainder goes to the largest fractions, so that each partition progresses.
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


def limit_bytes(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    max_bytes: int,
    sizes: Mapping[TopicPartition, float],
) -> Offsets:
    """Return the end of a batch of about `max_bytes` and at least one record. `sizes` are bytes per offset."""
    waiting = {partition: max(0, end[partition] - start[partition]) * sizes.get(partition, 1.0) for partition in start}
    total = sum(waiting.values())
    if total <= max_bytes:
        return {partition: max(end[partition], start[partition]) for partition in start}
    limited = {
        partition: start[partition] + int(waiting[partition] * max_bytes / total / sizes.get(partition, 1.0))
        for partition in start
    }
    if limited == dict(start):
        largest = max(waiting, key=lambda partition: (waiting[partition], partition))
        limited[largest] += 1
    return limited


def split(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    *,
    at_least: int | None = None,
    max_records: int | None = None,
) -> list[Range]:
    """Return the ranges of tasks: large partitions are split into about `at_least`, with at most `max_records` each."""
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


def within_log(
    start: Mapping[TopicPartition, int], log: Mapping[TopicPartition, Extent], *, fail_on_data_loss: bool
) -> Offsets:
    """Return `start`, limited to the log. With `fail_on_data_loss`, raise DataLoss instead."""
    moved = {}
    for partition, offset in start.items():
        extent = log[partition]
        if fail_on_data_loss and offset < extent.start:
            raise DataLoss(
                f"offsets {offset} to {extent.start - 1} of {partition} are gone (log start {extent.start}); "
                "set failOnDataLoss=false to go on from the log start"
            )
        if fail_on_data_loss and offset > extent.end:
            raise DataLoss(
                f"offset {offset} of {partition} is beyond the log end {extent.end}: the log was replaced or "
                "lost its end; set failOnDataLoss=false to go on from the log end"
            )
        moved[partition] = min(max(offset, extent.start), extent.end)
    return moved


def check_partitions(
    position: Iterable[TopicPartition], log: Mapping[TopicPartition, Extent], *, fail_on_data_loss: bool
) -> None:
    """With `fail_on_data_loss`, raise DataLoss if partitions are gone."""
    gone = sorted(set(position) - set(log))
    if gone and fail_on_data_loss:
        raise DataLoss(
            f"{', '.join(map(str, gone))} {'is' if len(gone) == 1 else 'are'} gone: deleted, or no longer asked for; "
            "start with a new checkpoint, or set failOnDataLoss=false"
        )


def to_json(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] = _NO_IDS) -> dict[str, dict[str, int | str]]:
    """Return offsets as in Spark's checkpoint: `{topic: {partition: next, "id": topic id}}`.

    Without ids this is the form of Spark's Kafka source.
    """
    stored: dict[str, dict[str, int | str]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        stored.setdefault(topic, {})[str(partition)] = offset
    for topic, partitions in stored.items():
        if ids.get(topic):
            partitions[ID] = ids[topic]
    return stored


def from_json(stored: Mapping[str, Any]) -> Offsets:
    """Return the offsets of `to_json` or Spark's Kafka source. Raises OptionError."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in stored.items()
            for partition, offset in partitions.items()
            if partition != ID
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError("the checkpoint is another source's than format 'headrace': use a new one") from None


def ids_from_json(stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the topic ids of `to_json`; earlier versions wrote none. Raises OptionError."""
    ids = {topic: partitions[ID] for topic, partitions in stored.items() if ID in partitions}
    if not all(isinstance(one, str) for one in ids.values()):
        raise OptionError("the checkpoint is another source's than format 'headrace': use a new one")
    return ids


def replaced(known: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return topics with another id. Ignores topics without an id."""
    return sorted(topic for topic, one in known.items() if one and present.get(topic) and present[topic] != one)
