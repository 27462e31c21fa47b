"""All resources of the API."""

from collections.abc import Callable, Coroutine, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import structlog

from headrace.broker.virtual_clusters import VirtualClusters
from headrace.oci import ocids
from headrace.oci.errors import OciError, invalid
from headrace.oci.resources import records
from headrace.oci.resources.documents import Changes, Documents
from headrace.oci.resources.pools import Harnesses, Pools
from headrace.oci.resources.records import (
    DefinedTags,
    HarnessRecord,
    PoolRecord,
    Record,
    RetryToken,
    StreamRecord,
    WorkRequestRecord,
)
from headrace.oci.resources.streams import Streams
from headrace.oci.resources.table import Table, check_token_room
from headrace.oci.settings import OciSettings
from headrace.topics.errors import Fenced, LockLost, StorageFull, StorageUnavailable, TopicError

MOST_NAMED = 100
"""Maximum streams that a pool's deletion lists. A pool may have 10,000 streams."""

R = TypeVar("R", bound=Record)
T = TypeVar("T")
_log = structlog.get_logger("headrace.oci.resources")


class Catalog:
    """All resources. Changes raise OciError as `Collection.changeable`."""

    def __init__(self, clusters: VirtualClusters, settings: OciSettings) -> None:
        self.settings = settings
        self.clock = clusters.clock
        self.documents = Documents(
            clusters.default.storage.documents, settings, clusters.clock, clusters.refresh_clusters
        )
        self.pools = Pools(self.documents, clusters)
        self.streams = Streams(self.documents, clusters, self.pools)
        self.harnesses = Harnesses(self.documents)
        self._clusters = clusters

    async def start(self) -> None:
        """Load resources, and finish changes that a crash interrupted."""

        async def start() -> None:
            await self.pools.start()
            await self.streams.start()

        while True:
            try:
                return await self._change(start())
            except LockLost as error:
                # Deleting a large pool takes long.
                _log.warning("startup waits for another broker's change", reason=str(error))
            except (Fenced, StorageFull, StorageUnavailable):
                raise
            except TopicError as error:
                # Kafka clients are still served. Unreadable documents are reported.
                _log.error("the resources of the OCI API cannot be stored", reason=str(error))
                return None

    async def reload(self, kinds: frozenset[str]) -> None:
        """See `Documents.reload`."""
        await self.documents.reload(kinds)

    async def stop(self) -> None:
        """Stop background writes."""
        await self.streams.stop()

    async def reset(self) -> None:
        """Delete all resources and data, and create the default pool again.

        Raises: StorageUnavailable, Fenced.
        """
        await self._clusters.reset()
        await self.streams.settle()

        async def forget() -> None:
            await self.documents.forget_all()
            await self.pools.start()

        await self._change(forget())

    def state_of(self, record: Record) -> str:
        """Return the lifecycle state."""
        return records.state_of(record, self.clock.now_ms())

    # Work requests

    def work_request(self, request_id: str) -> WorkRequestRecord:
        """Return a work request by OCID. Raises OciError 404."""
        unique = ocids.unique_of(request_id, ocids.WORK_REQUEST)
        found = self.documents.requests.get(unique) if unique is not None else None
        if found is None or records.is_over(found, self.clock.now_ms()):
            raise OciError(404, f"Unknown work request {request_id}")
        return found

    def work_requests(self) -> list[WorkRequestRecord]:
        """Return all known work requests."""
        now_ms = self.clock.now_ms()
        return [each for each in self.documents.requests.values.values() if not records.is_over(each, now_ms)]

    # Changes

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        return await self.documents.exclusively(change)

    async def create_stream(
        self,
        name: str,
        partitions: int,
        retention_hours: int,
        *,
        compartment: str | None,
        pool_id: str | None,
        freeform_tags: dict[str, str],
        defined_tags: DefinedTags,
    ) -> tuple[StreamRecord, WorkRequestRecord]:
        """Create a stream in a pool or in its compartment's default pool.

        Raises:
            OciError: 404, no such pool; 409, the name is taken; 400, too many partitions.
            TopicError: the name is invalid, or storage fails.
        """

        async def create() -> tuple[StreamRecord, WorkRequestRecord]:
            self.documents.streams.check_room()
            if pool_id is not None:
                pool = self.pools.usable(pool_id)
                inside = pool.compartment
            else:
                assert compartment is not None, "one of them is given"
                pool = await self.pools.default_of(compartment)
                inside = compartment
            return await self.streams.create(
                name, partitions, retention_hours, pool, inside, freeform_tags, defined_tags
            )

        return await self._change(create())

    async def update_stream(
        self, stream_id: str, if_match: str | None, pool_id: str | None, fields: Mapping[str, Any]
    ) -> tuple[StreamRecord, WorkRequestRecord]:
        """Change a stream, and its pool (None: unchanged)."""

        async def update() -> tuple[StreamRecord, WorkRequestRecord]:
            self.streams.changeable(stream_id, if_match, fields)
            pool = self.pools.usable(pool_id) if pool_id is not None else None
            return await self.streams.update(stream_id, if_match, fields, pool)

        return await self._change(update())

    async def move_stream(self, stream_id: str, if_match: str | None, compartment: str) -> WorkRequestRecord:
        """Move a stream to another compartment's default pool."""

        async def move() -> WorkRequestRecord:
            self.streams.changeable(stream_id, if_match)
            pool = await self.pools.default_of(compartment)
            _, request = await self.streams.update(stream_id, if_match, {"compartment": compartment}, pool)
            return request

        return await self._change(move())

    async def delete_stream(self, stream_id: str, if_match: str | None) -> WorkRequestRecord:
        """Delete a stream."""
        return await self._change(self.streams.delete(stream_id, if_match))

    async def create_pool(
        self, token: "TokenUse | None", name: str, compartment: str, kafka: Mapping[str, str], **fields: Any
    ) -> tuple[PoolRecord, str]:
        """Create a pool, once per retry token. Return it and its work request's id."""

        async def create() -> tuple[PoolRecord, WorkRequestRecord]:
            return await self.pools.create(name, compartment, kafka, **fields)

        return await self._change(self._once(token, self.documents.pools, create))

    async def update_pool(
        self, pool_id: str, if_match: str | None, kafka: Mapping[str, str], fields: Mapping[str, Any]
    ) -> tuple[PoolRecord, WorkRequestRecord]:
        """Change a pool."""
        return await self._change(self.pools.update(pool_id, if_match, fields, kafka))

    async def move_pool(self, pool_id: str, if_match: str | None, compartment: str) -> WorkRequestRecord:
        """Move a pool and its streams to a compartment."""

        async def move() -> WorkRequestRecord:
            pool = self.pools.get(pool_id)
            if self.pools.is_default(pool) and self.state_of(pool) != "DELETED":
                raise OciError(409, "The default stream pool of a compartment cannot be moved")
            moved: Changes = {
                (self.documents.streams, each.id): msgspec.structs.replace(each, compartment=compartment)
                for each in self.streams.in_pool(pool)
                if not self.documents.streams.hides(each.id)
            }
            _, request = await self.pools.update(pool_id, if_match, {"compartment": compartment}, related=moved)
            return request

        return await self._change(move())

    async def delete_pool(self, pool_id: str, if_match: str | None) -> WorkRequestRecord:
        """Delete a pool and its streams."""

        async def delete() -> WorkRequestRecord:
            pool = self.pools.deletable(pool_id, if_match)
            await self.pools.refresh(pool)
            kafka = dict(self._clusters.settings_of(pool.cluster))
            streams = [each.id for each in self.streams.in_pool(pool)]
            # Streams store their own deletion. After an interruption the pool still exists.
            with self.streams.asked(streams):
                await self._clusters.delete(pool.cluster, self.documents.store)
            pool = self.documents.changed(pool, "DELETING", kafka_settings=kafka)
            request = self.pools.request("DELETE", pool, *((ocids.STREAM, each) for each in streams[:MOST_NAMED]))
            await self.documents.finish(
                {(self.documents.pools, pool.id): pool, (self.documents.requests, request.id): request}
            )
            return request

        return await self._change(delete())

    async def create_harness(
        self,
        token: "TokenUse | None",
        name: str,
        compartment: str,
        freeform_tags: dict[str, str],
        defined_tags: DefinedTags,
    ) -> tuple[HarnessRecord, str]:
        """Create a connect harness. See `create_pool`."""

        async def create() -> tuple[HarnessRecord, WorkRequestRecord]:
            return self.harnesses.create(name, compartment, freeform_tags, defined_tags)

        return await self._change(self._once(token, self.documents.harnesses, create))

    async def update_harness(
        self, harness_id: str, if_match: str | None, fields: Mapping[str, Any]
    ) -> tuple[HarnessRecord, WorkRequestRecord]:
        """Change a connect harness."""
        return await self._change(self.harnesses.update(harness_id, if_match, fields))

    async def delete_harness(self, harness_id: str, if_match: str | None) -> WorkRequestRecord:
        """Delete a connect harness."""
        return await self._change(self.harnesses.delete(harness_id, if_match))

    # Retry tokens

    async def _once(
        self,
        token: "TokenUse | None",
        table: Table[R],
        create: Callable[[], Coroutine[Any, Any, tuple[R, WorkRequestRecord]]],
    ) -> tuple[R, str]:
        now_ms = self.clock.now_ms()
        if token is not None:
            used = self.documents.tokens.get(token.id)
            if used is not None and now_ms < used.expires_ms:
                return self._used(token, used, table)
            check_token_room(self.documents.tokens, now_ms, token.id)
        table.check_room()
        record, request = await create()
        changes: dict[tuple[Table[Any], str], msgspec.Struct | None] = {
            (table, record.id): record,
            (self.documents.requests, request.id): request,
        }
        if token is not None:
            changes[self.documents.tokens, token.id] = RetryToken(
                resource=record.id,
                work_request=request.id,
                request=token.request,
                expires_ms=now_ms + records.DAY_MS,
            )
        await self.documents.finish(changes)
        return record, request.id

    @staticmethod
    def _used(token: "TokenUse", used: RetryToken, table: Table[R]) -> tuple[R, str]:
        if used.request != token.request:
            raise invalid("Invalid header opc-retry-token: it was used for another request")
        record = table.get(used.resource)
        if record is None or records.is_deleted(record):
            raise OciError(409, "What this retry token created has been deleted since", "InvalidatedRetryToken")
        return record, used.work_request


class TokenUse(msgspec.Struct, frozen=True):
    """A retry token (`opc-retry-token`), valid for 24 hours."""

    id: str
    request: str
    """Digest of the request."""

    @classmethod
    def of(cls, token: str | None, operation: str, user: str, body: object) -> "TokenUse | None":
        """Return the use of a token, separate for each operation and user."""
        if token is None:
            return None
        digest = sha256(msgspec.json.encode([operation, user, token])).hexdigest()
        return cls(digest, sha256(msgspec.json.encode(body, order="sorted")).hexdigest())
