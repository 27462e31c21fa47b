"""Open a server's storage: an external Redis or Redis Cluster, or the embedded Valkey."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from headrace.aio.tasks import end
from headrace.broker.config.settings import BrokerSettings
from headrace.metrics.counters import StoreCounters
from headrace.server.config import ServerOptions, StartError, check_embedded
from headrace.server.options import DEFAULT_DATA
from headrace.server.process import Stop
from headrace.storage.brokers import begin_epoch
from headrace.storage.errors import StoreError, Unreachable, refused, unusable
from headrace.storage.free_space import FreeSpace
from headrace.storage.journal.journal import Journal
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, asynchronous
from headrace.storage.redis.url import has_password, without_password
from headrace.storage.storage import RedisStorage
from headrace.storage.valkey.datadir import has_records
from headrace.storage.valkey.maintenance import RedisMaintenance
from headrace.storage.valkey.server import EmbeddedValkey
from headrace.topics.errors import StorageFull, StorageUnavailable

# The embedded Valkey.
_log = structlog.get_logger("headrace.server")


def embedded_valkey(options: ServerOptions, settings: BrokerSettings, stop: Stop) -> EmbeddedValkey:
    """Return the embedded Valkey, not started. The server stops when it ends. Raises StartError."""
    check_embedded(settings)
    valkey = EmbeddedValkey(
        options.data,
        fsync=options.fsync,
        maxmemory=options.maxmemory,
        valkey=options.valkey,
        guarded=bool(settings.authorizer_class_name),
    )
    valkey.on_exit = lambda reason: stop.ask(reason, status=1)
    return valkey


def log_unused_data(data: Path) -> None:
    """Warn that the data directory is unused with an external Redis, more so if it has data."""
    if has_records(data):
        _log.warning(
            "the records in the data directory are not served, because this server uses an external Redis",
            data=str(data),
        )
    elif data != Path(DEFAULT_DATA):
        _log.info("the data directory is not used, because Redis stores all data", data=str(data))


def show_valkey_loading(fraction: float) -> None:
    """Log the progress of loading."""
    _log.info("loading", done=f"{fraction:.0%}")


_NO_ROOM = os.strerror(errno.ENOSPC)
_LOST_VALKEY = "the embedded Valkey was lost before the server was ready"
_LOST_REDIS = "Redis was lost before the server was ready"


@contextlib.asynccontextmanager
async def opened_storage(
    options: ServerOptions, settings: BrokerSettings, stop: Stop, counted: StoreCounters
) -> AsyncIterator[RedisStorage]:
    """Open the storage; calls `stop` when it is lost permanently."""
    try:
        async with contextlib.AsyncExitStack() as stack:
            opening = (
                _external(options.redis, options, settings, stack, counted)
                if options.redis
                else _embedded(options, settings, stop, stack, counted)
            )
            opened = await opening
            stack.push_async_callback(opened.close)
            yield opened
    except StoreError as error:
        text = str(error)
        if options.redis is not None:
            # Errors contain the URL, with the password.
            text = text.replace(options.redis, without_password(options.redis))
        raise StartError(text) from None
    except StorageFull as error:
        where = options.data if options.redis is None else without_password(options.redis)
        raise StartError(f"cannot write to {where}: {error}; then start again") from None
    except StorageUnavailable as error:
        # A running server retries; a start gives up.
        if _NO_ROOM in str(error):
            raise StartError(f"the disk is full: {error}; make room, then start again") from None
        if options.redis is not None and refused(str(error)):
            raise StartError(str(unusable(error, options.redis))) from None
        lost = _LOST_VALKEY if options.redis is None else _LOST_REDIS
        raise StartError(f"{lost}: {stop.reason or error}; start again") from None


async def _embedded(
    options: ServerOptions,
    settings: BrokerSettings,
    stop: Stop,
    stack: contextlib.AsyncExitStack,
    counted: StoreCounters,
) -> RedisStorage:
    valkey = embedded_valkey(options, settings, stop)
    url = await valkey.start(show_valkey_loading)
    stack.push_async_callback(valkey.stop)
    try:
        return await over_valkey(url, options, settings, stack, counted, valkey.records)
    except Unreachable:
        # Only the Valkey's end explains the error.
        if not await valkey.has_ended():
            raise
        raise Unreachable(f"{_LOST_VALKEY}: {stop.reason}; start again") from None


async def over_valkey(
    url: str,
    options: ServerOptions,
    settings: BrokerSettings,
    stack: contextlib.AsyncExitStack,
    counted: StoreCounters,
    records: Path | None = None,
) -> RedisStorage:
    """Return the storage in the embedded Valkey, after replaying the journal.

    `records` is the directory of the append-only file, if logs are read from it. Raises StoreError.
    """
    admin = asynchronous(url)
    stack.push_async_callback(admin.aclose)
    # The lock of the data directory excludes other servers; the epoch fences their writes in flight.
    try:
        epoch = await begin_epoch(admin, Keyspace().epoch)
    except ERRORS as error:
        raise Unreachable(
            f"the Valkey at {without_password(url)} went away during the start: {error}; start again"
        ) from None
    # With fsync=always an acknowledgment waits for the disk, which the journal does not.
    journal_bytes = settings.headrace_journal_bytes if options.fsync == "no" else 0
    path = options.data / "journal"
    return await RedisStorage.open(
        url,
        admin,
        epoch,
        producer_expiry_ms=settings.producer_id_expiration_ms,
        alone=True,
        disk=FreeSpace(options.data),
        counted=counted,
        journal=Journal.open(path, journal_bytes) if journal_bytes or path.exists() else None,
        journal_bytes=journal_bytes,
        records=records,
    )


async def _external(
    url: str, options: ServerOptions, settings: BrokerSettings, stack: contextlib.AsyncExitStack, counted: StoreCounters
) -> RedisStorage:
    admin = asynchronous(url)
    stack.push_async_callback(admin.aclose)
    # Nothing is written before this server has joined and received its broker epoch.
    expiry_ms = settings.producer_id_expiration_ms
    disk = None if options.disk is None else FreeSpace(options.disk)
    if disk is None:
        log_unused_data(options.data)
    # With `disk` this is the embedded Valkey of several brokers, which has no replicas.
    replicas_ms = None if disk is not None else settings.replica_lag_time_max_ms
    opened = await RedisStorage.open(
        url, admin, 0, producer_expiry_ms=expiry_ms, disk=disk, counted=counted, replicas_ms=replicas_ms
    )
    if settings.headrace_redis_manage and disk is None:
        managing = RedisMaintenance(admin)
        looking = asyncio.create_task(managing.keep_looking(await managing.look()), name="managing Redis")
        stack.push_async_callback(end, looking)
    for warning in (await opened.durability()).warnings():
        _log.warning(warning)
    if ahead := await opened.clock_difference():
        _log.warning(
            "the clocks of this machine and of Redis differ: run an NTP client on both",
            node=settings.node_id,
            this_machine=f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} Redis",
        )
    if settings.authorizer_class_name and not has_password(url):
        _log.warning("ACLs do not apply to clients of Redis itself, which needs no password")
    return opened
