"""Streams: the topics of all virtual clusters with their records.

Until it is changed here, the record of a topic created through Kafka is derived from the topic. Deleted streams have a
document but no topic.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from headrace.broker.broker import Broker
from headrace.broker.runtime.clock import pause
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.reconcile import refresh_all
from headrace.broker.virtual_clusters import ClusterListener, VirtualClusters
from headrace.oci import ocids
from headrace.oci.errors import TOO_MANY_PARTITIONS, OciError, unknown_stream
from headrace.oci.resources.collection import Collection
from headrace.oci.resources.documents import Documents
from headrace.oci.resources.pools import Pools
from headrace.oci.resources.records import (
    DefinedTags,
    PoolRecord,
    StreamRecord,
    WorkRequestRecord,
    is_deleted,
    state_of,
)
from headrace.topics.errors import StorageUnavailable, TopicError, TopicExists

MOST_PARTITIONS = 10_000
"""Maximum partitions of a stream, for any `oci.partitions.max`, as a protection against typing errors."""
_HOUR_MS = 3_600_000
_RETRY_MS = 1_000
_STOP_S = 1.0

_log = structlog.get_logger("headrace.oci.resources")
Place = tuple[Broker, LiveTopic]


class Streams(Collection[StreamRecord], ClusterListener):
    """All streams."""

    kind = ocids.STREAM
    noun = "stream"
    unique_in_compartment = False  # Except in its pool

    def __init__(self, documents: Documents, clusters: VirtualClusters, pools: Pools) -> None:
        super().__init__(documents, documents.streams)
        self._clusters = clusters
        self._pools = pools
        self._live: dict[str, Place] = {}
        self._open: dict[str, Place] = {}
        """Writable and readable streams by OCID, for each put and get."""
        self._unwanted: set[str] = set()
        """New streams that are being undone. Nothing of them is kept."""
        self._asked: set[str] = set()
        """Streams that this API is deleting."""
        self._lost: dict[str, StreamRecord] = {}
        """Deleted streams that are not stored yet."""
        self._retracted: set[str] = set()
        """Undone records whose storage is uncertain. If stored, they must be deleted."""
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load existing topics, detect deleted ones, then subscribe to changes."""
        if self._clusters.ownership.shared:
            # Another broker may have created topics since they were loaded.
            for _, broker in self._clusters:
                await refresh_all(broker.topics)
        self._clusters.subscribe(self)
        for _, broker in self._clusters:
            for topic in broker.topics:
                self.topic_added(broker, topic)
        table = self._documents.streams
        gone = [
            stream
            for stream in table.values.values()
            if stream.id not in self._live and not is_deleted(stream) and not self._is_hidden(stream)
        ]
        await self._documents.save({(table, each.id): self._documents.changed(each, "DELETING") for each in gone})
        # Older servers stored this when one of them moved a stream.
        wrong = [stream for stream in table.values.values() if is_deleted(stream) and stream.id in self._live]
        for each in wrong:
            _log.warning("a stream exists that was recorded as deleted: it is kept", stream=each.name)
        await self._documents.save({(table, each.id): msgspec.structs.replace(each, phase=None) for each in wrong})

    def _is_hidden(self, stream: StreamRecord) -> bool:
        return self._clusters.some_unreadable or any(
            broker.storage.topics.unreadable(stream.name) is not None for _, broker in self._clusters
        )

    # What comes and goes

    def topic_added(self, broker: Broker, live: LiveTopic) -> None:
        """Handle a topic created by any API."""
        unique = live.topic.id.hex
        self._live[unique] = (broker, live)
        stored = self._documents.streams.get(unique)
        if stored is None or state_of(stored, self._documents.clock.now_ms()) != "CREATING":
            self._open[self.ocid(unique)] = (broker, live)

    def topic_deleted(self, broker: Broker, live: LiveTopic) -> None:
        """Handle a deleted topic. One created and deleted through Kafka leaves no record."""
        unique = live.topic.id.hex
        record = self._find_record(unique)
        recorded = unique in self._documents.streams.values or unique in self._asked
        if record is not None and recorded and unique not in self._unwanted:
            self._lost[unique] = self._documents.changed(record, "DELETING")
            self._write_soon()

    def topic_removed(self, broker: Broker, live: LiveTopic) -> None:
        """Handle a removed or moved topic. The event for its new place may arrive first."""
        unique = live.topic.id.hex
        place = self._live.get(unique)
        if place is not None and place[1] is live:
            del self._live[unique]
            self._open.pop(self.ocid(unique), None)

    def _write_soon(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_lost())

    async def _write_lost(self) -> None:
        """Store deletions. The next start completes this after a crash."""
        while self._lost or self._retracted:
            try:
                await self._documents.exclusively(self._write_once())
            except StorageUnavailable:
                await pause(self._documents.clock, _RETRY_MS)
            except TopicError as error:
                _log.warning("a deletion could not be recorded", reason=str(error))
                break
        self._writing = None

    async def _write_once(self) -> None:
        lost, retracted = dict(self._lost), frozenset(self._retracted)
        gone = {**dict.fromkeys(retracted), **lost}
        await self._documents.save({(self._documents.streams, unique): record for unique, record in gone.items()})
        for unique in lost:
            self._lost.pop(unique, None)
        self._retracted -= retracted

    async def settle(self) -> None:
        """Wait until all deletions are stored."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def stop(self) -> None:
        """Store pending deletions, unless storage is unavailable."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_STOP_S)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    # Look-ups

    def ocid(self, unique: str) -> str:
        """Return a stream's OCID."""
        return ocids.make(ocids.STREAM, self._documents.settings.region, unique)

    def find(self, stream_id: str) -> Place:
        """Return the topic of a stream. Raises OciError: 404; 409 before it is ACTIVE."""
        try:
            return self._open[stream_id]
        except KeyError:
            return self._find(stream_id)

    def _find(self, stream_id: str) -> Place:
        topic_id = ocids.topic_of(stream_id)
        place = self._live.get(topic_id.hex) if topic_id is not None else None
        if topic_id is None or place is None:
            raise unknown_stream(stream_id)
        stored = self._documents.streams.get(topic_id.hex)
        if stored is not None and state_of(stored, self._documents.clock.now_ms()) == "CREATING":
            raise OciError(409, f"Stream {stream_id} is CREATING: it can be used when it is ACTIVE", "IncorrectState")
        # Not `stream_id`, because OCIDs of other regions are unlimited.
        self._open[self.ocid(topic_id.hex)] = place
        return place

    def all(self) -> list[StreamRecord]:
        """Return all streams, including deleted ones."""
        return [record for record in self.each() if record is not None]

    def each(self) -> Iterator[StreamRecord | None]:
        """Yield as `all`, one per step because thousands take long, or None for a removed one."""
        for unique in {**self._documents.streams.values, **self._lost, **self._live}:
            record = self._find_record(unique)
            yield record if record is not None and self._documents.known(record) else None

    def in_pool(self, pool: PoolRecord) -> list[StreamRecord]:
        """Return the existing streams of a pool."""
        return [record for record in self.all() if record.pool == pool.id and not is_deleted(record)]

    def _unique_of(self, ocid: str) -> str | None:
        topic_id = ocids.topic_of(ocid)
        return None if topic_id is None else topic_id.hex

    def _find_record(self, unique: str) -> StreamRecord | None:
        stored = self._lost.get(unique) or self._documents.streams.get(unique)
        place = self._live.get(unique)
        if place is None:
            return stored
        broker, live = place
        pool = self._pools.of_broker(broker)
        retention_ms = live.config.retention_ms
        facts: dict[str, Any] = {
            "pool": pool.id,
            "partitions": len(live.partitions),
            "retention_hours": -1 if retention_ms < 0 else -(-retention_ms // _HOUR_MS),
        }
        if stored is not None:
            return msgspec.structs.replace(stored, **facts)
        topic = live.topic
        return StreamRecord(
            id=unique, name=topic.name, compartment=pool.compartment, created_ms=topic.created_ms, version=0, **facts
        )

    # Changes, each only within `Documents.exclusively`

    async def create(
        self,
        name: str,
        partitions: int,
        retention_hours: int,
        pool: PoolRecord,
        compartment: str,
        freeform_tags: dict[str, str],
        defined_tags: DefinedTags,
    ) -> tuple[StreamRecord, WorkRequestRecord]:
        """Create a stream.

        Raises OciError: 409, the name is taken; 400, reserved, or too many partitions; TopicError.
        """
        self._check_partitions(partitions)
        self._check_name_in_pool(name, pool)
        broker = self._pools.broker_of(pool)
        assert broker is not None, "a usable pool has a cluster"
        config = {"retention.ms": str(retention_hours * _HOUR_MS)}
        try:
            live = await broker.topics.create(name, partitions, config, distinct=False)
        except TopicExists:
            if not broker.topics.is_stored(broker.topics.get(name)):
                # Not 409: clients would then look for a stream of this name, and find none.
                raise OciError(400, f"Stream name {name} is reserved: it is an internal topic of Kafka") from None
            raise _name_taken(name) from None
        record = StreamRecord(
            id=live.topic.id.hex,
            name=name,
            compartment=compartment,
            created_ms=live.topic.created_ms,
            phase=self._documents.phase("CREATING"),
            freeform_tags=freeform_tags,
            defined_tags=defined_tags,
            pool=pool.id,
            partitions=partitions,
            retention_hours=retention_hours,
        )
        try:
            request = await self._save("CREATE", record, is_done=True)
        except TopicError as error:
            # The client will retry with the same name.
            await self._take_back(broker, live)
            if isinstance(error, StorageUnavailable) and record.id not in self._live:
                self._retracted.add(record.id)
                self._write_soon()
            raise
        if record.phase is not None:
            self._open.pop(self.ocid(record.id), None)
        return record, request

    async def _take_back(self, broker: Broker, live: LiveTopic) -> None:
        self._unwanted.add(live.topic.id.hex)
        try:
            await broker.topics.delete(live.topic.name)
        except TopicError as error:
            _log.warning("a stream was created and could not be recorded", stream=live.topic.name, reason=str(error))
        finally:
            self._unwanted.discard(live.topic.id.hex)

    def _check_partitions(self, more: int) -> None:
        most = self._documents.settings.partitions_max
        if more > MOST_PARTITIONS or (
            most and more + sum(len(live.partitions) for _, live in self._live.values()) > most
        ):
            raise OciError(400, TOO_MANY_PARTITIONS, "LimitExceeded")

    def _check_name_in_pool(self, name: str, pool: PoolRecord) -> None:
        now_ms = self._documents.clock.now_ms()
        if self._documents.settings.lifecycle_delay_ms and any(
            stream.name == name and stream.pool == pool.id and state_of(stream, now_ms) == "DELETING"
            for stream in self._documents.streams.values.values()
        ):
            raise _name_taken(name)

    async def update(
        self, ocid: str, if_match: str | None, fields: Mapping[str, Any], pool: PoolRecord | None = None
    ) -> tuple[StreamRecord, WorkRequestRecord]:
        """Change a stream's record, and its pool (None: unchanged)."""
        record = self.changeable(ocid, if_match, fields)
        self._check_readable(ocid, record)
        if pool is not None and pool.id != record.pool:
            broker, live = self._live[record.id]
            self._check_name_in_pool(record.name, pool)
            try:
                await self._clusters.move(live.topic.name, broker.cluster, pool.cluster, self._documents.store)
            except TopicExists:
                raise _name_taken(record.name) from None
            fields = {**fields, "pool": pool.id}
        return await self._save_changed(record, fields, is_done=True)

    async def delete(self, ocid: str, if_match: str | None) -> WorkRequestRecord:
        """Delete a stream and its data."""
        record = self.changeable(ocid, if_match)
        broker, live = self._live[record.id]
        with self.asked([record.id]):
            await broker.topics.delete(live.topic.name)
        request = await self._save("DELETE", self._lost[record.id], is_done=True)
        self._lost.pop(record.id, None)
        return request

    @contextlib.contextmanager
    def asked(self, uniques: Sequence[str]) -> Iterator[None]:
        """Mark streams as deleted through this API, so that they leave records."""
        self._asked.update(uniques)
        try:
            yield
        finally:
            self._asked.difference_update(uniques)

    def _check_usable(self, ocid: str, record: StreamRecord) -> None:
        if record.id not in self._live:
            raise self._unknown(ocid)


def _name_taken(name: str) -> OciError:
    return OciError(409, f"A stream named {name} exists already in this stream pool")
