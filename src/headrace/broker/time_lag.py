"""Seconds that groups are behind: the age of the record that a group reads next in a partition.

Timestamps are cached by partition and offset, so that only groups that move cost a lookup. Lookups read memory and
Redis, never the archive.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.aio.single_flight import SingleFlight
from headrace.broker.broker import Broker
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.group_lag import ISOLATION, share_lag, topics_read
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.timestamps import Searcher
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.model import GroupKind, OffsetAndMetadata, TopicPartition
from headrace.groups.sharing.state import NOT_BEGUN
from headrace.topics.errors import TopicError
from headrace.topics.native import SharePosition

MOST_LOOKUPS = 500
"""Maximum lookups at a time, of the groups whose last one is oldest. The others keep their last timestamp."""
MOST_NATIVE = 500
"""Maximum partitions of native topics whose committed offsets are read from Redis at a time."""
MOST_SHARES = 500
"""Maximum partitions of share groups whose state is read from Redis at a time."""
MOST_KNOWN = 20_000
_FRESH_MS = 2_000
"""Time for which an answer is shared."""
_TIMEOUT_S = 1.0
_ANY_TIME = -(2**63)


class _Known(NamedTuple):
    partition: Partition
    epoch: int
    """Its leader epoch: Redis may have lost the record since."""
    offset: int
    """The next offset of the group when the timestamp was looked up."""
    timestamp: int | None
    """Of that record, in ms; None: the group has read everything."""
    looked: int
    """Number of the refresh that looked it up."""

    def is_of(self, partition: Partition) -> bool:
        """Return whether the partition, and the log in it, is the same."""
        return self.partition is partition and self.epoch == partition.leader_epoch


class _Next(NamedTuple):
    """A record whose timestamp is unknown."""

    place: "Place"
    broker: Broker
    partition: Partition
    offset: int


Place = tuple[str, str, TopicPartition]
"""Virtual cluster, group and partition."""


class TimeLags:
    """The seconds that every group of this server is behind, in the partitions that this server leads."""

    def __init__(
        self, brokers: Callable[[], Iterable[tuple[str, Broker]]], clock: Clock, lane: CooperativeScheduler
    ) -> None:
        """Know nothing yet.

        Args:
            brokers: returns the virtual clusters.
            clock: the time.
            lane: where long work takes turns.
        """
        self._brokers = brokers
        self._clock = clock
        self._lane = lane
        self._known: dict[Place, _Known] = {}
        self.share_lags: dict[Place, int] = {}
        """Lag of share groups in records, as of the last refresh."""
        self._refreshes = 0
        self._fresh_until = -1
        self._refreshing = SingleFlight(self._refresh, joins=True)

    async def refresh(self) -> None:
        """Look up what is missing. Callers within two seconds share an answer."""
        if self._clock.ticks_ms() >= self._fresh_until:
            await self._refreshing.get(None)

    def seconds(self, cluster: str, group: str, place: TopicPartition) -> float | None:
        """Return the seconds that a group is behind as of the last refresh; None: unknown."""
        known = self._known.get((cluster, group, place))
        return None if known is None else self._age(known)

    def all(self) -> Iterator[tuple[Place, float]]:
        """Yield every known lag in seconds."""
        for place, known in list(self._known.items()):
            yield place, self._age(known)

    def _age(self, known: _Known) -> float:
        return 0.0 if known.timestamp is None else max(0, self._clock.now_ms() - known.timestamp) / 1000

    async def _refresh(self, _: None) -> None:
        self._refreshes += 1
        before = self._known
        found: dict[Place, _Known] = {}
        missing: list[_Next] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                async for each in self._everything():
                    known = before.get(each.place)
                    if len(found) >= MOST_KNOWN:
                        break
                    if each.partition.at_end(each.offset) or each.offset > each.partition.visible_end(ISOLATION):
                        found[each.place] = self._of(each, None)
                    elif known is None or known.timestamp is None or not known.is_of(each.partition):
                        missing.append(each)
                    else:
                        # Until it is looked up again. The group has moved since, so it is less behind than that.
                        found[each.place] = known
                        if known.offset != each.offset:
                            missing.append(each)
                missing.sort(key=lambda each: 0 if each.place not in found else found[each.place].looked)
                async for each, timestamp in self._lane.a_few_at_once(missing[:MOST_LOOKUPS], _timestamp_of):
                    if timestamp is not None:
                        found[each.place] = self._of(each, timestamp)
        self._known = found
        self._fresh_until = self._clock.ticks_ms() + _FRESH_MS

    def _of(self, each: _Next, timestamp: int | None) -> _Known:
        return _Known(each.partition, each.partition.leader_epoch, each.offset, timestamp, self._refreshes)

    async def _everything(self) -> AsyncIterator[_Next]:
        async for each in self._positions():
            yield each
        lags: dict[Place, int] = {}
        for cluster, broker in self._brokers():
            async for each in self._shares(cluster, broker, lags):
                yield each
        self.share_lags = lags

    async def _shares(self, cluster: str, broker: Broker, lags: dict[Place, int]) -> AsyncIterator[_Next]:
        """Yield the first record that is not done of each share group in partitions that this server leads."""
        pace = self._lane.pace()
        async for share in pace.each(list(broker.shares)):
            if share.is_ready and len(lags) < MOST_KNOWN:
                place = (cluster, share.group, TopicPartition(share.log.topic, share.log.index))
                lags[place] = share.lag
                yield _Next(place, broker, share.log, share.start)
        closed: list[_Next] = []
        for runner in broker.groups.runners():
            if runner.machine.kind is not GroupKind.SHARE:
                continue
            async for partition in pace.each(_partitions(broker, runner)):
                place = (cluster, runner.name, TopicPartition(partition.topic, partition.index))
                if place not in lags and len(closed) < MOST_SHARES:
                    closed.append(_Next(place, broker, partition, 0))
        async for each, found in self._lane.a_few_at_once(closed, _stored_position):
            if found is not None:
                lags[each.place] = found[1]
                yield each._replace(offset=found[0])

    async def _positions(self) -> AsyncIterator[_Next]:
        """Yield the next offset of each group in the partitions of its topics that this server leads.

        Share groups have none.
        """
        pace, natives = self._lane.pace(), MOST_NATIVE
        for cluster, broker in self._brokers():
            for runner in broker.groups.runners():
                if runner.machine.kind is GroupKind.SHARE:
                    continue
                async for partition in pace.each(_partitions(broker, runner)):
                    place = TopicPartition(partition.topic, partition.index)
                    positions: Mapping[TopicPartition, OffsetAndMetadata] = runner.positions
                    if partition.has_gaps:
                        natives -= 1
                        if natives < 0:
                            continue
                        try:
                            positions = await broker.positions(runner.name, [place])
                        except TopicError:
                            continue
                    committed = positions.get(place)
                    offset = max(partition.log_start, 0 if committed is None else committed.offset)
                    yield _Next((cluster, runner.name, place), broker, partition, offset)


def _partitions(broker: Broker, runner: GroupRunner) -> Iterator[Partition]:
    for topic in sorted(set(topics_read(broker, runner))):
        if broker.topics.has(topic):
            yield from (each for each in broker.topics.get(topic).partitions if each.leader is None)


async def _stored_position(asked: _Next) -> tuple[int, int] | None:
    """Return the start offset of a share group and its lag. None: unknown, or the group has not begun there."""
    _, group, _ = asked.place
    try:
        state = await asked.broker.shares.look(group, asked.partition)
    except TopicError:
        return None
    if isinstance(state, SharePosition):
        return None if state.lag is None else (state.start, state.lag)
    if state is None or state.spso == NOT_BEGUN:
        return None
    lag = share_lag(asked.partition, state)
    return None if lag is None else (max(state.spso, asked.partition.log_start), lag)


async def _timestamp_of(asked: _Next) -> int | None:
    with contextlib.suppress(TopicError):
        return await next_timestamp(asked.partition, asked.offset, asked.broker.searcher())
    return None


async def next_timestamp(partition: Partition, offset: int, searcher: Searcher) -> int | None:
    """Return the timestamp (ms) of the first record from an offset that is in memory or Redis; None: it has none.

    If the record is in the archive, the first record in Redis is younger than it.

    Raises:
        StorageUnavailable, CorruptBatch, MessageTooLarge.
    """
    stored = await partition.next_batch(offset)
    if stored is None:
        return None
    found = await searcher.first_at(stored, _ANY_TIME, max(offset, partition.local_start))
    return None if found is None or found[1] < 0 else found[1]
