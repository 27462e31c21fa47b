"""Accept requests from other brokers."""

import asyncio
from collections.abc import Sequence
from functools import partial
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from headrace.broker.broker import Broker
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.signature import InvalidPeerSignature, PeerSigner, seal_of
from headrace.oci.api.authentication import RequestAuthenticator
from headrace.oci.api.publisher import MOST_BATCH, Placed
from headrace.oci.api.request_parser import Gone, announced_size, header_map, read_body
from headrace.oci.errors import OciError
from headrace.oci.forwarding.append_router import MISDIRECTED, Refusal, append
from headrace.security.access.principal import Principal
from headrace.topics.errors import InvalidRecords, NotLeader, TopicError, UnknownTopic

_log = structlog.get_logger("headrace.oci.forwarding")
_LARGE = 1 << 20
"""Minimum bytes of a body that is hashed in a thread."""
_MOST_TOLD = 1_000
"""Maximum characters of an error message."""
_REFUSED = "This request does not come from another broker of this keyspace"


class SealAuthenticator:
    """Verifies brokers' HMAC signatures, and passes other requests on."""

    def __init__(self, seals: PeerSigner, clients: RequestAuthenticator) -> None:
        self._seals = seals
        self._clients = clients

    @property
    def computes(self) -> bool:
        """See `RequestAuthenticator`."""
        return self._clients.computes

    def authenticate(
        self,
        method: str,
        raw_target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        signs_body: bool,
        now_ms: int,
    ) -> Principal:
        """Return the forwarded principal, or the client. Raises OciError 401."""
        seal = seal_of(headers)
        if seal is None:
            return self._clients.authenticate(method, raw_target, headers, signs_body=signs_body, now_ms=now_ms)
        try:
            return self._seals.read(seal, method, raw_target, now_ms).principal
        except InvalidPeerSignature as error:
            _log.warning("a request with an invalid HMAC signature was rejected", reason=str(error))
            raise OciError(401, _REFUSED) from None

    def check_body(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """See `RequestAuthenticator`."""
        seal = seal_of(headers)
        if seal is None:
            self._clients.check_body(headers, body)
        elif not self._seals.covers(seal, body):
            raise OciError(401, _REFUSED)


class AppendApp:
    """Appends batches for other brokers."""

    def __init__(self, clusters: VirtualClusters, seals: PeerSigner) -> None:
        self._clusters = clusters
        self._authenticator = SealAuthenticator(seals, _NoResource())
        # Separate, because two brokers may wait for each other's appends.
        self._bodies = ReadBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            status, told = await self._take(scope, receive)
        except Gone:
            return
        except OciError as error:
            status, told = error.status, Refusal("StorageUnavailable", error.message)
        except NotLeader as error:
            status, told = MISDIRECTED, Refusal(type(error).__name__, str(error))
        except InvalidRecords as error:
            status, told = 409, Refusal(type(error).__name__, str(error), dict(error.reasons))
        except TopicError as error:
            status, told = 409, Refusal(type(error).__name__, str(error))
        if isinstance(told, Refusal):
            told = msgspec.structs.replace(told, message=told.message[:_MOST_TOLD])
        content = msgspec.json.encode(told)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _take(self, scope: Scope, receive: Receive) -> tuple[int, Placed | Refusal]:
        query: bytes = scope["query_string"]
        self._authenticator.authenticate(
            scope["method"],
            scope["raw_path"] + b"?" + query,
            scope["headers"],
            signs_body=True,
            now_ms=self._clusters.clock.now_ms(),
        )
        size = announced_size(header_map(scope["headers"]), MOST_BATCH)
        granted = await self._bodies.acquire(size, size)
        try:
            body = await read_body(receive, size)
            check = partial(self._authenticator.check_body, scope["headers"], body)
            await asyncio.to_thread(check) if len(body) > _LARGE else check()
            broker, topic, index = self._place(query)
            return 200, await append(broker, topic, index, bytearray(body))
        finally:
            self._bodies.release(granted)

    def _place(self, query: bytes) -> tuple[Broker, LiveTopic, int]:
        """Raises NotLeader, OciError 400."""
        place = dict(parse_qsl(query.decode("latin-1")))
        try:
            cluster, topic_id, index = place["cluster"], UUID(hex=place["id"]), int(place["partition"])
        except (KeyError, ValueError):
            raise OciError(400, "A batch comes with a cluster, a topic's id and a partition") from None
        try:
            # This broker may apply a move earlier or later.
            return *self._clusters.holding(topic_id, cluster), index
        except UnknownTopic as error:
            raise NotLeader(str(error)) from None


class _NoResource:
    computes = False

    def authenticate(self, *_: object, **__: object) -> Principal:
        raise OciError(401, _REFUSED)

    def check_body(self, *_: object) -> None:
        raise OciError(401, _REFUSED)
