"""Accept other brokers' requests about transactions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from headrace.broker.coordinator.remote_transactions import RemoteAnswer, RemoteEnd, RemoteEnded, RemoteQuestion
from headrace.broker.virtual_clusters import UnknownCluster, VirtualClusters
from headrace.http.error_responses import refusal, send_own
from headrace.http.peers.batches import MOST_BYTES, MOST_ITEMS
from headrace.http.peers.signature import InvalidPeerSignature, PeerSigner, seal_of
from headrace.http.peers.transactions import ENDS, QUESTIONS
from headrace.transactions.errors import TransactionError

Q = TypeVar("Q")
A = TypeVar("A")
_MOST_BODY: Final = 2 * MOST_BYTES
_NO_CLUSTER = "the virtual cluster is not open here"
_log = structlog.get_logger("headrace.http.peers")
_ends = msgspec.json.Decoder(list[RemoteEnd])
_questions = msgspec.json.Decoder(list[RemoteQuestion])


class TransactionEndpoint:
    """ASGI application for the paths of `http.peers.transactions`."""

    def __init__(self, clusters: VirtualClusters, seals: PeerSigner) -> None:
        self._clusters = clusters
        self._seals = seals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        seal = self._seal(scope)
        if seal is None:
            refused = refusal("NotAuthenticated", "This request does not come from another broker of this keyspace")
            await send_own(send, 401, refused)
            return
        body = await _body(receive)
        if body is None or not self._seals.covers(seal, body):
            await send_own(send, 400, refusal("InvalidParameter", "The body is too long, incomplete or not signed"))
            return
        try:
            answers = await self._answers(scope["path"], body)
        except msgspec.DecodeError as error:
            await send_own(send, 400, refusal("InvalidParameter", str(error)))
            return
        content = msgspec.json.encode(answers)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _seal(self, scope: Scope) -> str | None:
        """Return the request's signature if it is valid for all but the body."""
        seal = seal_of(scope["headers"])
        if seal is None:
            return None
        now_ms = self._clusters.clock.now_ms()
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        try:
            self._seals.read(seal, scope["method"], target, now_ms)
        except InvalidPeerSignature as error:
            _log.warning("a request with an invalid HMAC signature was rejected", reason=str(error))
            return None
        return seal

    async def _answers(self, path: str, body: bytes) -> Sequence[RemoteEnded | RemoteAnswer]:
        if path == ENDS:
            return await _all(_ends.decode(body), self._end)
        assert path == QUESTIONS
        return await _all(_questions.decode(body), self._answer)

    async def _end(self, call: RemoteEnd) -> RemoteEnded:
        try:
            transactions = self._clusters.get(call.cluster).transactions
        except UnknownCluster:
            return RemoteEnded(reason=_NO_CLUSTER)
        return await transactions.participants.end_for_other(call)

    async def _answer(self, question: RemoteQuestion) -> RemoteAnswer:
        try:
            transactions = self._clusters.get(question.cluster).transactions
        except UnknownCluster:
            return RemoteAnswer(TransactionError.COORDINATOR_LOAD_IN_PROGRESS.name)
        return await transactions.answer(question)


async def _all(items: list[Q], do: Callable[[Q], Awaitable[A]]) -> list[A]:
    if len(items) > MOST_ITEMS:
        raise msgspec.ValidationError(f"more than {MOST_ITEMS} requests")
    return await asyncio.gather(*map(do, items))


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body. None: it is too long, or the sender has closed the connection."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > _MOST_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(chunks)
