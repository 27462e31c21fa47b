"""The data source of pages, with briefly cached results."""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.aio.single_flight import SingleFlight
from headrace.broker.broker import Broker
from headrace.broker.partition.partition import Partition, sizes_of
from headrace.broker.time_lag import TimeLags
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console import text
from headrace.console.record_worker import RecordDecoder, Searches, Work
from headrace.console.sampler import Sampler
from headrace.metrics.counters import ConnectedClient, Counters, ProcessFacts, StoreFacts
from headrace.protocol.message import Message
from headrace.security.access.acls import Acl
from headrace.security.access.principal import Principal


def brokers_note(broker: Broker) -> str:
    """Return a note about which broker's figures a page shows; empty with one broker."""
    others = broker.ownership.others
    if not others:
        return ""
    rest = ", ".join(broker_text(broker, each.node_id) for each in others)
    return (
        f"This is broker {broker.node_id} of {len(others) + 1}. It shows the partitions that it leads and the "
        f"groups that it coordinates. For the others, open the console of {rest}."
    )


def broker_text(broker: Broker, node_id: int) -> str:
    """Return a broker's number and Kafka address."""
    found = broker.ownership.member(node_id)
    return f"broker {node_id}" + ("" if found is None else f" ({text.name(found.host)}, Kafka port {found.port})")


def led_here(live: LiveTopic) -> list[Partition]:
    """Return the partitions of a topic that this server leads."""
    return [each for each in live.partitions if each.leader is None]


_STORE_S = 1.0
"""Timeout for Redis."""
_FRESH_MS = 2_000
"""Time for which results of Redis and the machine are cached."""
_SIZES_MS = 10_000
_MOST_READING = 2
"""Maximum pages that read records at a time."""
_MOST_SIZED = 1_000
"""Maximum partitions of a topic whose size is read."""


class Entries(Protocol):
    """Names the entries of the storage."""

    def of_batch(self, leader_epoch: int, next_offset: int) -> str:
        """Return the entry id of a record batch."""

    def in_segment(self, stream: str, number: int, next_offset: int) -> tuple[str, str]:
        """Return the key of a cleaned segment of a log, and the entry id of a record batch in it."""

    def of_record(self, offset: int, sequence_bits: int) -> str:
        """Return the entry id of a record of a native topic."""


class AclNumbers(NamedTuple):
    """Kafka's numbers of an ACL."""

    type: int
    pattern: int
    operation: int
    permission: int


class NotSupported(Exception):
    """The server does not support a request, because of a setting that the message names."""


class KafkaClient(Protocol):
    """Sends Kafka requests to this server."""

    async def send(self, request: Message, broker: Broker, principal: Principal, host: str) -> Any:
        """Serve a request of a principal at an address, and return the response. Raises EncodeError, NotSupported."""

    def error_name(self, code: int) -> str:
        """Return the name of an error code."""

    def numbers_of(self, acl: Acl) -> AclNumbers:
        """Return the numbers of an ACL in the protocol."""

    def acl_of(self, resource: Any, acl: Any) -> Acl:
        """Return an ACL of a DescribeAcls response: an item of `resources` and one of its `acls`."""


class Figures:
    """All data of pages, read on request and cached briefly."""

    def __init__(
        self,
        clusters: VirtualClusters,
        counters: Counters,
        sampler: Sampler,
        *,
        connections: Mapping[str, Callable[[], int]],
        addresses: Mapping[str, str],
        clients: Callable[[], Mapping[ConnectedClient, tuple[int, int]]],
        store: Callable[[], Awaitable[StoreFacts]],
        storage: str,
        data: Path | None,
        entries: Entries,
        kafka: KafkaClient,
        refusal: Callable[[], str],
        time_lags: TimeLags,
        decoder: RecordDecoder | None = None,
    ) -> None:
        """Create it.

        Keys of `connections` and `addresses` are listeners. `clients` has connections and requests of Kafka clients.
        `store` may raise any error. `kafka` sends the requests of forms. `storage` is a URL without password. `refusal`
        returns why the server accepts no records, empty if it does.
        """
        self.clusters = clusters
        self.counters = counters
        self.sampler = sampler
        self.connections = connections
        self.addresses = addresses
        self.clients = clients
        self.storage = storage
        self.data = data
        self.entries = entries
        self.kafka = kafka
        self._refusal = refusal
        self.time_lags = time_lags
        self.reading = asyncio.Semaphore(_MOST_READING)
        """Limits pages that read records, because each holds megabytes."""
        self.work = Work(decoder)
        self.searches = Searches()
        self._store = store
        self._facts: tuple[StoreFacts | None, ProcessFacts] | None = None
        self._facts_ms = 0
        self._asking = SingleFlight(self._ask, joins=True)
        self._sizes: dict[tuple[str, str], tuple[int, int | None]] = {}

    @property
    def writes(self) -> bool:
        """Whether pages may change something."""
        return self.clusters.settings.console_write

    @property
    def bootstrap(self) -> str:
        """Address of the first Kafka listener."""
        return next(iter(self.addresses.values()))

    @property
    def banner(self) -> str:
        """The banner of every page; empty while records are accepted."""
        refusal = self._refusal()
        return f"This server accepts no records: {refusal}." if refusal else ""

    async def facts(self) -> tuple[StoreFacts | None, ProcessFacts]:
        """Return the state of Redis (None: no response) and of the process."""
        now_ms = self.clusters.clock.ticks_ms()
        if self._facts is None or now_ms - self._facts_ms >= _FRESH_MS:
            await self._asking.get(None)
            # Many waiters may resume.
            await self.clusters.lane.turn()
        assert self._facts is not None
        return self._facts

    async def _ask(self, _: None) -> None:
        store = None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_STORE_S):
                store = await self._store()
        self._facts = store, await asyncio.to_thread(process_facts, self.data)
        self._facts_ms = self.clusters.clock.ticks_ms()

    async def size(self, broker: Broker, name: str) -> int | None:
        """Return bytes of batches in partitions led here, up to about 10 s old; None: too many partitions."""
        now_ms = self.clusters.clock.ticks_ms()
        known = self._sizes.get((broker.cluster, name))
        if known is not None and now_ms - known[0] < _SIZES_MS:
            return known[1]
        total: int | None = None
        partitions = led_here(broker.topics.get(name))
        if len(partitions) <= _MOST_SIZED:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_STORE_S):
                    total = sum(await sizes_of(partitions, self.clusters.lane.pace()))
        if len(self._sizes) > _MOST_SIZED:
            self._sizes.clear()
        self._sizes[broker.cluster, name] = now_ms, total
        return total


_PROC = Path("/proc/self")


def process_facts(data: Path | None) -> ProcessFacts:
    """Read process and disk figures. Blocks briefly.

    Without `data`, the data directory is elsewhere.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    free = size = None
    if data is not None:
        try:
            disk = os.statvfs(data)
            free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        except OSError:
            pass
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessFacts(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        started_seconds=_started(),
        resident_bytes=_resident(),
        open_fds=_open_fds(),
        max_fds=None if limit == resource.RLIM_INFINITY else limit,
        disk_free_bytes=free,
        disk_size_bytes=size,
    )


def _open_fds() -> int | None:
    try:
        return sum(1 for _ in (_PROC / "fd").iterdir()) - 1  # the one that lists
    except OSError:
        return None


def _resident() -> int | None:
    try:
        return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _started() -> float | None:
    """Return seconds since 1970. The kernel counts process starts in ticks since boot (proc(5), field 22)."""
    try:
        after_name = (_PROC / "stat").read_text().rpartition(")")[2].split()
        since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 2)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
