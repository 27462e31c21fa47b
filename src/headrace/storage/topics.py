"""The registry of topics in Redis: `broker.ports.TopicStorage`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from headrace.aio.tasks import in_slices
from headrace.metrics.unreadable_values import WHOLE, Unreadable
from headrace.storage.fence import Fence
from headrace.storage.layout import native, registry
from headrace.storage.layout.keys import DEFAULT_CLUSTER, Keyspace, producers_of, state_of
from headrace.storage.logs.redis_logs import RedisLogs
from headrace.storage.native.topics import RedisNative
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.errors import (
    Fenced,
    InvalidConfig,
    StorageFull,
    StorageUnavailable,
    TopicChanged,
    TopicError,
    TopicExists,
    UnknownTopic,
    UnreadableTopic,
)
from headrace.topics.model import Topic
from headrace.topics.native import STORAGE, NativeStream, adopted, bits_of, is_native

_PARTITIONS_AT_ONCE = 64
_AT_ONCE = 200
"""Entries of the registry that are read in one turn of the event loop: about 10 ms."""
_DEFAULTS = TopicDefaults()


class RedisTopics:
    """Topics of one virtual cluster."""

    def __init__(
        self,
        scripts: Scripts,
        keyspace: Keyspace,
        fence: Fence,
        logs: RedisLogs,
        native: RedisNative,
        unreadable: Unreadable | None = None,
    ) -> None:
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._logs = logs
        self._native = native
        self._unreadable = unreadable or Unreadable()
        default = keyspace.cluster == DEFAULT_CLUSTER
        self._kind = "topics" if default else f"topics:{keyspace.cluster}"
        self._deleted_kind = "deleted" if default else f"deleted:{keyspace.cluster}"

    async def load(self) -> list[Topic]:
        """Finish interrupted deletions, and return all readable topics in name order."""
        await self.finish_deletions()
        return sorted(await self._in(self._keyspace.topics), key=lambda topic: topic.name)

    async def _in(self, key: str) -> list[Topic]:
        stored = checked(await self._scripts.shards.at(key).call("HGETALL", key))
        found, bad = [], {}
        for place, (field, text) in enumerate(zip(stored[::2], stored[1::2], strict=True), 1):
            name = field.decode("utf-8", "replace")
            try:
                found.append(_entry(name, text))
            except UnreadableTopic as error:
                bad[name] = error
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._unreadable.keep(self._kind, bad)
        return found

    def unreadable(self, name: str) -> str | None:
        """See `broker.ports.TopicStorage.unreadable`."""
        return self._unreadable.reason(self._kind, name)

    async def find(self, name: str) -> Topic | None:
        """Return the stored topic of a name, or None."""
        key = self._keyspace.topics
        text = checked(await self._scripts.shards.at(key).call("HGET", key, name))
        try:
            found = None if text is None else _entry(name, text)
        except UnreadableTopic as error:
            self._unreadable.note(self._kind, name, error)
            raise
        self._unreadable.clear(self._kind, name)
        return found

    async def create(self, topic: Topic) -> None:
        """Store a new topic with empty logs. A native topic keeps existing streams. Raises TopicExists."""
        try:
            taken = await self.find(topic.name) is not None
        except UnreadableTopic as error:
            raise TopicExists(f"topic {topic.name!r} exists already, and {error}: it can only be deleted") from None
        if taken:
            raise TopicExists(f"topic {topic.name!r} exists already")
        # An interruption may have left keys.
        await self.finish_deletions()
        if is_native(topic):
            for index, stream in enumerate(topic.streams):
                must = index in adopted(topic)
                await self._native.open(NativeStream(stream, bits_of(topic)), must_exist=must)
        else:
            await self.drop_streams(topic)
        if not await self._put("create", topic):
            raise TopicExists(f"topic {topic.name!r} exists already")

    async def replace(self, topic: Topic, before: Topic, view: int | None = None) -> None:
        """Replace a topic, in any view or only in the view of a number.

        If its storage changes, `finish_deletions` removes its old streams.

        Raises TopicChanged if it differs from `before`, Fenced if a later view exists.
        """
        if not await self._put("replace", topic, before, view):
            raise TopicChanged(f"topic {topic.name!r} was changed by another broker")

    async def _put(self, what: str, topic: Topic, before: Topic | None = None, view: int | None = None) -> int:
        keyspace = self._keyspace
        keys = [keyspace.topics, keyspace.epoch, keyspace.view, keyspace.changes, keyspace.deleted]
        texts = [registry.encode(topic), b"" if before is None else registry.encode(before)]
        converted = before is not None and is_native(before) != is_native(topic)
        note = f"{topic.id}:{'log' if is_native(topic) else 'native'}" if converted else ""
        arguments: list[str | bytes] = [what, keyspace.cluster, topic.name, *texts, note]
        if view is not None:
            found: int = await self._scripts.run("put_topic", keys, view, *arguments)
            return found
        answer: int = await self._fence.write(lambda number: self._scripts.run("put_topic", keys, number, *arguments))
        return answer

    async def delete(self, topic: Topic) -> Topic:
        """Remove a topic, then its records except adopted streams, and return it.

        After an interruption, the next creation or start removes the rest.

        Raises:
            UnknownTopic: the topic was deleted, or moved to another virtual cluster.
            StorageUnavailable: the result is unknown; use `find`.
        """
        found = await self._remove("begin", str(topic.id), self._keyspace.cluster, topic.name)
        if found is None:
            raise UnknownTopic(f"topic {topic.name!r} does not exist any more")
        # Includes partitions that another broker has added.
        stored = registry.topic(found)
        with contextlib.suppress(StorageUnavailable):
            await self.drop_streams(stored)
            await self._remove("end", str(topic.id))
        return stored

    async def _remove(self, what: str, *place: str | bytes) -> Any:
        keyspace = self._keyspace
        keys = [keyspace.topics, keyspace.epoch, keyspace.deleted, keyspace.view, keyspace.changes]
        return await self._fence.write(lambda number: self._scripts.run("remove_topic", keys, number, what, *place))

    async def note(self, topic: Topic) -> None:
        """See `broker.ports.TopicStorage.note`."""
        storage = "native" if is_native(topic) else "log"
        await self._remove("note", f"{topic.id}:{storage}", registry.encode(topic))

    async def finish_deletions(self, of: Topic | None = None) -> None:
        """See `broker.ports.TopicStorage.finish_deletions`."""
        key = self._keyspace.deleted
        try:
            noted = checked(await self._scripts.shards.at(key).call("HGETALL", key))
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self._unreadable.keep(self._deleted_kind, {WHOLE: error})
            if of is not None:
                raise _held(of, key, error) from None
            return
        if not noted:
            self._unreadable.keep(self._deleted_kind, {})
            return
        # A newer topic of the same name may use the same keys.
        alive = {stream for topic in await self._in(self._keyspace.topics) for stream in topic.streams}
        left: dict[str, object] = {}
        held: InvalidConfig | None = None
        for field, text in zip(noted[::2], noted[1::2], strict=True):
            try:
                await self._finish_deletion(field, text, alive)
            except (Fenced, StorageFull, StorageUnavailable):
                raise
            except (TopicError, ValueError) as error:
                name = field.decode("utf-8", "replace")
                left[name] = error
                if of is not None and _may_concern(of, name, text):
                    held = _held(of, f"field {name} of {key}", error)
        self._unreadable.keep(self._deleted_kind, left)
        if held is not None:
            raise held

    async def _finish_deletion(self, field: bytes, text: bytes, alive: set[str]) -> None:
        topic = registry.topic(text)
        if (reason := self.unreadable(topic.name)) is not None:
            # The unreadable topic of this name may use these streams.
            raise UnreadableTopic(f"topic {topic.name!r} has the name by now, and {reason}")
        await self._drop(topic, [stream for stream in topic.streams if stream not in alive])
        await self._remove("end", field.decode())

    async def delete_unreadable(self, name: str) -> None:
        """See `broker.ports.TopicStorage.delete_unreadable`."""
        key = self._keyspace.topics
        text = checked(await self._scripts.shards.at(key).call("HGET", key, name))
        if text is None:
            self._unreadable.clear(self._kind, name)
            raise UnknownTopic(f"topic {name!r} does not exist any more")
        try:
            _entry(name, text)
        except UnreadableTopic:
            pass
        else:
            raise UnknownTopic(f"topic {name!r} can be read by now")
        left = _remains(name, text, self._keyspace)
        await self._remove("unreadable", str(left.id), self._keyspace.cluster, name, text, registry.encode(left))
        self._unreadable.clear(self._kind, name)
        with contextlib.suppress(StorageUnavailable):
            await self.finish_deletions()

    async def drop_streams(self, topic: Topic) -> None:
        """Remove a topic's streams, except adopted ones, but not its entry."""
        await self._drop(topic, topic.streams)

    async def _drop(self, topic: Topic, streams: Sequence[str]) -> None:
        drop: Callable[[str], Awaitable[None]] = self._logs.drop
        if is_native(topic):
            kept = {topic.streams[index] for index in adopted(topic) if index < topic.partitions}

            async def drop(stream: str) -> None:
                keys = [stream, state_of(stream), producers_of(stream), native.groups_of(stream)]
                keep = "keep" if stream in kept else ""
                await self._fence.write(lambda number: self._scripts.run("native_drop", keys, number, keep))

        async for _ in in_slices(streams, drop, _PARTITIONS_AT_ONCE):
            pass
        if streams:
            # No other log has these keys, so this needs no fence.
            leaders = self._keyspace.leaders
            checked(await self._scripts.shards.at(leaders).call("HDEL", leaders, *streams))

    async def move(self, topic: Topic, source: Keyspace, target: Keyspace) -> None:
        """Move a topic with its records to another virtual cluster. Raises UnknownTopic, TopicExists."""
        keys = [source.topics, target.topics, source.epoch, source.view, source.changes]
        place = [topic.name, source.cluster, target.cluster]
        moved = await self._fence.write(lambda number: self._scripts.run("move_topic", keys, number, *place))
        if moved == 0:
            raise UnknownTopic(f"no topic {topic.name!r} in {source.cluster!r}")
        if moved < 0:
            raise TopicExists(f"topic {topic.name!r} exists already in {target.cluster!r}")

    async def allocate_producer_ids(self, count: int) -> int:
        """Reserve `count` unused producer ids, and return the first."""
        keys = [self._keyspace.producer_ids, self._keyspace.epoch, self._keyspace.view]
        return int(await self._fence.write(lambda number: self._scripts.run("take_producer_ids", keys, number, count)))


