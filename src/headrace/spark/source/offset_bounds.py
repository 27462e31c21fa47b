"""Resolve the options for the start and end of a read to offsets.

Names, JSON and precedence are those of Spark's Kafka source: one time for all partitions, times by partition, offsets.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.client.errors import OptionError
from headrace.client.offsets import ID, Extent, Offsets, TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

Strategy = Literal["error", "latest"]
"""How to treat a starting time after the last record: an error, or the log's end."""
LookUp = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]]
"""Maps times (ms) to the first offsets at or after them; None if there is no such record."""


@dataclass(frozen=True)
class Everywhere:
    """LATEST or EARLIEST for every partition."""

    position: int


@dataclass(frozen=True)
class AtOffsets:
    """An offset, LATEST or EARLIEST for each partition."""

    offsets: tuple[tuple[TopicPartition, int], ...]
    ids: tuple[tuple[str, str], ...] = ()
    """Required ID of each topic for which the JSON has one."""


@dataclass(frozen=True)
class AtTime:
    """One time, in milliseconds since 1970, for every partition."""

    timestamp: int


@dataclass(frozen=True)
class AtTimes:
    """A time for each partition."""

    timestamps: tuple[tuple[TopicPartition, int], ...]


Positions = Everywhere | AtOffsets | AtTime | AtTimes


def parse(edge: Literal["starting", "ending"], given: Mapping[str, str]) -> Positions | None:
    """Return the bound of `startingOffsets` or `endingOffsets` and related options, or None. Raise OptionError."""
    name = f"{edge}Timestamp"
    if (text := given.get(name.lower())) is not None:
        return AtTime(_whole(name, text))
    name = f"{edge}OffsetsByTimestamp"
    if (text := given.get(name.lower())) is not None:
        return AtTimes(tuple(_by_partition(name, text, least=0, what="a time in milliseconds belongs")))
    name = f"{edge}Offsets"
    if (text := given.get(name.lower())) is None:
        return None
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return Everywhere(EARLIEST if word == "earliest" else LATEST)
    wanted = "an offset, -1 (latest) or -2 (earliest) belongs"
    ids = _ids(name, text)
    return AtOffsets(tuple(_by_partition(name, text, least=EARLIEST, what=wanted, besides=ID)), ids)


def ids(positions: Positions | None) -> dict[str, str]:
    """Return the topic IDs in the JSON, by topic."""
    return dict(positions.ids) if isinstance(positions, AtOffsets) else {}


def without(positions: Positions | None, topics: Collection[str], position: int) -> Positions | None:
    """Return explicit offsets, with `position` (LATEST or EARLIEST) for these topics."""
    if not isinstance(positions, AtOffsets) or not topics:
        return positions
    return AtOffsets(tuple((one, position if one.topic in topics else offset) for one, offset in positions.offsets))


def resolve(
    edge: Literal["starting", "ending"],
    positions: Positions,
    log: Mapping[TopicPartition, Extent],
    *,
    look_up: LookUp,
    strategy: Strategy = "error",
) -> Offsets:
    """Return offsets for every partition of the log.

    Raise OptionError if JSON has other partitions or, with strategy `error`, a start time is after the last record.
    """
    if isinstance(positions, Everywhere):
        return {partition: _place(positions.position, extent) for partition, extent in log.items()}
    if isinstance(positions, AtOffsets):
        offsets = dict(positions.offsets)
        _check_partitions(f"{edge}Offsets", offsets, log, "use -1 for latest, -2 for earliest")
        return {partition: _place(offsets[partition], extent) for partition, extent in log.items()}
    if isinstance(positions, AtTime):
        times = dict.fromkeys(log, positions.timestamp)
    else:
        times = dict(positions.timestamps)
        _check_partitions(f"{edge}OffsetsByTimestamp", times, log, "every partition wants a time")
    found = look_up(times)
    late = [partition for partition in sorted(times) if found[partition] is None]
    if late and edge == "starting" and strategy == "error":
        raise OptionError(
            f"{late[0]} has no record at or after {times[late[0]]} ms: choose an earlier time, or "
            "set startingOffsetsByTimestampStrategy=latest"
        )
    return {partition: _found(found[partition], extent) for partition, extent in log.items()}


def values(positions: Positions | None) -> set[int]:
    """Return the bound's words and offsets, to check them before reading."""
    if isinstance(positions, Everywhere):
        return {positions.position}
    return {offset for _, offset in positions.offsets} if isinstance(positions, AtOffsets) else set()


def _found(offset: int | None, extent: Extent) -> int:
    return extent.end if offset is None else min(max(offset, extent.start), extent.end)


def _place(position: int, extent: Extent) -> int:
    if position == LATEST:
        return extent.end
    return extent.start if position == EARLIEST else position


def _check_partitions(
    name: str, given: Mapping[TopicPartition, int], log: Mapping[TopicPartition, Extent], hint: str
) -> None:
    missing, extra = sorted(set(log) - set(given)), sorted(set(given) - set(log))
    if missing:
        raise OptionError(f"option {name!r} misses partitions {', '.join(map(str, missing))}: {hint}")
    if extra:
        raise OptionError(f"option {name!r} names partitions that are not read: {', '.join(map(str, extra))}")


def _ids(name: str, text: str) -> tuple[tuple[str, str], ...]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(parsed, dict):
        return ()
    found = [(topic, each[ID]) for topic, each in parsed.items() if isinstance(each, dict) and ID in each]
    for topic, given in found:
        if not isinstance(given, str):
            raise OptionError(f"option {name!r} has {given!r} where the id of topic {topic!r} belongs")
    return tuple(found)


def _by_partition(
    name: str, text: str, *, least: int, what: str, besides: str | None = None
) -> list[tuple[TopicPartition, int]]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(offsets, dict) for offsets in parsed.values()):
        words = "" if name.endswith("Timestamp") else "earliest, latest or "
        raise OptionError(f'option {name!r} must be {words}JSON like {{"t":{{"0":23,"1":-2}}}}: {text!r}')
    return [
        (TopicPartition(topic, _partition(name, partition)), _number(name, partition, value, least, what))
        for topic, partitions in parsed.items()
        for partition, value in partitions.items()
        if partition != besides
    ]


def _partition(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"option {name!r} has {text!r} where a partition number belongs")
    return int(text)


def _number(name: str, partition: str, value: object, least: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"option {name!r} has {value!r} for partition {partition}: {what}")
    return value


def _whole(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise OptionError(f"option {name!r} must be a time in milliseconds since 1970, not {text!r}")
    return int(digits)
