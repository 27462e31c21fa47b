"""Logs that this server leads: recovered and released as the cluster membership changes.

Without a cluster it leads all, and callers wait for recovery. In a cluster, recovery runs in the background, and
clients must look up the leader again until it is done.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.recovery import log_offline
from headrace.broker.ports import TopicStorage
from headrace.membership.view import Leader
from headrace.topics.errors import Fenced, InvalidConfig, StorageFull, StorageUnavailable, UnknownTopic
from headrace.topics.model import Topic

_AT_ONCE = 64
_COLLECTED = 2_000
"""Logs recovered between garbage collections of some milliseconds."""
_AGAIN_S = 0.25
_UNTOLD = Leader(-1, -1)
_log = structlog.get_logger("headrace.broker.brokers")


BeforeOpening = Callable[[Mapping[LeaderPartition, Topic]], Awaitable[None]]
"""Called with logs about to be recovered, and their topics."""


class LeaderRegistry:
    """Last published leader of each log, common to all virtual clusters.

    This server also learns its own leaderships from the publication, so that all brokers advertise one leader per
    leader epoch, and until then the previous one or none. librdkafka accepts a new leader under the previous epoch, and
    two quick changes leave it at a broker that does not lead (its pull request 5593; before 2.1 it ignores epochs).
    """

    def __init__(
        self, node_id: int = -1, publish: Callable[[Mapping[str, Leader]], Awaitable[None]] | None = None
    ) -> None:
        """Without `publish`, no other brokers exist."""
        self.known: dict[str, Leader] = {}
        self.current: Callable[[], Awaitable[None]] = _at_once
        """Returns when all earlier publications are known here."""
        self._node_id = node_id
        self._publish = publish
        self._due: dict[str, Leader] = {}
        self._publishing: asyncio.Task[None] | None = None

    def opened(self, log: LeaderPartition) -> None:
        """Publish a recovered log."""
        if self._publish is None:
            return
        self._due[log.stream] = Leader(log.leader_epoch, self._node_id)
        if self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        assert self._publish is not None
        try:
            while self._due:
                due, self._due = self._due, {}
                try:
                    await self._publish(due)
                except Exception as error:  # publishing must continue
                    if not isinstance(error, Fenced | StorageUnavailable):
                        _log.exception("leaders could not be published")
                    self._due = due | self._due
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._publishing = None

    def news(self, published: Mapping[str, Leader]) -> dict[str, Leader]:
        """Return published leaders that are not known here."""
        return {stream: leader for stream, leader in published.items() if leader > self.known.get(stream, _UNTOLD)}

    def forget(self, streams: Iterable[str]) -> None:
        """Forget logs that no longer exist."""
        for stream in streams:
            self.known.pop(stream, None)
            self._due.pop(stream, None)

    def stop(self) -> None:
        """Stop publishing."""
        if self._publishing is not None:
            self._publishing.cancel()


async def _at_once() -> None:
    pass


async def _never(topic: str, stream: str) -> bool:
    return False


class Leadership:
    """Leadership of the logs of one virtual cluster."""

    def __init__(
        self,
        ownership: Ownership,
        leaders: LeaderRegistry,
        registry: TopicStorage,
        *,
        has_moved: Callable[[str, str], Awaitable[bool]] = _never,
        before_opening: BeforeOpening | None = None,
    ) -> None:
        self._has_moved = has_moved
        self._before_opening = before_opening
        self.ownership = ownership
        self._leaders = leaders
        self._registry = registry
        self._due: dict[LeaderPartition, Topic | None] = {}
        """Logs to recover, with the topic whose registry entry must have each. None: not stored yet."""
        self._opening: asyncio.Task[None] | None = None
        self._uncollected = 0

    async def open(self, topic: Topic | None, logs: list[LeaderPartition]) -> None:
        """Recover new logs that this server leads. Without a cluster, raises as `LeaderPartition.open`.

        `topic`: None if not stored yet.
        """
        if not self.ownership.shared:
            async for part in in_slices(logs, lambda log: self._open_alone(topic, log), _AT_ONCE):
                self._collect(len(part))
            return
        for log in logs:
            log.opened = self._leaders.opened
            self._assign(topic, log)
        # The client that created the topic will write to it next.
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=1)

    async def _open_alone(self, topic: Topic | None, log: LeaderPartition) -> None:
        """Recover a log without a cluster. Retried later if storage has unexpected contents."""
        log.opened = self._name_self
        if topic is None:
            await log.open(create=True)
            return
        try:
            await self._open_or_take_offline(log)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except Exception:
            self._due[log] = topic
            self._open_soon()

    def _open_soon(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_due())

    def adopt(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Apply the current cluster membership, if any."""
        if not self.ownership.shared:
            return
        for partition in partitions:
            if partition.log is not None:
                self._assign(topic, partition.log)
            else:
                self.point(partition)

    def view_changed(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Apply another cluster membership.

        In a view that this server missed, another broker may have led any partition.

        A leader publishes itself, unless it died first.
        """
        self.adopt(topic, partitions)
        if not self.ownership.unbroken:
            for partition in partitions:
                if partition.log is not None:
                    partition.log.led_elsewhere()

    def hear(self, topic: Topic, partition: Partition) -> None:
        """Apply a published leader.

        If this server has recovered the log by the same view, another broker led it in a view that this one missed:
        state may be stale.
        """
        if self.ownership.shared and self.ownership.is_current:
            self.adopt(topic, [partition])
        else:
            # The next view, which is on its way, determines the leader.
            self.point(partition)

    def forget(self, streams: Iterable[str]) -> None:
        """Forget the previous logs of a topic."""
        self._leaders.forget(streams)

    def republish(self, partitions: Iterable[Partition], published: Mapping[str, Leader]) -> None:
        """Publish again this server's logs that Redis lost: those not in `published`."""
        for log in (partition.log for partition in partitions):
            if log is None or log.leader is not None or not log.is_leader:
                continue
            if published.get(log.stream, _UNTOLD).epoch < log.leader_epoch:
                self._leaders.opened(log)

    def check_alone(self, what: str) -> int | None:
        """Raise InvalidConfig if other brokers exist, which would not notice `what`.

        Return the view's number, if any.
        """
        others = ", ".join(str(each.node_id) for each in self.ownership.others)
        if others:
            raise InvalidConfig(f"{what} while other brokers run ({others}): stop them first, and start them after it")
        return self.ownership.number

    async def current(self) -> None:
        """Return when partitions have all earlier published leaders, if Redis responds."""
        await self._leaders.current()

    def _name_self(self, log: LeaderPartition) -> None:
        log.named = Leader(log.leader_epoch, self.ownership.node_id)

    def point(self, partition: Partition) -> None:
        """Update the advertised leader of a partition."""
        leader = self.ownership.leader_of(partition.stream)
        if partition.log is not None:
            self._name(partition.log, leader)
            return
        partition.leader = leader
        # Every broker serves a plain stream, without epochs: librdkafka 2.4 to 2.6.0 accepts no other leader under a
        # known epoch (its issue 4804).
        partition.named = Leader(-1 if self.ownership.shared else partition.leader_epoch, self._node(leader))

    def _name(self, log: LeaderPartition, leader: int | None) -> None:
        published = self._leaders.known.get(log.stream, _UNTOLD)
        if published.node_id < 0:
            published = Leader(published.epoch, self._node(leader))
        elif not self.ownership.is_alive(published.node_id):
            published = Leader(published.epoch, -1)
        log.named = published

    def _node(self, leader: int | None) -> int:
        return self.ownership.node_id if leader is None else leader

    def _assign(self, topic: Topic | None, log: LeaderPartition) -> None:
        number = self.ownership.number
        assert number is not None
        leader = self.ownership.leader_of(log.stream)
        self._name(log, leader)
        if leader is not None:
            self._due.pop(log, None)
            log.release(leader)
            return
        log.lead(number, self._leaders.known.get(log.stream, _UNTOLD).epoch)
        if not log.is_open:
            self._due[log] = topic
            self._open_soon()

    async def _open_due(self) -> None:
        try:
            while self._due:
                some = [(log, self._due.pop(log)) for log in list(self._due)[:_AT_ONCE]]
                again = await self._open_some(some)
                self._collect(len(some))
                if any(again):
                    await asyncio.sleep(_AGAIN_S)
                for (log, topic), wanted in zip(some, again, strict=True):
                    if wanted and log.leader is None and not log.deleted:
                        self._due.setdefault(log, topic)
        finally:
            self._opening = None

    def _collect(self, opened: int) -> None:
        """Run the garbage collector now and then.

        Recovery also frees objects, so the collector's own count stays low, and its late walk over 10,000 logs takes
        0.1 s.
        """
        self._uncollected += opened
        if self._uncollected >= _COLLECTED:
            self._uncollected = 0
            gc.collect(1)

    async def _open_some(self, some: list[tuple[LeaderPartition, Topic | None]]) -> list[bool]:
        """Recover logs. Return which must be retried."""
        # Open logs may change concurrently.
        closed = {log: topic for log, topic in some if topic is not None and not log.is_open}
        if self._before_opening is not None and closed:
            try:
                await self._before_opening(closed)
            except StorageUnavailable:
                return [True] * len(some)
            except Exception:
                # Retry, because no other task recovers them.
                _log.exception("logs of partitions cannot be recovered", partitions=len(some))
                return [True] * len(some)
        return await asyncio.gather(*(self._open_one(log, topic) for log, topic in some))

    async def _open_one(self, log: LeaderPartition, topic: Topic | None) -> bool:
        if log.deleted or log.leader is not None:
            return False
        try:
            if not log.is_open:
                await self._open_or_take_offline(log)
            if topic is not None:
                await self._check_there(log, topic)
        except (Fenced, UnknownTopic):
            # A later view exists, which this server will receive, or the topic was deleted.
            return False
        except (StorageUnavailable, StorageFull):
            return True
        except Exception as error:
            # Continue with the others. The problem may be fixed.
            if not log.offline:
                _log.error(
                    "the log of a partition cannot be recovered",
                    topic=log.topic,
                    partition=log.index,
                    reason=str(error),
                )
            return True
        return False

    async def _open_or_take_offline(self, log: LeaderPartition) -> None:
        try:
            await log.open(create=True)
        except (Fenced, StorageFull, StorageUnavailable, UnknownTopic):
            raise
        except Exception as error:
            if not log.deleted and log.leader is None:
                if log.offline != str(error):
                    log_offline(log.topic, log.index, error)
                log.go_offline(error)
            raise

    async def _check_there(self, log: LeaderPartition, topic: Topic) -> None:
        if log.log_end:
            return
        stored = await self._registry.find(topic.name)
        if stored is not None and log.stream in stored.streams:
            return
        if not await self._has_moved(topic.name, log.stream):
            log.close()
            await self._registry.drop_streams(msgspec.structs.replace(topic, streams=(log.stream,)))

    def stop(self) -> None:
        """Stop recovering logs."""
        if self._opening is not None:
            self._opening.cancel()
