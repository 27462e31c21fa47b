"""Follow the new records of a topic's partitions, the newest first if there are too many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

from headrace.broker.partition.partition import Partition
from headrace.console import record_reader
from headrace.console.pagination import positions_of
from headrace.console.record_filter import Filter
from headrace.console.record_reader import ISOLATION
from headrace.console.record_search import MOST_S, Match
from headrace.console.registry import ViewRequest
from headrace.console.views import records
from headrace.console.views.topics import live_topic
from headrace.topics.errors import UnknownTopic

ROWS: Final = 50
"""Maximum records at a time."""
MOST_PARTITIONS: Final = 1_000
"""Maximum partitions that one page follows."""
_AT_ONCE: Final = 50
"""Partitions read at a time. Others follow a moment later."""


class RecordTail:
    """The records that follow those of a page."""

    def __init__(self, ask: ViewRequest, soon: Callable[[], None]) -> None:
        """Begin at the positions in `tail` of the query; without it, only offsets are reported.

        `soon` is called when there are records. Raises NotFound, UnknownTopic.
        """
        self._ask = ask
        self._soon = soon
        self._live = live_topic(ask)
        self._index = records.asked_partition(ask, self._live)
        query = ask.query
        self._wanted = Filter.of(query.get("key", ""), query.get("q", ""), query.get("field", ""))
        told = query.get("tail", "")
        given = positions_of(told if ":" in told else f"{self._index or 0}:{told}")
        chosen = records.chosen_partitions(self._live, self._index, most=MOST_PARTITIONS) if given else []
        self._offsets = {each: given.get(each.index, each.visible_end(ISOLATION)) for each in chosen}
        self._next = 0
        self.passed = 0
        """Records that were skipped by the last call of `rows`."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Call `soon` while there are new records."""

        def grown(size: int) -> None:
            self._soon()

        for each in self._offsets:
            each.watch(grown, ISOLATION)
        try:
            yield
        finally:
            for each in self._offsets:
                each.unwatch(grown)

    @property
    def deleted(self) -> bool:
        """Return whether the topic is gone."""
        return any(each.deleted for each in self._live.partitions)

    def cells(self) -> dict[str, str]:
        """Return the cells of the page."""
        return {} if self._index is None else records.ends(self._live.partitions[self._index])

    async def rows(self) -> list[dict[str, Any]]:
        """Return new records for a list. Raises TopicError."""
        self.passed = 0
        grown = [each for each in self._offsets if each.visible_end(ISOLATION) > self._offsets[each]]
        if self.deleted:
            raise UnknownTopic(self._live.topic.name)
        if not grown:
            return []
        start = self._next % len(grown)
        self._next += _AT_ONCE
        turn = (grown[start:] + grown[:start])[:_AT_ONCE]
        if len(grown) > len(turn):
            self._soon()
        matches: list[Match] = []
        for each in turn:
            matches += await self._read(each, max(1, ROWS // len(turn)))
        matches.sort(key=lambda each: (each.found.record.timestamp, each.partition, each.found.record.offset))
        return [records.row(self._live, each, self._ask.broker.cluster, {}) for each in matches]

    async def _read(self, partition: Partition, most: int) -> list[Match]:
        ask, offset = self._ask, self._offsets[partition]
        newest = max(offset, partition.visible_end(ISOLATION) - most)
        read = await record_reader.some(ask.figures, ask.broker, partition, newest, most)
        self.passed += newest - offset
        self._offsets[partition] = max(newest, read.following)
        found = [each.record for each in read.found]
        until = perf_counter() + MOST_S
        chosen, _ = await ask.figures.work.run(found, records.visible_schemas(ask), until, self._wanted.matches)
        return [Match(partition.index, read.found[place], parts) for place, parts in chosen]
