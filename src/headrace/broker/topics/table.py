"""Topics of the running server, and their changes."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.brokers.leadership import Leadership
from headrace.broker.brokers.ownership import check_factor
from headrace.broker.partition.in_sync_replicas import check_attainable
from headrace.broker.partition.partition import Partition
from headrace.broker.ports import Storage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import retry_while_unavailable
from headrace.broker.topics.known import KnownTopics, check_room
from headrace.broker.topics.live import LiveTopic, OtherClusters, PartitionManager, TopicListener
from headrace.broker.topics.log_manager import AT_ONCE
from headrace.broker.topics.record_checker import RecordChecker
from headrace.topics.config import TopicConfig, TopicDefaults, check_given, resolve
from headrace.topics.errors import (
    InvalidConfig,
    InvalidPartitions,
    StorageUnavailable,
    StorageUnreachable,
    TopicChanged,
    TopicExists,
    UnknownTopic,
    UnreadableTopic,
)
from headrace.topics.model import Topic, is_reserved
from headrace.topics.native import ADOPTED, FIXED

_log = structlog.get_logger("headrace.broker.topics")

_NO_LIMIT = 1 << 62
_MOST_CONFLICTS = 20
Progress = Callable[[int, int], None]
ConfigChange = Callable[[Mapping[str, str]], dict[str, str]]
"""Returns a topic's new configuration from the present one."""


