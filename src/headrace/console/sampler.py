"""Sample counters every two seconds for all pages, and keep 24 hours of history.

Group lag needs a look-up per partition. With many partitions it is sampled only while a page is open.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator
from time import perf_counter, perf_counter_ns, process_time

import structlog

from headrace.broker.broker import Broker
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.group_lag import known_lags, topics_read
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console import text
from headrace.console.events import Event, EventKind, Events
from headrace.console.history import EVERY_MS, NAN, History, Ring
from headrace.groups.classic.states import in_words
from headrace.groups.model import TopicPartition

_PIECE_NS = 1_000_000
"""Maximum time that the event loop is blocked."""
_log = structlog.get_logger("headrace.console")
_FREE = 500
"""Partitions whose lag is sampled without an open page."""
MOST_SERIES = 4_000
"""Maximum series of one kind. Further topics, groups and partitions have no history."""
_SPARK = 60
"""Samples of a partition's lag: two minutes."""
_WATCHED_PARTITIONS = 256
"""Maximum partitions of a group with lag history."""

Key = tuple[str, str]
"""Virtual cluster, and a topic or a group in it."""


class Traffic:
    """A topic's counters at the last sample, and its rates since."""

    __slots__ = ("bytes_in", "bytes_out", "counted", "incoming", "outgoing", "records_in", "records_out")

    def __init__(self) -> None:
        self.counted = (0, 0, 0, 0)
        self.records_in = self.records_out = self.bytes_in = self.bytes_out = 0.0
        self.incoming, self.outgoing = History(), History()


class _Group:
    __slots__ = ("colours", "lag", "lags", "seen", "topics")

    def __init__(self) -> None:
        self.seen: tuple[str, int, int] | None = None
        self.topics: set[str] | None = None
        """Topics of its committed offsets and members, cached until members change; None: unknown."""
        self.lag = History(peak=True)
        self.lags: dict[TopicPartition, Ring] = {}
        self.colours: dict[str, int] = {}
        """Member -> its color on pages."""


