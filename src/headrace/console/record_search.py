"""Read or search several partitions, within a time, and continue where a page ended.

A page covers a window of partitions, which take turns.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.partition.partition import Partition
from headrace.console import record_reader
from headrace.console.record_filter import Filter
from headrace.console.record_reader import ISOLATION, Found
from headrace.console.record_worker import Parts
from headrace.records.walk import Record

if TYPE_CHECKING:
    from headrace.console.server_data import Figures

WINDOW: Final = 50
"""Maximum partitions of a page."""
ROWS: Final = 50
MOST_S: Final = 2.0
"""Time of a search. A step that has begun is finished."""
_STEP: Final = 10_000
"""Maximum records of a partition in a step of a search."""


class Match(msgspec.Struct, frozen=True):
    """A record of a partition."""

    partition: int
    found: Found
    parts: Parts


class Range(msgspec.Struct):
    """What was read of a partition."""

    partition: int
    start: int
    position: int
    """The next offset."""
    end: int
    """The end when the search began."""


class Result(msgspec.Struct):
    """The result of a page."""

    matches: list[Match] = []
    ranges: list[Range] = []
    records: int = 0
    """How many were examined."""
    passed_over: int = 0
    """Batches that are unreadable or too large."""
    hidden: int = 0
    """Offsets of markers and of aborted transactions."""
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether everything in the window was read."""
        return all(each.position >= each.end for each in self.ranges)


async def search(
    figures: "Figures",
    broker: Broker,
    partitions: Sequence[Partition],
    starts: Sequence[int],
    wanted: Filter,
    visible: Callable[[str], bool],
) -> Result:
    """Return at most `ROWS` records that match, from these offsets on. Without a filter each partition has a share.

    Raises: UnknownTopic, StorageUnavailable.
    """
    began = perf_counter()
    until = began + MOST_S
    result = Result(ranges=[_range(each, start) for each, start in zip(partitions, starts, strict=True)])
    share = _STEP if wanted else max(1, ROWS // max(1, len(partitions)))
    open_ = [pair for pair in zip(partitions, result.ranges, strict=True) if pair[1].position < pair[1].end]
    while open_ and len(result.matches) < ROWS and perf_counter() < until:
        for partition, range_ in open_:
            await _step(figures, broker, partition, range_, wanted, visible, result, share, until)
            if len(result.matches) >= ROWS or perf_counter() >= until:
                break
        open_ = [pair for pair in open_ if pair[1].position < pair[1].end]
    result.matches.sort(key=lambda each: (each.found.record.timestamp, each.partition, each.found.record.offset))
    result.seconds = perf_counter() - began
    return result


def _range(partition: Partition, start: int) -> Range:
    end = partition.visible_end(ISOLATION)
    at = min(max(start, partition.log_start), end)
    return Range(partition.index, at, at, end)


async def _step(
    figures: "Figures",
    broker: Broker,
    partition: Partition,
    range_: Range,
    wanted: Filter,
    visible: Callable[[str], bool],
    result: Result,
    share: int,
    until: float,
) -> None:
    left = ROWS - len(result.matches)
    read = await record_reader.some(figures, broker, partition, range_.position, share if wanted else min(share, left))
    records: list[Record] = [each.record for each in read.found]
    chosen, examined = await figures.work.run(records, visible, until, wanted.matches, left)
    result.records += examined
    result.passed_over += read.passed_over
    if examined == len(records):
        result.hidden += read.hidden  # otherwise, the next step reads some of them again
    result.matches += [Match(partition.index, read.found[place], parts) for place, parts in chosen]
    following = read.following if examined == len(records) else records[examined].offset
    if following <= range_.position:
        following = range_.end  # retention or a deletion removed the records
    range_.position = following
