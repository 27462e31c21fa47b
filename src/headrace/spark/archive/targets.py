"""Find the topics of an archive and their tables.

A document next to a topic gives the server its archive's location and progress. Spark writes nothing else to Redis.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from headrace.client.errors import SparkError, StorageUnavailable, UnknownTopic
from headrace.client.offsets import Extent, TopicPartition
from headrace.lakehouse.status.counters import Standing
from headrace.lakehouse.write.batch import BatchResult, Fences, Target, standing_of
from headrace.lakehouse.write.iceberg import IcebergName, IcebergTwin
from headrace.lakehouse.write.ownership import Owner, claim
from headrace.lakehouse.write.table import DEAD_COLUMNS, ArchiveTable
from headrace.spark.archive.files import Destination
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.source.redis_log import LogReader, connect
from headrace.spark.source.topic_log import Topics, check_id
from headrace.storage.layout import archives
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS


class Registrar:
    """Writes the documents of one archive's topics."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)
        self._key = Keyspace().documents(archives.KIND)
        self._elsewhere: dict[str, str] = {}

    def close(self) -> None:
        """Release the connection."""
        self._redis.close()

    def register(self, target: Target, archived: Mapping[int, int]) -> str | None:
        """Register a table and its progress. Return one line, once, if another is registered.

        Raise StorageUnavailable.
        """
        document = archives.ArchiveDocument(
            topic=target.topic,
            table=target.table.place.url,
            archived=dict(archived),
            updated_ms=int(time.time() * 1000),
        )
        try:
            if self._redis.hsetnx(self._key, target.topic_id, archives.encode(document)):
                return None
            stored = self._redis.hget(self._key, target.topic_id)
            there = _registered_table(stored)  # type: ignore[arg-type]
            if there in {document.table, None}:
                self._redis.hset(self._key, target.topic_id, archives.encode(document))
                return None
        except ERRORS as error:
            raise StorageUnavailable(f"the archive was not registered: {' '.join(str(error).split())}") from error
        if self._elsewhere.get(target.topic_id) == there:
            return None
        self._elsewhere[target.topic_id] = str(there)
        return (
            f"old records of {target.topic!r} are read back from {there}, which was there first; "
            f"to have this table read instead: HDEL {self._key} {target.topic_id}"
        )


def _registered_table(text: bytes | None) -> str | None:
    try:
        return None if text is None else archives.decode(text).table
    except msgspec.MsgspecError:
        return None


_DEAD: Final = "_dlq"
"""Suffix of a typed table's dead-letter table."""

OnNote = Callable[[str], None]