class Sampler:
    """Recent history for pages."""

    def __init__(
        self, clusters: VirtualClusters, clock: Clock, connections: Callable[[], int], refusal: Callable[[], str]
    ) -> None:
        """Create it. `refusal` returns why the server accepts no records, empty if it does."""
        self._clusters = clusters
        self._clock = clock
        self._connections = connections
        self._refusal = refusal
        self._refused = ""
        self._timer: Timer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._at_ms = 0
        self.topics: dict[Key, Traffic] = {}
        self.groups: dict[Key, _Group] = {}
        self.watched: dict[Key, int] = {}
        """Groups with open pages, and the number of pages."""
        self.records_in, self.records_out = History(), History()
        self.bytes_in, self.bytes_out = History(), History()
        self.lag, self.connections = History(peak=True), History(peak=True)
        self.cpu = History()
        """Percent of one core that this process uses."""
        self._cpu_s = process_time()
        self._cpu_at = perf_counter()
        self.events = Events()
        self.looks: set[Callable[[], None]] = set()
        """Called after each sample; one per open page."""
        self._known = False
        self._places = 0
        """Partitions of the last lag sample."""

    def start(self) -> None:
        """Sample now and every `EVERY_MS`."""
        self._at_ms = self._clock.ticks_ms()
        for _ in self._look():
            pass
        self._later()

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _later(self) -> None:
        self._timer = self._clock.call_at(self._clock.ticks_ms() + EVERY_MS, self._tick)

    def _tick(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_in_pieces(), name="console sampler")

    async def _look_in_pieces(self) -> None:
        try:
            await in_pieces(self._look())
        except Exception:
            # A bug. Continue in two seconds.
            _log.exception("console sampling failed")
        self._later()
        for look in tuple(self.looks):
            look()

    def _look(self) -> Iterator[None]:
        now_ms = self._clock.ticks_ms()
        seconds = max(0.001, (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
        yield from self._look_at_topics(seconds)
        yield from self._look_at_members()
        yield from self._look_at_groups()
        self.connections.add(self._connections(), now_ms)
        self._look_at_cpu(now_ms)
        self._look_at_server()
        self._known = True

    def _look_at_cpu(self, now_ms: int) -> None:
        used, now = process_time(), perf_counter()
        if now > self._cpu_at:
            self.cpu.add(100 * (used - self._cpu_s) / (now - self._cpu_at), now_ms)
        self._cpu_s, self._cpu_at = used, now

    def _look_at_server(self) -> None:
        refusal = self._refusal()
        if refusal == self._refused:
            return
        self._refused = refusal
        told = f"accepts no records: {refusal}" if refusal else "accepts records again"
        self._tell("", "", EventKind.SERVER, told)

    # Topics

    def _look_at_topics(self, seconds: float) -> Iterator[None]:
        before = dict(self.topics)
        found: dict[Key, Traffic] = {}
        totals = [0.0, 0.0, 0.0, 0.0]
        for cluster, broker in self._clusters:
            for live in list(broker.topics):
                key = cluster, live.topic.name
                traffic = before.pop(key, None)
                counted = live.counted
                values = counted.records_in, counted.records_out, counted.bytes_in, counted.bytes_out
                if traffic is None:
                    traffic = Traffic()
                    # A new topic counts from 0, one that existed at the start from its current values.
                    traffic.counted = (0, 0, 0, 0) if self._known else values
                    if self._known:
                        self._tell(
                            *key, EventKind.TOPIC, f"created with {text.many(len(live.partitions), 'partition')}"
                        )
                rates = [max(0, new - old) / seconds for new, old in zip(values, traffic.counted, strict=True)]
                traffic.counted = values
                traffic.records_in, traffic.records_out, traffic.bytes_in, traffic.bytes_out = rates
                if len(found) < MOST_SERIES:
                    traffic.incoming.add(rates[0], self._at_ms)
                    traffic.outgoing.add(rates[1], self._at_ms)
                totals = [total + rate for total, rate in zip(totals, rates, strict=True)]
                found[key] = traffic
                yield
        self.topics = found
        for key in before:
            self._tell(*key, EventKind.TOPIC, "deleted")
        histories = self.records_in, self.records_out, self.bytes_in, self.bytes_out
        for history, total in zip(histories, totals, strict=True):
            history.add(total, self._at_ms)

    # Groups

    def _look_at_members(self) -> Iterator[None]:
        for cluster, broker in self._clusters:
            for each in broker.groups.member_events.take():
                who = each.what.replace("member ", f"member {text.name(each.client_id)} ", 1)
                told = f"{who}: {text.name(each.reason)}" if each.reason else who
                self.events.add(Event(each.time_ms, cluster, EventKind.MEMBER, each.group, told))
                yield

    def _look_at_groups(self) -> Iterator[None]:
        before = dict(self.groups)
        groups: dict[Key, _Group] = {}
        runners = [
            (cluster, broker, runner) for cluster, broker in self._clusters for runner in broker.groups.runners()
        ]
        few = max(self._places, sum(len(runner.positions) for _, _, runner in runners)) <= _FREE
        look = few or bool(self.looks)
        self._places = 0 if look else self._places
        total = 0.0 if look else NAN
        for cluster, broker, runner in runners:
            key = cluster, runner.name
            found = before.pop(key, None)
            machine = runner.machine
            seen = machine.state_name, machine.generations, machine.size
            if found is None:
                found = _Group()
                if self._known:
                    self._tell(*key, EventKind.GROUP, "created")
            elif found.seen is not None and found.seen != seen:
                self._tell(*key, EventKind.GROUP, _changed(found.seen, seen))
            if found.seen != seen or not machine.size:
                found.topics = None
            found.seen = seen
            lag = None
            if look:
                if found.topics is None:
                    found.topics = yield from _topics_of(broker, runner)
                lag = yield from self._lag_of(broker, runner, found, keep=few or key in self.watched)
                total += lag or 0
            if len(groups) < MOST_SERIES:
                found.lag.add(NAN if lag is None else lag, self._at_ms)
            groups[key] = found
            yield
        self.groups = groups
        for key in before:
            self._tell(*key, EventKind.GROUP, self._ending(*key))
        self.lag.add(total, self._at_ms)

    def _ending(self, cluster: str, name: str) -> str:
        """Return why a group is not here any more."""
        for known, broker in self._clusters:
            if known == cluster and (coordinator := broker.coordinator_of(name)) not in {broker.node_id, -1}:
                return f"now coordinated by broker {coordinator}"
        return "deleted, or expired without members and committed offsets"

    def _lag_of(
        self, broker: Broker, runner: GroupRunner, found: _Group, *, keep: bool
    ) -> Generator[None, None, int | None]:
        """Sample a group's lag, with history of its partitions if a page may show it."""
        lag = None
        known = found.lags if keep else {}
        found.lags = {}
        lags = known_lags(broker, runner, sorted(found.topics or ()))
        for number, (topic, index, records) in enumerate(lags):
            lag = (lag or 0) + records
            if keep and number < _WATCHED_PARTITIONS:
                place = TopicPartition(topic, index)
                ring = found.lags[place] = known.get(place) or Ring(_SPARK)
                ring.add(records)
            self._places += 1
            yield
        return lag

    def _tell(self, cluster: str, name: str, kind: EventKind, told: str) -> None:
        self.events.add(Event(self._clock.now_ms(), cluster, kind, name, told))


def _topics_of(broker: Broker, runner: GroupRunner) -> Generator[None, None, set[str]]:
    found = set()
    for topic in topics_read(broker, runner):
        found.add(topic)
        yield
    return found


def _changed(before: tuple[str, int, int], now: tuple[str, int, int]) -> str:
    (old_state, old_generation, old_size), (state, generation, size) = before, now
    parts = []
    if size != old_size:
        parts.append(text.many(size, "member"))
    if generation != old_generation:
        parts.append(f"generation {generation}")
    if state != old_state:
        parts.append(in_words(state))
    return ", ".join(parts) or "changed"


async def in_pieces(steps: Iterator[None]) -> None:
    """Run all steps, yielding to other tasks in between."""
    began = perf_counter_ns()
    for _ in steps:
        if perf_counter_ns() - began > _PIECE_NS:
            await asyncio.sleep(0)
            began = perf_counter_ns()
