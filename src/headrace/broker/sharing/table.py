"""All share partitions and share sessions of a virtual cluster on this broker."""

from collections.abc import Awaitable, Callable
from functools import partial

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.timestamps import FoundOffset
from headrace.broker.runtime.clock import Clock
from headrace.broker.sharing.partition import ShareLog, ShareStorage
from headrace.broker.sharing.session import Place, ShareSession, ShareSessions
from headrace.broker.topics.table import TopicTable
from headrace.groups.configs import Configs, GroupConfig, ResetStrategy
from headrace.groups.model import GroupSettings
from headrace.topics.errors import StorageUnavailable, UnknownTopicId

FindTime = Callable[[LeaderPartition, int], Awaitable[FoundOffset]]
"""Returns the first offset at or after a time (ms)."""


class ShareTable:
    """Opens share partitions for the first session that names them, and closes them after the last one."""

    def __init__(
        self,
        topics: TopicTable,
        storage: ShareStorage,
        configs: Configs,
        settings: GroupSettings,
        clock: Clock,
        find_time: FindTime,
    ) -> None:
        """`clock` is the one for members' timeouts: it pauses with this process."""
        self._topics = topics
        self._storage = storage
        self._configs = configs
        self._clock = clock
        self._find_time = find_time
        self._shares: dict[tuple[str, str], ShareLog] = {}
        """By group and stream."""
        self.sessions = ShareSessions(lambda: settings.newer.share_max_sessions)

    def find(self, group: str, place: Place) -> ShareLog:
        """Return a share partition, opened if needed.

        Raises:
            UnknownTopic, UnknownTopicId: there is no such partition. StorageUnavailable: it is a native topic.
        """
        log = self._log(place)
        share = self._shares.get((group, log.stream))
        if share is None or share.log is not log:
            config = partial(self._configs.of, group)
            share = ShareLog(group, log, self._storage, config, self._clock, self._begin)
            self._shares[group, log.stream] = share
        return share

    def _log(self, place: Place) -> LeaderPartition:
        topic_id, index = place
        live = self._topics.with_id(topic_id.bytes)
        if live is None:
            raise UnknownTopicId(f"no topic has the ID {topic_id}")
        partition = live.partition(index)
        partition.check_led()
        if partition.log is None:
            raise StorageUnavailable(f"topic {live.topic.name!r} is native: share groups cannot read it yet")
        return partition.log

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

    # Sessions

    def end(self, session: ShareSession) -> None:
        """End a session, and make everything that its member holds available again. Do nothing if it has ended."""
        if session not in self.sessions:
            return
        self.sessions.end(session)
        for share in self._of(session.group):
            share.release(session.member_id)
        if not self.sessions.has_any(session.group):
            # Offsets that are altered from now on must apply.
            for share in self._of(session.group):
                share.retire(partial(self._close, share))

    def _of(self, group: str) -> list[ShareLog]:
        return [share for (name, _), share in self._shares.items() if name == group]

    def _close(self, share: ShareLog) -> None:
        place = share.group, share.log.stream
        if not self.sessions.has_any(share.group) and self._shares.get(place) is share:
            del self._shares[place]
            share.close()
