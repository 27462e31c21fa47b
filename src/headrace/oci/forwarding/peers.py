"""Puts the API of a server among those of the other brokers: what one of them cannot answer another one does."""

import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Callable

from headrace.broker.virtual_clusters import Clusters
from headrace.http.peers.peers import Peers
from headrace.http.peers.signature import SECRET_SIZE, Seals
from headrace.metrics.counters import Counters
from headrace.oci.api.asgi import Authenticator, CatchingUp, OciApp
from headrace.oci.api.service import OciService
from headrace.oci.forwarding.append_router import Puts
from headrace.oci.forwarding.group_forwarder import Groups
from headrace.oci.forwarding.peer_endpoint import AppendApp, SealAuthenticator

SECRETS, SEALS = "peer.secrets", "seals"
"""Kind and id of the document that has the secret."""


@contextlib.asynccontextmanager
async def api(
    service: OciService,
    clusters: Clusters,
    clients: Authenticator,
    counters: Counters,
    catching_up: CatchingUp | None,
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
) -> AsyncIterator[tuple[OciApp, AppendApp | None]]:
    """The API, and what takes batches from other brokers, where there may be some.

    Args:
        service: what operations work on.
        clusters: what is there.
        clients: tells who sent the requests of clients.
        counters: the server's.
        catching_up: takes over what other brokers have changed; None: there are none.
        tls: what brokers that serve HTTPS are asked with.

    Raises:
        StorageUnavailable.
    """
    if catching_up is None:
        yield OciApp(service, clients, counters), None
        return
    documents = clusters.default.storage.documents
    seals = Seals(await documents.keep(SECRETS, SEALS, secrets.token_bytes(SECRET_SIZE)))
    peers = Peers(clusters.ownership, seals, clusters.clock, clusters.settings.broker_session_timeout_ms, tls)
    service.puts = Puts(peers, clusters, catching_up)
    app = OciApp(service, SealAuthenticator(seals, clients), counters)
    app.groups, app.catching_up = Groups(peers, clusters), catching_up
    try:
        yield app, AppendApp(clusters, seals)
    finally:
        peers.close()
