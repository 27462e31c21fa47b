"""Serve `/metrics` for Prometheus, written in pieces to keep the event loop free."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace import __version__
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.time_lag import TimeLags
from headrace.broker.topics.cleaner import CleanerCounters
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import DEFAULT, VirtualClusters
from headrace.console.group_metrics import (
    write_groups,
    write_lags,
    write_share_lags,
    write_shares,
    write_time_lags,
)
from headrace.console.registry import PRINCIPAL, cluster_rule
from headrace.console.sampler import in_pieces
from headrace.console.server_data import process_facts
from headrace.console.transaction_metrics import Brokers, write_transactions
from headrace.http.shared_pages import SharedPages
from headrace.metrics import families
from headrace.metrics.counters import Counters, ProcessFacts, StoreFacts, TopicCounters
from headrace.metrics.families import CONTENT_TYPE, Exposition, Family, labels
from headrace.security.access.principal import ANONYMOUS
from headrace.security.access.required_acls import CLUSTER_NAME, Operation

_STORE_S = 1.0
"""Timeout for Redis."""
NEEDS = cluster_rule(Operation.DESCRIBE)
"""The metrics cover all topics and groups."""
_ErrorName = Callable[[int | str], str]


class MetricsPage:
    """The metrics of one server."""

    def __init__(
        self,
        clusters: VirtualClusters,
        counters: Counters,
        *,
        connections: Mapping[str, Callable[[], int]],
        store: Callable[[], Awaitable[StoreFacts]],
        log_lines_lost: Callable[[], int],
        writable: Callable[[], bool],
        error_name: _ErrorName,
        refusal: Callable[[Request], Response | None],
        data: Path | None,
        time_lags: TimeLags,
        most_series: int,
    ) -> None:
        """Create it.

        `store` may raise any error. `writable` returns whether records are accepted. Without `data`, the data directory
        is elsewhere. `most_series`: `metrics.max.series`.
        """
        self._clusters = clusters
        self._counters = counters
        self._connections = connections
        self._store = store
        self._log_lines_lost = log_lines_lost
        self._writable = writable
        self._error_name = error_name
        self._refusal = refusal
        self._data = data
        self._time_lags = time_lags
        self._most_series = most_series
        self._pages = SharedPages(self.render, CONTENT_TYPE, clusters.reads)

    async def answer(self, request: Request) -> Response:
        """Return the page, or why it is not shown."""
        refused = self._refusal(request)
        if refused is not None:
            return refused
        host = request.client.host if request.client is not None else ""
        grants = self._clusters.access.grants(request.scope.get(PRINCIPAL, ANONYMOUS), host, DEFAULT)
        if grants is not None and not grants.allow(NEEDS, CLUSTER_NAME):
            return PlainTextResponse("/metrics needs the right to Describe the Cluster.\n", 403)
        # One rendering serves all waiting clients, because 20,000 series take megabytes.
        return await self._pages.answer()

    async def render(self) -> bytes:
        """Return the page's text."""
        store, process = await asyncio.gather(self._store_facts(), asyncio.to_thread(process_facts, self._data))
        page = Exposition(self._most_series)
        await self._time_lags.refresh()
        await in_pieces(self._write(page, store, process))
        await asyncio.sleep(0)
        return page.finish()

    async def _store_facts(self) -> StoreFacts | None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_STORE_S):
                return await self._store()
        return None

    def _write(self, page: Exposition, store: StoreFacts | None, process: ProcessFacts) -> Iterator[None]:
        page.sample(families.INFO, 1, labels(version=__version__))
        _write_process(page, process)
        page.sample(families.LOG_LINES_LOST, self._log_lines_lost())
        self._write_store(page, store)
        yield
        yield from self._write_listeners(page)
        self._write_throttled(page)
        brokers = [("" if name == DEFAULT else name, broker) for name, broker in self._clusters]
        for kind, count in self._clusters.default.storage.documents.unreadable.counts.items():
            page.sample(families.UNREADABLE, count, labels(kind=kind))
        _write_cleaner(page, [broker.cleaner.counted for _, broker in brokers])
        _write_dead_letters(page, [broker.dead_letters for _, broker in brokers])
        yield from _write_unopened(page, brokers)
        yield from write_groups(page, brokers)
        yield from write_shares(page, brokers)
        yield from write_transactions(page, brokers)
        yield from _write_topics(page, brokers)
        yield from write_lags(page, brokers)
        yield from write_share_lags(page, self._time_lags)
        yield from write_time_lags(page, self._time_lags)
        yield from _write_logs(page, brokers)

    def _write_store(self, page: Exposition, facts: StoreFacts | None) -> None:
        counted = self._counters.store
        page.sample(families.WRITABLE, int(self._writable()))
        page.sample(families.STORE_UP, int(facts is not None))
        if facts is not None:
            page.sample(families.STORE_MEMORY, facts.memory_bytes)
            page.sample(families.STORE_MEMORY_MAX, facts.memory_max_bytes)
            page.sample(families.STORE_REPLICAS, facts.replicas)
            page.sample(families.STORE_FILE, facts.append_file_bytes)
            page.sample(families.STORE_FILE_OK, int(facts.append_file_ok))
        page.sample(families.STORE_APPENDS, counted.appends)
        page.sample(families.STORE_APPEND_BYTES, counted.append_bytes)
        page.sample(families.STORE_READ_BYTES, counted.asked_bytes, labels(source="redis"))
        page.sample(families.STORE_READ_BYTES, counted.file_bytes, labels(source="file"))
        page.sample(families.STORE_REFUSED, counted.refused)
        page.histogram(families.STORE_APPEND_DURATION, counted.append_durations)
        page.sample(families.STORE_RECONNECTS, counted.reconnects)
        page.sample(families.STORE_OPENINGS, counted.openings)
        page.sample(families.BROKERS, self._clusters.ownership.brokers)
        page.sample(families.JOURNAL, counted.journal_bytes)
        page.sample(families.JOURNAL_WAITING, counted.journal_waiting)
        page.histogram(families.LOOP_DELAY, self._counters.loop_delays)

    def _write_listeners(self, page: Exposition) -> Iterator[None]:
        listeners = self._counters.listeners
        for name, connections in self._connections.items():
            page.sample(families.CONNECTIONS, connections(), labels(listener=name))
        apis = [(listener.name, api) for listener in listeners for api in listener.apis.values()]
        for name, api in apis:
            page.sample(families.REQUESTS, api.count, labels(listener=name, api=api.name))
        yield
        for name, api in apis:
            for error, count in tuple(api.errors.items()):
                text = labels(listener=name, api=api.name, error=self._error_name(error))
                page.sample(families.ERRORS, count, text)
                yield
        for name, api in apis:
            if api.ticks or api.count:
                page.histogram(families.DURATION, api, labels(listener=name, api=api.name))
                yield

    def _write_throttled(self, page: Exposition) -> None:
        throttled = {labels(quota=key.value): each for key, each in self._clusters.quotas.throttled.items()}
        for text, each in throttled.items():
            page.sample(families.THROTTLED, each.count, text)
        for text, each in throttled.items():
            page.sample(families.THROTTLED_TIME, each.ms / 1000, text)


