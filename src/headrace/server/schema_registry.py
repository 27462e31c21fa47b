"""Build the schema registry of the HTTP listener."""

import contextlib
from collections.abc import Mapping

from starlette.types import ASGIApp, Scope

from headrace.broker.config.settings import BrokerSettings
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.client.errors import OptionError
from headrace.console.authentication import Visitors
from headrace.console.registry import PRINCIPAL
from headrace.schema_registry.app import CatchingUp, RegistryApp, in_format
from headrace.schema_registry.produced_schemas import ProducedSchemas
from headrace.schema_registry.registry import Registry
from headrace.schema_registry.store import SchemaStore
from headrace.schema_registry.worker import Worker
from headrace.schemas.protobuf import MISSING_EXTRA
from headrace.security.access.listeners import is_loopback
from headrace.security.access.principal import Principal


async def opened_registry(
    clusters: VirtualClusters,
    settings: BrokerSettings,
    catching_up: CatchingUp | None,
    stack: contextlib.AsyncExitStack,
) -> Registry | None:
    """Load the registry for its API and for topics that validate schemas. `stack` stops it.

    None: `schema.registry.enable` is false.
    """
    if not settings.schema_registry_enable:
        return None
    store = SchemaStore(
        clusters.default.storage.documents,
        settings.schema_registry_max_schemas,
        settings.schema_registry_max_bytes,
    )
    await store.load()
    worker = Worker()
    stack.callback(worker.close)
    most_bytes, cluster_id = settings.schema_registry_max_schema_bytes, clusters.default.cluster_id
    registry = Registry(store, worker, _compiled, most_bytes, cluster_id)
    clusters.record_checker.schemas = ProducedSchemas(registry, catching_up)
    return registry


def registry_app(
    registry: Registry, clusters: VirtualClusters, visitors: Visitors, catching_up: CatchingUp | None
) -> ASGIApp:
    """Return the registry as an application that authenticates as the web console does."""

    def principal_of(scope: Scope) -> Principal | None:
        found: Principal | None = scope.get(PRINCIPAL)
        return found

    app = RegistryApp(registry, clusters.access, principal_of, is_loopback, catching_up)
    return in_format(visitors.known(app))


def _compiled(text: str, imports: Mapping[str, str]) -> bytes:
    """Compile Protobuf in another process. Raises ValueError."""
    try:
        from headrace.lakehouse.decoders.protobuf_compiler import compiled  # noqa: PLC0415  # an extra
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    try:
        return compiled(text, "the schema", imports)
    except OptionError as error:
        raise ValueError(str(error)) from None
