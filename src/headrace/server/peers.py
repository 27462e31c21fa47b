"""This server's requests to the other brokers, and its endpoints for theirs."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.types import ASGIApp

from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.peers import Peers, keyspace_signer
from headrace.http.peers.transaction_endpoint import TransactionEndpoint
from headrace.http.peers.transactions import ENDS, QUESTIONS, HttpTransactionPeers
from headrace.server.cluster import Brokers

Endpoints = Mapping[str, ASGIApp]
"""Path -> application."""


@contextlib.asynccontextmanager
async def connected(
    clusters: VirtualClusters, brokers: Brokers | None, tls: Callable[[], ssl.SSLContext]
) -> AsyncIterator[tuple[Peers | None, Endpoints]]:
    """Yield the connections with the other brokers (None: a single server), and the endpoints of transactions.

    Raises StorageUnavailable.
    """
    if brokers is None:
        yield None, {}
        return
    signer = await keyspace_signer(clusters.default.storage.documents)
    peers = Peers(clusters.ownership, signer, clusters.clock, clusters.settings.broker_session_timeout_ms, tls)
    transactions = HttpTransactionPeers(peers, brokers.is_current)
    clusters.services.transaction_peers = transactions
    endpoint = TransactionEndpoint(clusters, signer)
    try:
        yield peers, {ENDS: endpoint, QUESTIONS: endpoint}
    finally:
        clusters.services.transaction_peers = None
        transactions.close()
        peers.close()
