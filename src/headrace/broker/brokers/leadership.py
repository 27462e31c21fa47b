"""The logs that this server leads: opened when the view says that they are its, given up when it no longer does.

Without a view all of them are, and whoever asks for an opening waits for it. With one, they are opened soon, in the
background; until then clients are told to look for the leader again.
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
"""Logs that are opened until the collector walks what they have made: some milliseconds."""
_AGAIN_S = 0.25
_UNTOLD = Leader(-1, -1)
_log = structlog.get_logger("headrace.broker.brokers")


BeforeOpening = Callable[[Mapping[LeaderPartition, Topic]], Awaitable[None]]
"""Called with logs that are opened next, and their topics."""


class LeaderRegistry:
    """Who has opened each log last, as all brokers have been told; common to all virtual clusters.

    What this server itself opens is known here, too, when all are told. Until then they name who led it before, or
    unused: one leader epoch is one broker's on all of them, and hardly one names the old leader when another one has
    named the new one. librdkafka takes a leader under the epoch of the one before, and two quick changes of mind leave
    it at a broker that does not lead (its pull request 5593; before 2.1 it does not look at epochs).
    """

    def __init__(
        self, node_id: int = -1, publish: Callable[[Mapping[str, Leader]], Awaitable[None]] | None = None
    ) -> None:
        """`node_id`: this server's; `publish`: tells all brokers; None: there are no others."""
        self.known: dict[str, Leader] = {}
        self.current: Callable[[], Awaitable[None]] = _at_once
        """Returns when all that was told before is known here."""
        self._node_id = node_id
        self._publish = publish
        self._due: dict[str, Leader] = {}
        self._publishing: asyncio.Task[None] | None = None

    def opened(self, log: LeaderPartition) -> None:
        """This server has opened a log: soon all know."""
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
                except Exception as error:  # nobody would tell any more
                    if not isinstance(error, Fenced | StorageUnavailable):
                        _log.exception("leaders could not be published")
                    self._due = due | self._due
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._publishing = None

    def news(self, told: Mapping[str, Leader]) -> dict[str, Leader]:
        """Of what brokers have told what is not known here."""
        return {stream: leader for stream, leader in told.items() if leader > self.known.get(stream, _UNTOLD)}

    def forget(self, streams: Iterable[str]) -> None:
        """Logs are gone: nobody leads them."""
        for stream in streams:
            self.known.pop(stream, None)
            self._due.pop(stream, None)

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._publishing is not None:
            self._publishing.cancel()


async def _at_once() -> None:
    pass


async def _never(topic: str, stream: str) -> bool:
    return False