class Targets:
    """The subscribed topics, with a table for each."""

    def __init__(self, settings: ArchiveSettings, log: LogReader, registrar: Registrar, on_note: OnNote) -> None:
        """Start without topics. `on_note` gets one line for the user per event."""
        self._settings = settings
        self._log = log
        self._registrar = registrar
        self._on_note = on_note
        self._decoding = settings.decoding()
        self._targets: dict[str, Target] = {}
        self._topics: Topics = {}
        self._twins: dict[str, IcebergTwin] = {}
        self._synced: dict[str, int] = {}
        """Table versions that the Iceberg tables have."""
        self._registered: dict[str, dict[int, int]] = {}
        self._shared: set[str] = set()
        """URLs of tables that were reported as shared."""

    @property
    def ids(self) -> dict[str, str]:
        """Return topic IDs by name."""
        return {name: target.topic_id for name, target in self._targets.items()}

    def clear(self) -> None:
        """Reload every topic and table next time."""
        self._targets = {}

    def current(self) -> dict[str, Target]:
        """Return the current topics, with a table for each new one. Raise UnknownTopic, TopicReplaced, TableError."""
        found = self._log.topics(self._settings.subscription)  # before a mistyped topic gets a table
        gone = sorted(set(self._targets) - set(found))
        if gone:
            raise UnknownTopic(f"topic {gone[0]!r} was deleted while it was being archived")
        for name, topic in found.items():
            if name in self._targets:
                check_id(topic, self._targets[name].topic_id)
                continue
            place = self._settings.place(name)
            owner = Owner(name, self._log.cluster_id())
            table = self._owned(ArchiveTable(place, properties=owner.properties), owner)
            dead = None
            if self._decoding is not None:
                own = ArchiveTable(place.sibling(_DEAD), DEAD_COLUMNS, properties=owner.properties)
                dead = self._owned(own, owner)
            self._targets[name] = Target(name, topic.id, table, dead)
            self._note_columns(table)
            if self._settings.iceberg is not None:
                wanted = IcebergName(self._settings.iceberg, self._settings.iceberg_options).of(name)
                self._twins[name] = IcebergTwin(wanted, self._targets[name].table)
            if self._settings.pattern is not None:
                self._on_note(f"archiving topic {name!r} into {self._targets[name].table.place.name}")
        self._topics = found
        return self._targets

    def _owned(self, table: ArchiveTable, owner: Owner) -> ArchiveTable:
        note = claim(table, owner, shared=self._settings.share_table)
        if note and table.place.url not in self._shared:
            self._shared.add(table.place.url)
            self._on_note(note)
        return table

    def _note_columns(self, table: ArchiveTable) -> None:
        if self._decoding is None:
            return
        known = table.snapshot().typed()
        found = self._decoding.columns(known) or ()
        there = {one.name: one.type for one in known}
        for one in found:
            has = there.get(one.name, one.type)
            if has != one.type:
                self._on_note(
                    f"careful: column {one.name!r} of {table.place.name} is {has}, the schema's is {one.type}: records "
                    "whose values do not fit it will be set aside; name another table to keep them"
                )

    def gone(self) -> list[str]:
        """Return deleted topics, sorted."""
        return sorted(set(self._targets) - set(self._log.topics(self._settings.subscription)))

    def replaced(self) -> bool:
        """Return whether a topic was recreated, so that missing records belong to the old one."""
        try:
            found = self._log.topics(self._settings.subscription)
        except SparkError:
            return False
        return any(name in found and found[name].id != target.topic_id for name, target in self._targets.items())

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the bounds of the partitions."""
        return self._log.extents({name: self._topics[name] for name in self._targets if name in self._topics})

    def standing(self, fences: Mapping[str, Mapping[int, int]]) -> dict[str, Standing]:
        """Return the tables' progress. Raise SparkError."""
        extents = self.extents()
        standing = {}
        for name, found in fences.items():
            mine = {one.partition: extent for one, extent in extents.items() if one.topic == name}
            standing[name] = standing_of(mine, found)
        return standing

    def destinations(self, fences: Fences) -> dict[str, Destination]:
        """Return the targets of a batch's tasks."""
        return {
            name: Destination(
                redis=self._settings.redis,
                table=target.table.place,
                topic=name,
                topic_id=target.topic_id,
                fail_on_data_loss=not self._settings.skip_lost,
                skip_unreadable=self._settings.skip_unreadable,
                traced=self._settings.traces is not None,
                decoding=self._decoding,
                columns=fences.columns.get(name, pa.schema([])),
                dead=None if target.dead is None else target.dead.place,
                aside={one.partition: offsets for one, offsets in fences.aside.items() if one.topic == name},
                refused=fences.refused.get(name, {}),
            )
            for name, target in self._targets.items()
        }

    def sync(self, result: BatchResult) -> None:
        """Update the Iceberg tables. After CatalogUnavailable, everything is reloaded."""
        for name, topic in result.topics.items() if self._twins else ():
            if self._synced.get(name) != topic.version:
                snapshot = self._targets[name].table.snapshot()
                self._twins[name].sync(snapshot)
                self._synced[name] = snapshot.version

    def register(self, result: BatchResult) -> None:
        """Register the progress, which allows the log to drop archived records."""
        # A typed table lacks dead letters, so it cannot replace a log.
        for name, topic in result.topics.items() if self._decoding is None else ():
            if self._registered.get(name) != topic.fences:
                note = self._registrar.register(self._targets[name], topic.fences)
                self._registered[name] = dict(topic.fences)
                if note is not None:
                    self._on_note(note)