def _write_process(page: Exposition, facts: ProcessFacts) -> None:
    told: tuple[tuple[Family, float | None], ...] = (
        (families.DISK_FREE, facts.disk_free_bytes),
        (families.DISK_SIZE, facts.disk_size_bytes),
        (families.OPEN_FDS, facts.open_fds),
        (families.MAX_FDS, facts.max_fds),
        (families.RESIDENT, facts.resident_bytes),
        (families.CPU, facts.cpu_seconds),
        (families.STARTED, facts.started_seconds),
    )
    for family, value in told:
        if value is not None:
            page.sample(family, value)


def _write_unopened(page: Exposition, brokers: Brokers) -> Iterator[None]:
    unopened = 0
    for _, live in _topics(brokers):
        unopened += sum(
            each.offline is not None or (each.log is not None and each.log.fenced_reason is not None)
            for each in live.partitions
        )
        yield
    page.sample(families.UNOPENED, unopened)


def _write_cleaner(page: Exposition, counted: Sequence[CleanerCounters]) -> None:
    page.sample(families.CLEANER_PASSES, sum(each.passes for each in counted))
    page.sample(families.CLEANER_FAILURES, sum(each.failures for each in counted))
    page.sample(families.CLEANER_READ, sum(each.bytes_read for each in counted))
    page.sample(families.CLEANER_KEPT, sum(each.bytes_kept for each in counted))
    page.sample(families.CLEANER_DIRTY, sum(each.dirty_bytes for each in counted))
    page.sample(families.CLEANER_DIRTY_RATIO, max((each.max_dirty_ratio for each in counted), default=0.0))


def _write_dead_letters(page: Exposition, topics: Sequence[DeadLetterTopics]) -> None:
    page.sample(families.DEAD_LETTERS, sum(each.counters.copied for each in topics))
    page.sample(families.DEAD_LETTER_FAILURES, sum(each.counters.failures for each in topics))
    page.sample(families.DEAD_LETTERS_WAITING, sum(each.waiting for each in topics))


_TRAFFIC: tuple[tuple[Family, Callable[[TopicCounters], int]], ...] = (
    (families.RECORDS_IN, lambda counted: counted.records_in),
    (families.BYTES_IN, lambda counted: counted.bytes_in),
    (families.RECORDS_OUT, lambda counted: counted.records_out),
    (families.BYTES_OUT, lambda counted: counted.bytes_out),
)


def _topics(brokers: Brokers) -> list[tuple[str, LiveTopic]]:
    return [(cluster, live) for cluster, broker in brokers for live in broker.topics]


def _write_topics(page: Exposition, brokers: Brokers) -> Iterator[None]:
    topics = _topics(brokers)
    for family, value in _TRAFFIC:
        for cluster, live in topics:
            page.sample(family, value(live.counted), labels(cluster=cluster, topic=live.topic.name))
            yield


def _write_logs(page: Exposition, brokers: Brokers) -> Iterator[None]:
    topics = _topics(brokers)
    for family, at_end in ((families.LOG_END, True), (families.LOG_START, False)):
        for cluster, live in topics:
            for partition in [each for each in live.partitions if each.leader is None]:
                offset = partition.log_end if at_end else partition.log_start
                text = labels(cluster=cluster, topic=live.topic.name, partition=str(partition.index))
                page.sample(family, offset, text)
                yield
