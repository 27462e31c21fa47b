"""Build the web console and `/metrics`."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from headrace.broker.broker import Broker
from headrace.broker.time_lag import TimeLags
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.console.authentication import Visitors
from headrace.console.login import LoginPages
from headrace.console.metrics import MetricsPage
from headrace.console.pages import Pages
from headrace.console.record_worker import RecordDecoder
from headrace.console.sampler import Sampler
from headrace.console.server_data import AclNumbers, Figures, NotSupported
from headrace.console.sessions import Forms, Sessions
from headrace.http.app import StartupGate
from headrace.kafka.acl_codes import Codes, acl_of
from headrace.kafka.errors import error_name
from headrace.kafka.server.frames import NotServed
from headrace.kafka.server.in_process_client import InProcessClient
from headrace.metrics.counters import ConnectedClient, Counters, StoreFacts
from headrace.oci.app import LISTENER
from headrace.protocol.message import Message
from headrace.protocol.messages import CreateAclsRequest
from headrace.security.access.acls import Acl
from headrace.security.access.listeners import is_loopback
from headrace.security.access.principal import Principal
from headrace.server.authentication import Known
from headrace.server.config import Address
from headrace.storage.layout import segments
from headrace.storage.layout.entries import entry_id
from headrace.storage.layout.keys import segment_of
from headrace.storage.layout.native import id_of


class Observed(msgspec.Struct, frozen=True):
    """Data sources of console and metrics."""

    clusters: VirtualClusters
    counters: Counters
    connections: Mapping[str, Callable[[], int]]
    """Current number of connections by listener."""
    clients: Callable[[], Mapping[ConnectedClient, tuple[int, int]]]
    """Connections and requests so far of each Kafka client."""
    http: str
    """URL of the HTTP listener."""
    store: Callable[[], Awaitable[StoreFacts]]
    """Queries Redis."""
    storage: str
    """URL of the storage, without a password."""
    data: Path | None
    """Data directory, if it is on this machine."""
    log_lines_lost: Callable[[], int]
    """Number of log lines that could not be written."""
    refusal: Callable[[], str]
    """Why no records are accepted, as of the last health check; empty: they are."""
    decoder: RecordDecoder | None = None
    """Decodes records by the server's schema registry, if it has one."""


class Entries:
    """Implements `headrace.console.server_data.Entries`."""

    def of_batch(self, leader_epoch: int, next_offset: int) -> str:
        """See `Entries`."""
        return entry_id(leader_epoch, next_offset)

    def in_segment(self, stream: str, number: int, next_offset: int) -> tuple[str, str]:
        """See `Entries`."""
        return segment_of(stream, number), segments.entry_id(next_offset)

    def of_record(self, offset: int, sequence_bits: int) -> str:
        """See `Entries`."""
        return id_of(offset, sequence_bits)


class ConsoleKafka:
    """Implements `headrace.console.server_data.KafkaClient`."""

    def __init__(self, client: InProcessClient) -> None:
        self._client = client
        self.error_name = error_name

    async def send(self, request: Message, broker: Broker, principal: Principal, host: str) -> Any:
        """See `KafkaClient.send`."""
        try:
            return await self._client.send(request, broker, principal, host)
        except NotServed as error:
            raise NotSupported(str(error)) from None

    def numbers_of(self, acl: Acl) -> AclNumbers:
        """See `KafkaClient.numbers_of`."""
        return AclNumbers(*Codes.of(acl))

    def acl_of(self, resource: Any, acl: Any) -> Acl:
        """See `KafkaClient.acl_of`."""
        return acl_of(
            CreateAclsRequest.AclCreation(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                resource_pattern_type=resource.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )


def visitors_of(clusters: VirtualClusters, known: Known) -> Visitors:
    """Return the console's visitors and their rights."""
    settings, clock = clusters.settings, clusters.clock
    return Visitors(
        known.users,
        known.tokens,
        Sessions(known.users, clock, settings.console_session_ms),
        clusters.access.audit,
        clock,
        settings.connection_failed_authentication_delay_ms,
        is_loopback,
        str(Address(*next(iter(clusters.default.advertised.values())))),
    )


def shown(
    observed: Observed,
    visitors: Visitors,
    kafka: InProcessClient,
    front: StartupGate,
    stack: contextlib.AsyncExitStack,
) -> tuple[tuple[BaseRoute, ...], Pages]:
    """Return the routes of console and metrics, and the console's pages.

    `kafka` sends the requests of forms. Open pages end when `front` announces the shutdown. `stack` stops the
    collection of figures.
    """
    stack.callback(kafka.close)
    forms = Forms()
    clusters = observed.clusters
    time_lags = TimeLags(lambda: clusters, clusters.clock, clusters.lane)
    pages = Pages(_figures(observed, kafka, stack, time_lags), visitors, forms)
    front.ending.append(pages.close)
    metrics = Route("/metrics", _metrics(observed, visitors, time_lags).answer)
    return (metrics, *LoginPages(visitors, forms).routes, *pages.routes), pages


def _metrics(observed: Observed, visitors: Visitors, time_lags: TimeLags) -> MetricsPage:
    return MetricsPage(
        observed.clusters,
        observed.counters,
        connections=observed.connections,
        store=observed.store,
        log_lines_lost=observed.log_lines_lost,
        writable=lambda: not observed.refusal(),
        error_name=error_name,
        refusal=visitors.refusal,
        data=observed.data,
        time_lags=time_lags,
        most_series=observed.clusters.settings.metrics_max_series,
    )


def _figures(
    observed: Observed, kafka: InProcessClient, stack: contextlib.AsyncExitStack, time_lags: TimeLags
) -> Figures:
    clusters, connections = observed.clusters, observed.connections
    sampler = Sampler(clusters, clusters.clock, lambda: sum(now() for now in connections.values()), observed.refusal)
    sampler.start()
    stack.callback(sampler.stop)
    addresses = {name: str(Address(*told)) for name, told in clusters.default.advertised.items()}
    figures = Figures(
        clusters,
        observed.counters,
        sampler,
        connections=connections,
        addresses={**addresses, LISTENER: observed.http},
        clients=observed.clients,
        store=observed.store,
        storage=observed.storage,
        data=observed.data,
        entries=Entries(),
        kafka=ConsoleKafka(kafka),
        refusal=observed.refusal,
        time_lags=time_lags,
        decoder=observed.decoder,
    )
    stack.callback(figures.work.close)
    return figures