class Leadership:
    """The logs of one virtual cluster."""

    def __init__(
        self,
        ownership: Ownership,
        leaders: LeaderRegistry,
        registry: TopicStorage,
        *,
        has_moved: Callable[[str, str], Awaitable[bool]] = _never,
        before_opening: BeforeOpening | None = None,
    ) -> None:
        """Lead nothing yet.

        Args:
            ownership: what is this server's.
            leaders: who has opened each log last.
            registry: of the virtual cluster's topics.
            has_moved: tells whether a topic of a name is in another virtual cluster by now, and has a stream.
            before_opening: called with logs that are opened next, for what has to be known before they are read here.
        """
        self._has_moved = has_moved
        self._before_opening = before_opening
        self.ownership = ownership
        self._leaders = leaders
        self._registry = registry
        self._due: dict[LeaderPartition, Topic | None] = {}
        """Logs to be opened, with the topic in whose registry entry each has to be; None: it is not there yet."""
        self._opening: asyncio.Task[None] | None = None
        self._uncollected = 0

    async def open(self, topic: Topic | None, logs: list[LeaderPartition]) -> None:
        """Open new logs as far as they are this server's; raises what `LeaderPartition.open` does where it is alone.

        `topic`: in whose registry entry they are; None: in none yet.
        """
        if not self.ownership.shared:
            async for part in in_slices(logs, lambda log: self._open_alone(topic, log), _AT_ONCE):
                self._collect(len(part))
            return
        for log in logs:
            log.opened = self._leaders.opened
            self._assign(topic, log)
        # Whoever has made the topic will write to it next.
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=1)

    async def _open_alone(self, topic: Topic | None, log: LeaderPartition) -> None:
        """Open a log that can only be this server's; where storage holds something else it is tried again later."""
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
        """Go by the present view from now on, if there is one."""
        if not self.ownership.shared:
            return
        for partition in partitions:
            if partition.log is not None:
                self._assign(topic, partition.log)
            else:
                self.point(partition)

    def view_changed(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Go by another view. In one that this server has missed another broker may have led any partition.

        Who has opened a log tells all, unless it died before that.
        """
        self.adopt(topic, partitions)
        if not self.ownership.unbroken:
            for partition in partitions:
                if partition.log is not None:
                    partition.log.led_elsewhere()

    def hear(self, topic: Topic, partition: Partition) -> None:
        """A broker has told that it leads a partition.

        Where this one has opened its log before by the same view, it was another's in a view that this one has not
        seen: what it knows of the log may be old.
        """
        if self.ownership.shared and self.ownership.is_current:
            self.adopt(topic, [partition])
        else:
            # The next view, which is on its way, says whose it is.
            self.point(partition)

    def forget(self, streams: Iterable[str]) -> None:
        """A topic has other logs now."""
        self._leaders.forget(streams)

    def republish(self, partitions: Iterable[Partition], told: Mapping[str, Leader]) -> None:
        """Tell once more which logs this server has opened, where Redis has lost that: it has `told`."""
        for log in (partition.log for partition in partitions):
            if log is None or log.leader is not None or not log.is_leader:
                continue
            if told.get(log.stream, _UNTOLD).epoch < log.leader_epoch:
                self._leaders.opened(log)

    def check_alone(self, what: str) -> int | None:
        """Raise InvalidConfig where there are other brokers, which would not hear of `what`.

        Else the number of the view that says so; None: there is none.
        """
        others = ", ".join(str(each.node_id) for each in self.ownership.others)
        if others:
            raise InvalidConfig(f"{what} while other brokers run ({others}): stop them first, and start them after it")
        return self.ownership.number

    async def current(self) -> None:
        """Return when the partitions name the leaders that any broker has named before, as far as Redis answers."""
        await self._leaders.current()

    def _name_self(self, log: LeaderPartition) -> None:
        log.named = Leader(log.leader_epoch, self.ownership.node_id)

    def point(self, partition: Partition) -> None:
        """See to it that clients are told who leads a partition by now."""
        leader = self.ownership.leader_of(partition.stream)
        if partition.log is not None:
            self._name(partition.log, leader)
            return
        partition.leader = leader
        # A plain stream is open everywhere, and has no epochs: librdkafka 2.4 to 2.6.0 takes no other leader under the
        # epoch that it knows (its issue 4804).
        partition.named = Leader(-1 if self.ownership.shared else partition.leader_epoch, self._node(leader))

    def _name(self, log: LeaderPartition, leader: int | None) -> None:
        told = self._leaders.known.get(log.stream, _UNTOLD)
        if told.node_id < 0:
            told = Leader(told.epoch, self._node(leader))
        elif not self.ownership.is_alive(told.node_id):
            told = Leader(told.epoch, -1)
        log.named = told

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
        """Have the collector walk what openings have made, now and then.

        Each also frees what the log had before. So it does not count, and the walk over all of 10 000 takes a tenth of
        a second when it comes.
        """
        self._uncollected += opened
        if self._uncollected >= _COLLECTED:
            self._uncollected = 0
            gc.collect(1)

    async def _open_some(self, some: list[tuple[LeaderPartition, Topic | None]]) -> list[bool]:
        """Open logs; which of them have to be tried again."""
        # What is open may be changed meanwhile by who reads and writes it.
        closed = {log: topic for log, topic in some if topic is not None and not log.is_open}
        if self._before_opening is not None and closed:
            try:
                await self._before_opening(closed)
            except StorageUnavailable:
                return [True] * len(some)
            except Exception:
                # They are opened as soon as it can be known; nobody would open them any more.
                _log.exception("logs of partitions cannot be recovered", partitions=len(some))
                return [True] * len(some)
        return await asyncio.gather(*(self._open_one(log, topic) for log, topic in some))

    async def _open_one(self, log: LeaderPartition, topic: Topic | None) -> bool:
        """Open a log; whether it has to be tried again."""
        if log.deleted or log.leader is not None:
            return False
        try:
            if not log.is_open:
                await self._open_or_take_offline(log)
            if topic is not None:
                await self._check_there(log, topic)
        except (Fenced, UnknownTopic):
            # There is a later view, which this server will hear of; or the topic is gone.
            return False
        except (StorageUnavailable, StorageFull):
            return True
        except Exception as error:
            # The others are still to be opened. Whatever is wrong may be put right.
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
        """An opening makes what is missing, so it may have made a log of a topic that was deleted meanwhile."""
        if log.log_end:
            return
        stored = await self._registry.find(topic.name)
        if stored is not None and log.stream in stored.streams:
            return
        if not await self._has_moved(topic.name, log.stream):
            log.close()
            await self._registry.drop_streams(msgspec.structs.replace(topic, streams=(log.stream,)))

    def stop(self) -> None:
        """Open nothing any more."""
        if self._opening is not None:
            self._opening.cancel()
