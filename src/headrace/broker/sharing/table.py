"""All share partitions and share sessions of a virtual cluster on this broker."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

import structlog

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.timestamps import FoundOffset
from headrace.broker.ports import ShareStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.sharing.partition import ShareLog
from headrace.broker.sharing.session import Place, ShareSession, ShareSessions
from headrace.broker.sharing.share import NativeShareGroups, Share
from headrace.broker.topics.table import TopicTable
from headrace.groups.configs import Configs, GroupConfig, ResetStrategy
from headrace.groups.model import GroupSettings
from headrace.groups.sharing.events import PartitionState
from headrace.groups.sharing.state import NOT_BEGUN, ShareState
from headrace.metrics.counters import ShareCounters
from headrace.topics.errors import Fenced, StorageUnavailable, UnknownTopic, UnknownTopicId
from headrace.topics.native import SharePosition

FindTime = Callable[[LeaderPartition, int], Awaitable[FoundOffset]]
"""Returns the first offset at or after a time (ms)."""
MOST_OPEN = 200_000
"""Share partitions in memory of a virtual cluster on one broker. Each takes about 3 kB."""
_log = structlog.get_logger("headrace.broker.sharing")


class ShareTable:
    """Opens share partitions for the first session that names them, and closes them after the last one."""

    def __init__(
        self,
        topics: TopicTable,
        storage: ShareStorage,
        configs: Configs,
        settings: GroupSettings,
        clock: Clock,
        lane: CooperativeScheduler,
        find_time: FindTime,
        natives: NativeShareGroups,
        dead_letters: DeadLetterTopics,
    ) -> None:
        """`clock` is that of members' timeouts, which pauses with this process."""
        self._topics = topics
        self._storage = storage
        self._configs = configs
        self._clock = clock
        self._lane = lane
        self._find_time = find_time
        self._natives = natives
        self._dead_letters = dead_letters
        self._begun: dict[str, dict[str, int]] = {}
        """Stream -> group -> state epoch that storage has at least, of groups that this broker coordinates."""
        self._shares: dict[str, dict[str, Share]] = {}
        """By group and stream."""
        self._open_ones = 0
        self.counters = ShareCounters()
        """Without locks of native topics, which end in Redis."""
        self.sessions = ShareSessions(lambda: settings.newer.share_max_sessions)

    def __iter__(self) -> Iterator[ShareLog]:
        return iter([each for own in self._shares.values() for each in own.values() if isinstance(each, ShareLog)])

    def opened(self, group: str, partition: Partition) -> ShareLog | None:
        """Return a share partition of a log that is in memory."""
        share = self._shares.get(group, {}).get(partition.stream)
        return share if isinstance(share, ShareLog) and share.log is partition.log else None

    def logs_of(self, group: str) -> list[ShareLog]:
        """Return a group's share partitions of logs that are in memory and loaded."""
        return [share for share in self._of(group) if isinstance(share, ShareLog) and share.is_ready]

    def find(self, group: str, place: Place) -> Share:
        """Return a share partition, opened if needed.

        Raises:
            UnknownTopic, UnknownTopicId, NotLeader. StorageUnavailable: too many are open.
        """
        topic_id, index = place
        live = self._topics.with_id(topic_id.bytes)
        if live is None:
            raise UnknownTopicId(f"no topic has the ID {topic_id}")
        partition = live.partition(index)
        partition.check_led()
        share = self._shares.get(group, {}).get(partition.stream)
        if share is not None and share.log is not (partition.log or partition):
            self.forget(share)
            share = None
        if share is None:
            if self._open_ones >= MOST_OPEN:
                raise StorageUnavailable("share groups have too many partitions open on this broker: try again later")
            share = self._open(group, partition)
            self._shares.setdefault(group, {})[partition.stream] = share
            self._open_ones += 1
        return share

    def forget(self, share: Share) -> None:
        """Close a share partition, such as one that its group does not have. Do nothing if it is closed."""
        own = self._shares.get(share.group, {})
        if own.get(share.log.stream) is share:
            del own[share.log.stream]
            self._open_ones -= 1
            if not own:
                del self._shares[share.group]
            share.close()

    def topic_removed(self, streams: Iterable[str]) -> None:
        """Close the partitions of a topic that has been deleted or moved. Sessions may outlive many topics."""
        removed = set(streams)
        for own in tuple(self._shares.values()):
            for stream in removed & own.keys():
                self.forget(own[stream])
        for stream in removed:
            self._begun.pop(stream, None)

    def _open(self, group: str, partition: Partition) -> Share:
        config = partial(self._configs.of, group)
        if partition.log is None:
            return self._natives.open(group, partition, config, self.counters)
        return ShareLog(
            group, partition.log, self._storage, config, self._clock, self._begin, self._dead_letters, self.counters
        )

    async def _begin(self, log: LeaderPartition, config: GroupConfig) -> int:
        reset = config.share_auto_offset_reset
        match reset.strategy:
            case ResetStrategy.EARLIEST:
                return log.log_start
            case ResetStrategy.BY_DURATION:
                found = await self._find_time(log, max(0, self._clock.now_ms() - reset.duration_ms))
                return log.log_end if found.offset < 0 else found.offset
            case _:
                return log.log_end

    def lock_ms(self, group: str) -> int:
        """Return the duration of a lock."""
        return self._configs.of(group).share_record_lock_duration_ms

    # States, for the coordinator of their group

    async def begin(self, group: str, states: Iterable[PartitionState], *, altered: bool = False) -> None:
        """Begin states of share partitions. Raises TopicError.

        A state that has begun in its epoch stays as it is. On a native topic, only a call with `altered` sets the
        group to altered offsets.
        """

        async def one(state: PartitionState) -> None:
            partition = self._partition(state)
            if partition is None:
                return
            stream = partition.stream
            if self._begun.get(stream, {}).get(group, -1) >= state.epoch:
                return
            try:
                if partition.log is None:
                    offset = state.begin if altered else None
                    await self._natives.begin(group, partition, self._configs.of(group), offset)
                else:
                    # An altered offset that was not stored must not be lost: the group would skip records.
                    begin = NOT_BEGUN if state.begin is None else state.begin
                    await self._storage.init(
                        stream, group, ShareState(state.epoch, begin), partition.log.replication.min_insync
                    )
            except UnknownTopic:
                # It was just deleted, or is internal. Other topics must not wait.
                return
            except Fenced:
                # The clock of the coordinator that began the later one was ahead.
                _log.warning("the share partition has a later state", group=group, stream=stream, epoch=state.epoch)
            self._begun.setdefault(stream, {})[group] = state.epoch

        async for _ in self._lane.a_few_at_once(list(states), one):
            pass

    def _partition(self, state: PartitionState) -> Partition | None:
        live = self._topics.with_id(state.topic_id.bytes)
        return None if live is None or state.partition >= len(live.partitions) else live.partitions[state.partition]

    async def drop(self, group: str, states: Iterable[PartitionState]) -> None:
        """Remove states of share partitions. Raises TopicError."""

        async def one(state: PartitionState) -> None:
            partition = self._partition(state)
            if partition is None:
                return
            self._begun.get(partition.stream, {}).pop(group, None)
            if partition.log is None:
                with suppress(UnknownTopic):
                    await self._natives.drop(group, partition)
            else:
                await self._storage.drop(partition.stream, group, state.epoch)

        async for _ in self._lane.a_few_at_once(list(states), one):
            pass

    async def look(self, group: str, partition: Partition) -> ShareState | SharePosition | None:
        """Return the stored state of a share partition, if any: on a native topic, its position. Raises TopicError."""
        if partition.log is None:
            with suppress(UnknownTopic):
                return await self._natives.position(group, partition)
            return None
        return await self._storage.look(partition.stream, group)

    # Sessions

    def end(self, session: ShareSession) -> None:
        """End a session, and release all records of its member. Do nothing if it has ended."""
        if session not in self.sessions:
            return
        self.sessions.end(session)
        for share in self._of(session.group):
            share.release(session.member_id)
        if not self.sessions.has_any(session.group):
            # Offsets that are altered from now on must apply.
            for share in self._of(session.group):
                share.retire(partial(self._close, share))

    def _of(self, group: str) -> list[Share]:
        return list(self._shares.get(group, {}).values())

    def _close(self, share: Share) -> None:
        if not self.sessions.has_any(share.group):
            self.forget(share)