class TopicTable(KnownTopics):
    """All topics of this server. Changes are made one at a time."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        defaults: TopicDefaults,
        logs: PartitionManager,
        streams: PartitionManager,
        leading: Leadership,
        *,
        checker: RecordChecker,
        most_partitions: int = _NO_LIMIT,
        listener: TopicListener | None = None,
        others: OtherClusters | None = None,
    ) -> None:
        """`most_partitions` includes those of other virtual clusters."""
        super().__init__()
        self.storage = storage
        self.clock = clock
        self.defaults = defaults
        self.checker = checker
        self._logs = logs
        self._streams = streams
        self._listener = listener or TopicListener()
        self.leading = leading
        self.changing = asyncio.Lock()
        self._closed = False
        self.most_partitions = most_partitions
        self.others = others or OtherClusters()
        self.partitions = 0
        """Number of partitions here."""

    def _missing(self, name: str) -> UnknownTopic:
        reason = self.storage.topics.unreadable(name)
        return (
            super()._missing(name) if reason is None else UnreadableTopic(f"topic {name!r} cannot be opened: {reason}")
        )

    async def load(self, progress: Progress | None = None) -> None:
        """Open every stored topic. `progress` gets the numbers of opened and of all partitions."""
        topics = await self.storage.topics.load()
        total = sum(topic.partitions for topic in topics)
        opened = 0
        for topic in topics:
            await self.open(topic)
            opened += topic.partitions
            if progress is not None:
                progress(opened, total)

    async def open(self, topic: Topic) -> LiveTopic:
        """Open a stored topic."""
        if is_reserved(topic.name):
            _log.warning(
                "a topic has the name of one of Kafka's internal topics: it can be read, but accepts no records; "
                "copy its records to another topic and delete it",
                topic=topic.name,
                partitions=topic.partitions,
            )
        config = resolve(topic.config, self.defaults)
        live = LiveTopic(topic, config, await self.manager(config).open(topic, config, 0))
        self.add(live)
        return live

    def manager(self, config: TopicConfig) -> PartitionManager:
        """Return the manager of partitions for a configuration."""
        return self._streams if config.native else self._logs

    def add(self, live: LiveTopic) -> None:
        """Add an opened topic."""
        live.checker = self.checker
        self.manager(live.config).adopt(live.topic.name, live.partitions)
        # The cluster membership may have changed while partitions were opened.
        self.leading.adopt(live.topic, live.partitions)
        self._enter(live)
        self.partitions += len(live.partitions)
        self._listener.added(live)

    def _remove(self, live: LiveTopic) -> None:
        self._strike(live)
        self.partitions -= len(live.partitions)
        self._listener.left(live.topic.name)

    async def forgotten(self, topic: Topic) -> None:
        """Notify the listener of a deleted topic."""
        await self._listener.forget(topic)

    def put(self, live: LiveTopic, partitions: list[Partition]) -> None:
        """Replace a topic's partitions."""
        self.partitions += len(partitions) - len(live.partitions)
        self.leading.adopt(live.topic, partitions)
        self.leading.forget({each.stream for each in live.partitions} - {each.stream for each in partitions})
        live.partitions = partitions
        self.manager(live.config).adopt(live.topic.name, partitions)
        self._listener.replaced(live)

    def validate(
        self, name: str, partitions: int, config: dict[str, str], replication: int = 1, *, distinct: bool = True
    ) -> None:
        """Check what `create` checks.

        `distinct`: see `check_free`.

        Raises:
            InvalidTopicName, TopicExists, InvalidPartitions, InvalidReplicationFactor, InvalidConfig,
            TooManyPartitions.
        """
        self.check_free(name, distinct=distinct)
        if self._closed:
            raise UnknownTopic("this virtual cluster was deleted")
        if partitions < 1:
            raise InvalidPartitions(f"a topic needs at least one partition, asked for {partitions}")
        check_factor(self.leading.ownership, replication)
        check_given(config)
        resolved = resolve(config, self.defaults)
        check_attainable(self.storage.logs.copies, config, resolved)
        self.checker.check_attainable(resolved.checks)
        self._check_room(partitions)

    def _check_room(self, added: int) -> None:
        check_room(self.partitions + self.others.partitions(), added, self.most_partitions)

    async def create(
        self, name: str, partitions: int, config: dict[str, str], replication: int = 1, *, distinct: bool = True
    ) -> LiveTopic:
        """Create and store a topic; see `validate`."""
        return await to_the_end(self._create(name, partitions, config, replication, distinct=distinct))

    async def _create(
        self, name: str, partitions: int, config: dict[str, str], replication: int, *, distinct: bool
    ) -> LiveTopic:
        async with self.changing:
            self.validate(name, partitions, config, replication, distinct=distinct)
            topic_id = uuid4()
            stream_of = self.manager(resolve(config, self.defaults)).stream_of
            streams = tuple(stream_of(name, topic_id, index) for index in range(partitions))
            topic = Topic(
                name=name,
                id=topic_id,
                streams=streams,
                config=config,
                created_ms=self.clock.now_ms(),
                replication_factor=replication,
            )
            try:
                await self.storage.topics.create(topic)
            except TopicExists:
                if self.storage.topics.unreadable(name) is None:
                    await self.open_stored(name)
                raise
            except StorageUnavailable as error:
                if isinstance(error, StorageUnreachable) or not await self._stored(topic):
                    raise
            live = await self.open(topic)
            _log.info("topic created", topic=name, partitions=partitions, config=config)
            return live

    async def open_stored(self, name: str) -> None:
        """Open a stored topic that was not known, because the connection to Redis was lost."""
        for topic in await self.storage.topics.load():
            if topic.name == name:
                await self.open(topic)

    async def create_if_missing(self, name: str, partitions: int, replication: int = 1) -> LiveTopic:
        """Create a topic, or return the one that a concurrent request created."""
        try:
            return await self.create(name, partitions, {}, replication)
        except TopicExists:
            return self.get(name)

    async def configure(self, name: str, change: ConfigChange, *, validate_only: bool = False) -> None:
        """Change or only check a topic's own configuration. Raises UnknownTopic, InvalidConfig.

        `change` returns the new configuration from the present one. Its errors are raised.
        """
        await self._repeated(name, lambda: self._configure(name, change, validate_only=validate_only))

    async def _repeated(self, name: str, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
        for _ in range(_MOST_CONFLICTS):
            try:
                await to_the_end(change())
            except TopicChanged:
                await self._listener.reread(name)
            else:
                return
        await to_the_end(change())

    async def _configure(self, name: str, change: ConfigChange, *, validate_only: bool) -> None:
        async with self.changing:
            live = self.changeable(name)
            config = change(live.topic.config)
            check_given(config, live.topic.config)
            resolved = resolve(config, self.defaults)
            for key in (*FIXED, ADOPTED):
                if config.get(key) != live.topic.config.get(key):
                    why = "only adoption sets it" if key == ADOPTED else "offsets would mean something else"
                    raise InvalidConfig(f"{key} cannot be changed: {why}")
            check_attainable(self.storage.logs.copies, config, resolved, live.topic.config)
            self.checker.check_attainable(resolved.checks, live.config.checks)
            if validate_only:
                return
            topic = msgspec.structs.replace(live.topic, config=config)
            await self.storage.topics.replace(topic, live.topic)
            before = live.topic.config
            live.topic = topic
            live.configure(resolved)
            changed = {key: config.get(key) for key in {*before, *config} if before.get(key) != config.get(key)}
            _log.info("topic altered", topic=name, changed=changed)

    def validate_growth(self, name: str, partitions: int) -> None:
        """Check what `grow` checks. Raises UnknownTopic, InvalidPartitions, TooManyPartitions."""
        present = len(self.changeable(name).partitions)
        if partitions <= present:
            raise InvalidPartitions(f"topic {name!r} has {present} partitions: it can only get more, not {partitions}")
        self._check_room(partitions - present)

    async def grow(self, name: str, partitions: int) -> None:
        """Add and store partitions up to this number; see `validate_growth`."""
        await self._repeated(name, lambda: self._grow(name, partitions))

    async def _grow(self, name: str, partitions: int) -> None:
        async with self.changing:
            self.validate_growth(name, partitions)
            live = self.get(name)
            present = len(live.partitions)
            manager = self.manager(live.config)
            added = tuple(manager.stream_of(name, live.topic.id, index) for index in range(present, partitions))
            topic = msgspec.structs.replace(live.topic, streams=live.topic.streams + added)
            # Store first, so that a published partition exists after a restart.
            await self.storage.topics.replace(topic, live.topic)
            opened = await manager.open(topic, live.config, present)
            live.topic = topic
            self.put(live, [*live.partitions, *opened])
            _log.info("topic altered", topic=name, partitions=partitions, before=present)

    async def delete(self, name: str) -> None:
        """Delete a topic with its records, even if its registry entry is unreadable. Raises UnknownTopic."""
        await to_the_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self.changing:
            if not self.has(name) and self.storage.topics.unreadable(name) is not None:
                await self.storage.topics.delete_unreadable(name)
                _log.info("topic with an unreadable registry entry deleted", topic=name)
                return
            await self._delete_live(self.changeable(name))

    async def _delete_live(self, live: LiveTopic) -> None:
        # First, so that the topic keeps working if storage is unavailable.
        try:
            live.topic = await self.storage.topics.delete(live.topic)
        except UnknownTopic:
            # Another broker deleted it, or moved it to another cluster with its records.
            await self._gone(live)
            raise
        except StorageUnavailable:
            if await self._stored(live.topic) is not False:
                raise
            if await self.others.has_moved(live.topic.name, live.topic.streams[0]):
                await self._gone(live)
                raise UnknownTopic(f"topic {live.topic.name!r} was moved to another virtual cluster") from None
        self._listener.deleted(live)
        await self._gone(live)
        _log.info("topic deleted", topic=live.topic.name)

    async def _gone(self, live: LiveTopic) -> None:
        await self.dismiss(live)
        await self.forgotten(live.topic)

    async def dismiss(self, live: LiveTopic) -> None:
        """Remove a topic, then close its partitions."""
        self._remove(live)
        self._listener.removed(live)
        for number, partition in enumerate(live.partitions, 1):
            partition.close()
            # A plain stream may belong to another topic in the next turn of the loop.
            if number % AT_ONCE == 0 and partition.log is not None:
                await asyncio.sleep(0)

    async def _stored(self, topic: Topic) -> bool | None:
        """Whether a topic is stored, after a change without response. None: unknown."""
        try:
            stored = await retry_while_unavailable(partial(self.storage.topics.find, topic.name))
        except (StorageUnavailable, UnreadableTopic):
            return None
        return stored is not None and stored.id == topic.id

    async def delete_all(self) -> None:
        """Delete every topic. Afterwards, no topic can be created."""
        await to_the_end(self._delete_all())

    async def _delete_all(self) -> None:
        async with self.changing:
            for live in self:
                with contextlib.suppress(UnknownTopic):
                    await self._delete_live(live)
            # No later change or start would remove noted streams.
            await self.storage.topics.finish_deletions()
            self._closed = True

    def set_defaults(self, defaults: TopicDefaults) -> None:
        """Change the defaults of all topics."""
        self.defaults = defaults
        for live in self:
            live.configure(resolve(live.topic.config, defaults))

    async def move(self, name: str, target: "TopicTable", store: Callable[[Topic], Coroutine[Any, Any, None]]) -> None:
        """Move a topic to another table, with its open partitions and writes in flight.

        `store` stores the move. Nothing has changed if it raises.

        Raises:
            UnknownTopic; TopicExists: the target has one of that name; InvalidTopicName: invalid there;
            InvalidConfig: its old streams are still to be removed; errors of `storage`.
        """
        await to_the_end(self._move(name, target, store))

    async def _move(self, name: str, target: "TopicTable", store: Callable[[Topic], Coroutine[Any, Any, None]]) -> None:
        # The caller makes one move at a time, so there is no deadlock.
        async with self.changing, target.changing:
            live = self.changeable(name)
            target.check_free(name, distinct=False)
            # Streams from before a conversion are noted here, and the topic may get them again elsewhere.
            await self.storage.topics.finish_deletions(live.topic)
            try:
                await store(live.topic)
            except StorageUnavailable:
                if await self._stored(live.topic) is not False:
                    raise
            await self.hand_over(live, target)

    async def hand_over(self, live: LiveTopic, target: "TopicTable") -> None:
        """Move a topic to another table. The caller holds `changing` of both, so it is never in neither."""
        self._remove(live)
        live.configure(resolve(live.topic.config, target.defaults))
        target.add(live)
        await self.forgotten(live.topic)
