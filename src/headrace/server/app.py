"""Compose the server from storage, broker and APIs."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.aio.tasks import end
from headrace.broker.admin.connections import ConnectionLimits
from headrace.broker.broker import Broker
from headrace.broker.brokers.leadership import LeaderRegistry
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.metadata_listener import everything
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.runtime.clock import Clock, RunningClock, SystemClock
from headrace.broker.services import Services
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console.authentication import Visitors
from headrace.console.record_worker import RecordDecoder
from headrace.http import app as http_app
from headrace.http.app import ResetCall, StartupGate
from headrace.http.hosts import HostCheck, Hosts
from headrace.http.listener import HttpListener
from headrace.kafka.oci_streaming import STRICT
from headrace.kafka.server.in_process_client import InProcessClient
from headrace.kafka.server.listener import KafkaListener
from headrace.kafka.server.restriction import Restriction
from headrace.lakehouse.read.catalog import Lake
from headrace.metrics.counters import ConnectedClient, Counters, StoreCounters
from headrace.oci.api.authentication import Authenticator
from headrace.oci.api.service import OciService
from headrace.oci.app import LISTENER, OciApp, is_ours, open_api
from headrace.oci.forwarding.append_router import PATH as APPENDS
from headrace.oci.settings import OciSettings
from headrace.schema_registry.app import is_registry
from headrace.schema_registry.registry import Registry
from headrace.security.access.listeners import is_loopback
from headrace.server.authentication import Known, logins_at, opened_logins
from headrace.server.cluster import Brokers, joined
from headrace.server.config import ServerOptions, StartError
from headrace.server.console import Observed, shown, visitors_of
from headrace.server.health import HealthCheck
from headrace.server.listeners import KafkaListeners, Listening, open_listeners
from headrace.server.peers import Endpoints, connected
from headrace.server.process import DelayWatch, Stop, limit_cache_with_file_reader, prepared, settle_memory
from headrace.server.record_decoder import RegistryDecoder
from headrace.server.schema_registry import opened_registry, registry_app
from headrace.server.storage import opened_storage
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import asynchronous
from headrace.storage.redis.url import has_password, without_password
from headrace.storage.storage import RedisStorage
from headrace.storage.valkey.health import Watch, store_facts
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.server.tracing import Tracing

_log = structlog.get_logger("headrace.server")

_MANY_PARTITIONS = 1_000
"""The server logs progress when it opens at least this many partitions."""


class Ready(msgspec.Struct, frozen=True):
    """Addresses of a running server."""

    kafka: str
    http: str
    storage: str
    listeners: dict[str, str] = {}
    """HOST:PORT of the Kafka listeners after the first, by name."""


async def serve(
    options: ServerOptions,
    settings: BrokerSettings,
    oci: OciSettings,
    on_ready: Callable[[Ready], None],
    *,
    clock: Clock | None = None,
    guest: Stop | None = None,
    log_lines_lost: Callable[[], int] = int,
) -> int:
    """Run a server until SIGTERM, SIGINT or a stop request on `guest`.

    `on_ready` is called once every API answers. `guest` stops a server in another program's process, whose signals and
    memory stay unchanged.

    Returns 0 after a clean stop, 1 when the storage was lost or taken over. Raises StartError.
    """
    stop = guest or Stop()
    settings = _effective(settings, options)
    cache = prepared(settings, guest=guest is not None)
    with stop.on_signals() if guest is None else contextlib.nullcontext():
        answering = _answering(options, settings, oci, clock, cache, stop, log_lines_lost)
        async with answering as (ready, brokers):
            if guest is None:
                settle_memory(cache.limit)
            on_ready(ready)
            await stop.wait()
            _log.info("stopping", reason=stop.reason)
            if brokers is not None:
                await brokers.hand_over(leave=not stop.status)
    return stop.status


@contextlib.asynccontextmanager
async def _answering(
    options: ServerOptions,
    settings: BrokerSettings,
    oci: OciSettings,
    clock: Clock | None,
    cache: CacheBudget,
    stop: Stop,
    log_lines_lost: Callable[[], int],
) -> AsyncIterator[tuple[Ready, Brokers | None]]:
    counters = Counters()
    async with contextlib.AsyncExitStack() as stack:
        listening = open_listeners(options, settings, oci, stack)
        limits = ConnectionLimits(settings.max_connections, settings.max_connections_per_ip)
        front = StartupGate()
        hosts = _hosts(options, settings, oci, listening.http)
        http = await stack.enter_async_context(_http(HostCheck(front, hosts), listening, limits))
        tracing = _tracing(settings.headrace_traces_endpoint, stack)
        storage, clusters, brokers = await stack.enter_async_context(
            _clusters(options, settings, clock, listening, cache, stop, counters.store, tracing)
        )
        known, service, schemas = await _loaded(options, settings, oci, clusters, brokers, stack)
        http.pressed = lambda: clusters.reads.short
        kafka = _kafka(listening, clusters, settings, service, known, counters, limits)
        stack.callback(DelayWatch(counters.loop_delays).stop)
        clusters.subscribe(kafka)
        await kafka.start(listening.kafka, stack)
        catching_up = None if brokers is None else brokers.catching_up
        connecting = connected(clusters, brokers, listening.towards_peers)
        peers, endpoints = await stack.enter_async_context(connecting)
        oci_app, appends = open_api(service, clusters, Authenticator(oci), counters, catching_up, peers)
        if appends is not None:
            endpoints = {**endpoints, APPENDS: appends}
        connections = {**kafka.connections, LISTENER: lambda: http.connections}
        health = HealthCheck(storage, clusters, counters.store, clusters.clock)
        clusters.explain_refusals(lambda: health.refusal)
        stack.push_async_callback(end, asyncio.create_task(health.run(), name="health"))
        observed = await stack.enter_async_context(
            _observed(
                options,
                storage,
                clusters,
                counters,
                connections,
                kafka.clients,
                listening.url,
                log_lines_lost,
                health,
                None if schemas is None else RegistryDecoder(schemas),
            )
        )
        visitors = visitors_of(clusters, known)
        forms = InProcessClient("headrace-console", _restriction(service))
        reset = _reset(service, schemas)
        people = _for_people(observed, visitors, forms, reset, settings, health.look, oci_app, front, stack)
        registry = None if schemas is None else registry_app(schemas, clusters, visitors, catching_up)
        apis = _http_apis(oci_app, endpoints, people, registry)
        front.open(_traced(apis, service, tracing), health.look)
        stack.push_async_callback(front.close)
        first, *more = listening.addresses.items()
        yield Ready(first[1], listening.url, storage.url, dict(more)), brokers


@contextlib.asynccontextmanager
async def _clusters(
    options: ServerOptions,
    settings: BrokerSettings,
    given: Clock | None,
    listening: Listening,
    cache: CacheBudget,
    stop: Stop,
    counted: StoreCounters,
    tracing: "Tracing | None",
) -> AsyncIterator[tuple[RedisStorage, VirtualClusters, Brokers | None]]:
    clock = given or SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        storage = await stack.enter_async_context(opened_storage(options, settings, stop, counted))
        if storage.reads_file:
            limit_cache_with_file_reader(cache, settings)
        brokers: Brokers | None = None
        if options.redis:
            lost = partial(stop.ask, status=1)
            reached = listening.told, listening.http_url(options), listening.towards_peers
            brokers = await stack.enter_async_context(joined(storage, options.redis, settings, clock, *reached, lost))
        parts = Services(
            storage.documents,
            settings,
            clock,
            cache=cache,
            lake=Lake(),
            ownership=None if brokers is None else brokers.ownership,
            leaders=None if brokers is None else LeaderRegistry(settings.node_id, brokers.storage.publish),
            running=given or RunningClock(clock),
        )
        keyspace = lru_cache(partial(Keyspace, settings.headrace_stream_prefix))
        clusters = VirtualClusters(
            storage,
            settings,
            clock,
            cluster_id=storage.cluster_id,
            stream_of=lambda cluster, *place: keyspace(cluster).stream(*place),
            parts=parts,
            listeners=[] if tracing is None else [tracing],
        )
        _advertise(clusters.default, listening.told, storage.url)
        yield storage, clusters, brokers


async def _loaded(
    options: ServerOptions,
    settings: BrokerSettings,
    oci: OciSettings,
    clusters: VirtualClusters,
    brokers: Brokers | None,
    stack: contextlib.AsyncExitStack,
) -> tuple[Known, OciService, Registry | None]:
    await clusters.start(_show_partitions)
    stack.push_async_callback(clusters.stop)
    known = await opened_logins(clusters, settings, options.bootstrap_user, stack)
    service = OciService(clusters, oci)
    await service.start()
    stack.push_async_callback(service.stop)
    schemas = await opened_registry(clusters, settings, None if brokers is None else brokers.catching_up, stack)
    if brokers is not None:
        reloads = [known.users.reload, service.catalog.reload, *([] if schemas is None else [schemas.store.reload])]
        await brokers.follow(clusters, everything(*reloads))
        service.catalog.documents.catch_up = brokers.catch_up
    return known, service, schemas


def _reset(service: OciService, schemas: Registry | None) -> Callable[[], Awaitable[None]]:
    async def reset() -> None:
        await service.reset()
        if schemas is not None:
            await schemas.store.exclusively(schemas.store.clear)

    return reset


def _kafka(
    listening: Listening,
    clusters: VirtualClusters,
    settings: BrokerSettings,
    service: OciService,
    known: Known,
    counters: Counters,
    limits: ConnectionLimits,
) -> KafkaListeners:
    pool_cluster = service.catalog.pools.cluster_of
    return KafkaListeners(
        KafkaListener(
            clusters.default,
            max_request_bytes=settings.socket_request_max_bytes,
            max_idle_ms=settings.connections_max_idle_ms,
            name=bound.listener.name,
            counters=counters,
            limits=limits,
            logins=logins_at(bound, service.settings, clusters, known.tokens, pool_cluster),
            tls=bound.tls,
            restriction=_restriction(service),
        )
        for bound in listening.kafka
    )


def _restriction(service: OciService) -> Restriction | None:
    return STRICT if service.settings.kafka == "strict" else None


def _for_people(
    observed: Observed,
    visitors: Visitors,
    kafka: InProcessClient,
    reset: Callable[[], Awaitable[None]],
    settings: BrokerSettings,
    health: Callable[[], Awaitable[http_app.Health]],
    otherwise: ASGIApp,
    front: StartupGate,
    stack: contextlib.AsyncExitStack,
) -> ASGIApp:
    routes, pages = shown(observed, visitors, kafka, front, stack)
    erasing = ResetCall(reset, is_loopback, on=settings.headrace_testing_reset).route
    # Unknown paths get the error format of the OCI API.
    return visitors.known(http_app.create(health, (erasing, *routes), otherwise=pages.before(otherwise)))


def _http_apis(oci: OciApp, endpoints: Endpoints, people: ASGIApp, registry: ASGIApp | None) -> ASGIApp:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = oci if scope["type"] == "http" and is_ours(scope["path"]) else people
        if registry is not None and is_registry(scope["path"]):
            app = registry
        app = endpoints.get(scope["path"], app)
        await app(scope, receive, send)

    return application


@contextlib.asynccontextmanager
async def _observed(
    options: ServerOptions,
    storage: RedisStorage,
    clusters: VirtualClusters,
    counters: Counters,
    connections: dict[str, Callable[[], int]],
    clients: Callable[[], dict[ConnectedClient, tuple[int, int]]],
    http: str,
    log_lines_lost: Callable[[], int],
    health: HealthCheck,
    decoder: RecordDecoder | None,
) -> AsyncIterator[Observed]:
    data = options.disk if options.redis else options.data
    evicting = storage.evicting if options.redis else None
    watch = Watch(storage.ping, data, evicting=evicting, look_at_journal=storage.look_at_journal)
    async with asynchronous(options.redis or storage.url) as client:
        look = storage.take_along(client)
        watching = asyncio.create_task(watch.run(), name="watch")
        try:
            yield Observed(
                clusters,
                counters,
                connections,
                clients,
                http,
                store=lambda: store_facts(look),
                storage=without_password(storage.url),
                data=data,
                log_lines_lost=log_lines_lost,
                refusal=lambda: health.refusal,
                decoder=decoder,
            )
        finally:
            await end(watching)


def _effective(settings: BrokerSettings, options: ServerOptions) -> BrokerSettings:
    """The embedded Valkey holds no other application's data, so every stream may be adopted."""
    if options.redis is not None or "headrace.adopt.prefixes" in settings.given:
        return settings
    return BrokerSettings.of(settings.given | {"headrace.adopt.prefixes": "*"})


