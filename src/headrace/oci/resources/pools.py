"""Stream pools, which are virtual clusters, and connect harnesses, which name Kafka Connect's internal topics.

With `oci.pools=shared` the default pool of every compartment is the default cluster. With `oci.pools=compartment` a
compartment's default pool is created on first use, or an existing pool of that name is used.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from headrace.broker.broker import Broker
from headrace.broker.topics.reconcile import refresh_all
from headrace.broker.virtual_clusters import DEFAULT, UnknownCluster, VirtualClusters
from headrace.oci import ocids
from headrace.oci.errors import OciError
from headrace.oci.resources.collection import Collection
from headrace.oci.resources.documents import Changes, Documents
from headrace.oci.resources.records import (
    DefinedTags,
    HarnessRecord,
    PoolRecord,
    WorkRequestRecord,
    is_deleted,
    state_of,
)

DEFAULT_NAME = "DefaultPool"
_log = structlog.get_logger("headrace.oci.resources")
_NEW = {"auto.create.topics.enable": "false", "num.partitions": "1", "log.retention.hours": "24"}
"""Kafka settings of a new pool, as in the service."""


class Pools(Collection[PoolRecord]):
    """All stream pools."""

    kind = ocids.STREAM_POOL
    noun = "stream pool"

    def __init__(self, documents: Documents, clusters: VirtualClusters) -> None:
        super().__init__(documents, documents.pools)
        self._clusters = clusters
        self._of_cluster: dict[str, str] = {}

    async def start(self) -> None:
        """Create the default cluster's pool, and finish interrupted changes."""
        table = self._documents.pools
        changes: dict[tuple[Any, str], msgspec.Struct | None] = {}
        if table.get(DEFAULT) is None and not table.hides(DEFAULT):
            changes[table, DEFAULT] = self._adopted(DEFAULT, DEFAULT_NAME)
        clusters = {name for name, _ in self._clusters}
        for pool in table.values.values():
            if pool.cluster in clusters and is_deleted(pool):
                # A deletion removes the cluster first. This one was restored, or unreadable at an earlier start.
                _log.warning("a stream pool exists that was recorded as deleted: it is kept", pool=pool.name)
                changes[table, pool.id] = msgspec.structs.replace(pool, phase=None, kafka_settings={})
            elif (
                pool.cluster not in clusters and not is_deleted(pool) and not self._clusters.is_unreadable(pool.cluster)
            ):
                changes[table, pool.id] = self._documents.changed(pool, "DELETING")
        known = {pool.cluster for pool in table.values.values()} | {DEFAULT}
        for name, broker in self._clusters:
            if name not in known and not table.hides(name):
                # An unrecorded creation. Its data is kept.
                if broker.topics.names():
                    changes[table, name] = self._adopted(name, name)
                else:
                    await self._clusters.delete(name, self._documents.store)
        await self._documents.save(changes)
        self._of_cluster = {pool.cluster: pool.id for pool in table.values.values()}

    def _adopted(self, cluster: str, name: str) -> PoolRecord:
        now_ms = self._documents.clock.now_ms()
        return PoolRecord(
            id=cluster, name=name, compartment="", created_ms=now_ms, cluster=cluster, default=cluster == DEFAULT
        )

    # Look-ups

    def all(self) -> list[PoolRecord]:
        """Return all pools, including deleted ones."""
        hidden = [pool for name, _ in self._clusters if (pool := self._unread(name)) is not None]
        return [*super().all(), *hidden]

    def _find_record(self, unique: str) -> PoolRecord | None:
        return self._documents.pools.get(unique) or self._unread(unique)

    def _unread(self, unique: str) -> PoolRecord | None:
        if not self._documents.pools.hides(unique) or not self._clusters.has(unique):
            return None
        return self._adopted(unique, DEFAULT_NAME if unique == DEFAULT else unique)

    def usable(self, pool_id: str) -> PoolRecord:
        """Return a pool that accepts streams. Raises OciError: 404; 409."""
        pool = self.get(pool_id)
        state = state_of(pool, self._documents.clock.now_ms())
        if state == "DELETED":
            raise self._unknown(pool_id)
        if state not in {"ACTIVE", "UPDATING"}:
            raise OciError(409, f"The stream pool is {state}", "IncorrectState")
        if self.broker_of(pool) is None:
            self._check_cluster(pool)
            # Its deletion was interrupted.
            raise OciError(409, "The stream pool is being deleted", "IncorrectState")
        return pool

    def of_broker(self, broker: Broker) -> PoolRecord:
        """Return the pool of a virtual cluster."""
        pool = self._find_record(self._of_cluster.get(broker.cluster, broker.cluster))
        assert pool is not None, f"the cluster {broker.cluster} has no pool"
        return pool

    def broker_of(self, pool: PoolRecord) -> Broker | None:
        """Return a pool's virtual cluster; None: it was deleted."""
        try:
            return self._clusters.get(pool.cluster)
        except UnknownCluster:
            return None

    def cluster_of(self, pool_id: str) -> Broker | None:
        """Return an existing pool's virtual cluster by OCID, or None."""
        try:
            return self.broker_of(self.usable(pool_id))
        except OciError:
            return None

    def cluster_name(self, unique: str) -> str:
        """Return the name of a pool's virtual cluster, which may be deleted."""
        pool = self._documents.pools.get(unique)
        return unique if pool is None else pool.cluster

    def known_default_of(self, compartment: str) -> PoolRecord | None:
        """Return a compartment's default pool, or an existing pool of its name, or None."""
        if self._documents.settings.pools == "shared":
            return self._find_record(DEFAULT)
        named = None
        for pool in self._documents.pools.values.values():
            if pool.compartment != compartment or pool.id == DEFAULT or is_deleted(pool):
                continue
            if pool.default:
                return pool
            if pool.name == DEFAULT_NAME:
                named = pool
        return named

    async def default_of(self, compartment: str) -> PoolRecord:
        """Return a compartment's default pool, created if necessary. Only within a change.

        Raises OciError 409 while it is being created.
        """
        known = self.known_default_of(compartment)
        if known is None:
            pool = self._new(DEFAULT_NAME, compartment, default=True)
            await self._open(pool, _NEW)
        elif known.default:
            return known
        else:
            ocid = ocids.make(ocids.STREAM_POOL, self._documents.settings.region, known.id)
            pool = msgspec.structs.replace(self.usable(ocid), default=True)
        await self._documents.finish({(self._documents.pools, pool.id): pool})
        return pool

    # Changes

    async def refresh(self, pool: PoolRecord) -> None:
        """Apply other brokers' new topics of a pool. Raises StorageUnavailable."""
        broker = self.broker_of(pool)
        if broker is not None and self._clusters.ownership.shared:
            await refresh_all(broker.topics)

    def _new(self, name: str, compartment: str, **fields: Any) -> PoolRecord:
        unique = uuid4().hex
        now_ms = self._documents.clock.now_ms()
        return PoolRecord(id=unique, name=name, compartment=compartment, created_ms=now_ms, cluster=unique, **fields)

    async def _open(self, pool: PoolRecord, kafka: Mapping[str, str]) -> None:
        self._of_cluster[pool.cluster] = pool.id
        await self._clusters.create(pool.cluster, kafka, self._documents.store)

    async def create(
        self, name: str, compartment: str, kafka: Mapping[str, str], **fields: Any
    ) -> tuple[PoolRecord, WorkRequestRecord]:
        """Create a pool. Only within a change. Missing `kafka` settings have the service's defaults.

        Raises OciError 409: the name is taken.
        """
        self._check_name(name, compartment)
        pool = self._new(name, compartment, phase=self._documents.phase("CREATING"), **fields)
        await self._open(pool, {**_NEW, **kafka})
        return pool, self.request("CREATE", pool)

    async def update(
        self,
        ocid: str,
        if_match: str | None,
        fields: Mapping[str, Any],
        kafka: Mapping[str, str] | None = None,
        related: Changes | None = None,
    ) -> tuple[PoolRecord, WorkRequestRecord]:
        """Change the record and Kafka settings of a pool."""
        pool = self.changeable(ocid, if_match, fields)
        if kafka:
            settings = {**self._clusters.settings_of(pool.cluster), **kafka}
            await self._clusters.create(pool.cluster, settings, self._documents.store)
        return await self._save_changed(pool, fields, related)

    def deletable(self, pool_id: str, if_match: str | None) -> PoolRecord:
        """Return a pool that may be deleted. Raises OciError: 404, 412, 409."""
        pool = self.changeable(pool_id, if_match)
        if self.is_default(pool):
            raise OciError(409, "The default stream pool of a compartment cannot be deleted")
        return pool

    def is_default(self, pool: PoolRecord) -> bool:
        """Return whether it is a default pool under the current `oci.pools`."""
        return pool.id == DEFAULT or (pool.default and self._documents.settings.pools == "compartment")

    def _check_usable(self, ocid: str, record: PoolRecord) -> None:
        self._check_readable(ocid, record)
        if self.broker_of(record) is None:
            self._check_cluster(record)

    def _check_cluster(self, pool: PoolRecord) -> None:
        """Raise OciError 409 if the pool's cluster is unreadable."""
        if self._clusters.is_unreadable(pool.cluster):
            why = f"what is stored of its virtual cluster {pool.cluster} cannot be read"
            raise OciError(
                409, f"The stream pool cannot be used: {why}. Repair it, then start the server again", "IncorrectState"
            )


class Harnesses(Collection[HarnessRecord]):
    """All connect harnesses."""

    kind = ocids.CONNECT_HARNESS
    noun = "connect harness"

    def __init__(self, documents: Documents) -> None:
        super().__init__(documents, documents.harnesses)

    def create(
        self, name: str, compartment: str, freeform_tags: dict[str, str], defined_tags: DefinedTags
    ) -> tuple[HarnessRecord, WorkRequestRecord]:
        """Return a new one, to be saved. Raises OciError 409: the name is taken."""
        self._check_name(name, compartment)
        record = HarnessRecord(
            id=uuid4().hex,
            name=name,
            compartment=compartment,
            created_ms=self._documents.clock.now_ms(),
            phase=self._documents.phase("CREATING"),
            freeform_tags=freeform_tags,
            defined_tags=defined_tags,
        )
        return record, self.request("CREATE", record)