def _entry(name: str, text: bytes) -> Topic:
    try:
        topic = registry.topic(text)
        resolve(topic.config, _DEFAULTS)
    except (ValueError, msgspec.MsgspecError, InvalidConfig) as error:
        raise UnreadableTopic(f"its entry in the registry cannot be read: {error}") from None
    if topic.name != name:
        raise UnreadableTopic(f"its entry in the registry is that of topic {topic.name!r}")
    if not topic.streams:
        raise UnreadableTopic("its entry in the registry has no partitions")
    return topic


def _may_concern(topic: Topic, field: str, text: bytes) -> bool:
    if field.partition(":")[0] == str(topic.id):
        return True
    try:
        noted = registry.topic(text)
    except (ValueError, msgspec.MsgspecError):
        return True
    return noted.name == topic.name or not set(noted.streams).isdisjoint(topic.streams)


def _held(topic: Topic, where: str, reason: Exception) -> InvalidConfig:
    what = f"{where} may name streams of it that are still to be removed, and cannot be read: {reason}"
    return InvalidConfig(f"topic {topic.name!r} stays as it is: {what}. Repair or remove that value first")


def _remains(name: str, text: bytes, keyspace: Keyspace) -> Topic:
    try:
        said = msgspec.json.decode(text)
    except (ValueError, msgspec.MsgspecError):
        said = None
    facts: dict[str, Any] = said if isinstance(said, dict) else {}
    streams = facts.get("streams")
    texts = [each for each in streams if isinstance(each, str)] if isinstance(streams, list) else []
    own = {keyspace.stream(name, index) for index in range(len(texts))}
    config = facts.get("config")
    is_plain = isinstance(config, dict) and config.get(STORAGE) == "native"
    try:
        topic_id = UUID(str(facts.get("id")))
    except ValueError:
        topic_id = uuid4()
    return Topic(
        name=name,
        id=topic_id,
        streams=tuple(each for each in texts if each.partition("@")[0] in own),
        config={STORAGE: "native"} if is_plain else {},
        created_ms=0,
    )