def _traced(apis: ASGIApp, oci: OciService, tracing: "Tracing | None") -> ASGIApp:
    if tracing is None:
        return apis
    oci.traceparent = tracing.traceparent_now
    return tracing.http(apis)


def _tracing(endpoint: str, stack: contextlib.AsyncExitStack) -> "Tracing | None":
    if not endpoint:
        return None
    try:
        from headrace.server.tracing import Tracing  # noqa: PLC0415  # an extra, and slow to import
        from headrace.tracing.exporter import TraceExporter  # noqa: PLC0415
    except ImportError as error:
        needed = extras.explained("headrace.traces.endpoint", error)
        raise StartError(f"{needed}; or leave the setting out") from None
    exporter = TraceExporter(endpoint, "headrace")
    stack.push_async_callback(asyncio.to_thread, exporter.close)
    return Tracing(exporter)


def _advertise(broker: Broker, kafka: dict[str, tuple[str, int]], storage: str) -> None:
    broker.advertised.update(kafka)
    # ACLs do not apply in Redis: with them, advertise the storage only if it requires a password.
    if not broker.settings.authorizer_class_name or has_password(storage):
        broker.storage_url = without_password(storage)


@contextlib.asynccontextmanager
async def _http(app: ASGIApp, listening: Listening, limits: ConnectionLimits) -> AsyncIterator[HttpListener]:
    """Serve HTTP from before the start until after the stop, for probes."""
    listener = HttpListener(app, listening.http, limits=limits, tls=listening.tls if listening.https else None)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


def _hosts(options: ServerOptions, settings: BrokerSettings, oci: OciSettings, bound: socket.socket) -> Hosts:
    address = bound.getsockname()[0]
    own = [options.http.host, address, urlsplit(oci.messages_endpoint).hostname or ""]
    if not is_loopback(address):
        own.append(socket.gethostname())
    return Hosts(own, settings.headrace_http_hosts.split(","))


def _show_partitions(opened: int, total: int) -> None:
    if total >= _MANY_PARTITIONS:
        _log.info("recovering partitions", opened=opened, total=total)
