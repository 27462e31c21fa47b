"""Serve the API as a plain ASGI application, because thousands of requests arrive per second.

Every response is JSON in Oracle's format. Every failure has an error code.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from structlog.contextvars import bind_contextvars

from headrace import __version__
from headrace.aio.tasks import counted
from headrace.broker.coordinator.event_log import logs_requests
from headrace.broker.runtime.clock import pause
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.peers import Peers
from headrace.http.peers.signature import HEADER
from headrace.metrics.counters import TICKS, Counters
from headrace.oci import operations
from headrace.oci.api.authentication import RequestAuthenticator
from headrace.oci.api.openapi import describe
from headrace.oci.api.quotas import CLIENT_ID, Account, account_of
from headrace.oci.api.registry import OPERATIONS, Answer, Call, Nothing, Operation
from headrace.oci.api.request_parser import (
    BodyReader,
    Gone,
    announced_size,
    header_map,
    headers_of,
    query_of,
    read_body,
)
from headrace.oci.api.required_acls import admit
from headrace.oci.api.routing import BASE, Match, Router
from headrace.oci.api.service import OciService
from headrace.oci.api.timeouts import Unanswered
from headrace.oci.errors import OciError, of_topic_error, unknown_stream
from headrace.oci.faults import HEADER as FAULT_HEADER
from headrace.oci.faults import NONE, Injected
from headrace.oci.forwarding.append_router import AppendRouter
from headrace.oci.forwarding.group_forwarder import ANSWERED, Done, GroupForwarder, group_of
from headrace.oci.forwarding.peer_endpoint import AppendApp, SealAuthenticator
from headrace.oci.settings import DISABLED
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.topics.errors import TopicError, UnknownTopic

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MOST_BODY = 1 << 20
"""Default maximum bytes of a body."""
MOST_BODY_OF = {"PutMessages": 40 << 20}
"""The documented limit counts decoded keys and values. 1 MiB of one-byte messages is this long in JSON."""

_MOST_KEPT = 64 << 10
"""Maximum bytes of a body without messages, because resources stay in memory."""
_LARGE = 64 << 10
"""Minimum bytes of a response that count for `headrace.reads.bytes`, and of a body for `queued.max.request.bytes`."""
DRAIN = "headrace.drain"
"""ASGI extension: `drain` is a coroutine function that waits until responses are sent."""
DROP = "headrace.drop"
"""ASGI extension: `drop` is a function that closes the connection."""

LISTENER = "HTTP"
"""Name of the HTTP listener in logs and metrics."""
_OPERATION = "headrace.operation"
"""Scope key of the operation's name."""
_NONE = "none"
"""Metric label of requests without an operation."""

_log = structlog.get_logger("headrace.oci.api")
_REQUEST_ID = re.compile(r"[!-~]{1,256}")
_JSON = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode
_DESCRIPTION = f"{BASE}/openapi.json".encode()
_UNKNOWN = 404
_MOST_MESSAGE = 1000
"""Maximum characters of an error message."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


CatchingUp = Callable[[], Callable[[], Awaitable[bool]]]
"""Apply the changes of other brokers. Return whether something changed since the call."""


def is_ours(path: str) -> bool:
    """Return whether a path belongs to this API."""
    rest = path.lstrip("/")
    return rest.startswith(BASE) and rest[len(BASE) : len(BASE) + 1] in {"", "/"}


class _Request(msgspec.Struct):
    scope: Scope
    receive: Receive
    headers: dict[str, str]
    match: Match
    principal: Principal
    content: bytes | None = None
    """The whole body; None if the method has none."""
    injected: Injected = NONE
    """Injected faults."""


class OciApp:
    """The API, for paths accepted by `is_ours`."""

    def __init__(
        self, service: OciService, authenticator: RequestAuthenticator | None = None, counters: Counters | None = None
    ) -> None:
        operations.load()
        self._service = service
        self._authenticator = authenticator
        self._unanswered = Unanswered()
        self.groups: GroupForwarder | None = None
        """Forwards group requests; None: this server answers all."""
        self.catching_up: CatchingUp | None = None
        """None: no other brokers exist."""
        self._telling = logs_requests(_log)
        self._router = Router(OPERATIONS.values())
        self._description = _encode(describe(OPERATIONS.values(), __version__))
        self._counted = (counters or Counters()).listener(LISTENER, {each: each for each in (*OPERATIONS, _NONE)}).apis
        self._bodies = {each.name: _reader(each) for each in OPERATIONS.values() if each.body is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = perf_counter()
        headers = header_map(scope["headers"])
        request_id = headers.get("opc-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid4().hex.upper()
        bind_contextvars(client=(scope.get("client") or ("local",))[0], request=request_id)
        try:
            status, answer = await self._answer(scope, headers, receive)
        except Gone:
            return
        if status >= 400 and "expect" in headers:
            # The client may omit its body, so the start of its next request is ambiguous.
            answer.headers["connection"] = "close"
        if HEADER in headers:
            answer.headers[ANSWERED] = "yes"
        counted = self._counted[scope.get(_OPERATION, _NONE)]
        if status >= 400:
            counted.failed((answer.body["code"],))
        content = b"" if answer.body is None else _json(answer.body)
        large = len(content) > _LARGE
        reads = self._service.broker.reads
        if large:
            reads.take(len(content))
        try:
            await _send(send, status, answer, content, request_id)
            if self._telling:
                _log.debug(
                    "request",
                    operation=scope.get(_OPERATION, _NONE),
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round((perf_counter() - began) * 1000, 3),
                )
            counted.add(int((perf_counter() - began) * TICKS))
            if large:
                await _drain(scope)
        finally:
            if large:
                reads.release(len(content))

    async def _answer(self, scope: Scope, headers: dict[str, str], receive: Receive) -> Done:
        try:
            return await self._run(scope, headers, receive)
        except OciError as error:
            return _failed(error)
        except TopicError as error:
            told = of_topic_error(error)
            if told.status == 500:  # clients must not see Redis messages
                _log.error("an operation failed", method=scope["method"], path=scope["path"], reason=str(error))
            return _failed(told)
        except Gone:
            raise
        except Exception:
            _log.exception("an operation failed", method=scope["method"], path=scope["path"])
            return _failed(OciError(500, "Internal server error"))

    async def _run(self, scope: Scope, headers: dict[str, str], receive: Receive) -> tuple[int, Answer]:
        method: str = scope["method"]
        raw_path: bytes = scope["raw_path"]
        carried = self.groups is not None and HEADER in headers
        if not self._service.settings.enable and not carried and is_ours(scope["path"]):
            raise OciError(404, DISABLED)
        if raw_path.lstrip(b"/") == _DESCRIPTION and method == "GET":
            return 200, Answer(self._description)
        match = self._router.match(method, raw_path.decode("latin-1"))
        operation = match.operation
        scope[_OPERATION] = operation.name
        principal = ANONYMOUS
        if self._authenticator is not None:
            if self._authenticator.computes and (pace := self._service.broker.lane.pace()).over:
                # Verification takes milliseconds.
                await pace.rest()
            # Authenticate before reading the body.
            principal = self._authenticator.authenticate(
                method,
                _target(scope),
                scope["headers"],
                signs_body=operation.signs_body,
                now_ms=self._service.clock.now_ms(),
            )
            if principal != ANONYMOUS:
                bind_contextvars(user=principal.name)
        request = _Request(scope, receive, headers, match, principal)
        if not carried:
            # Before reserving memory, because a fault may take minutes.
            request.injected = self._service.faults.of(operation.name, headers.get(FAULT_HEADER))
        if method in _WITHOUT_BODY:
            await self._delay(request, left=True)
            return await self._known(request)
        size = announced_size(headers, MOST_BODY_OF.get(operation.name, MOST_BODY))
        if size <= _LARGE:
            request.content = await read_body(receive, size)
            await self._delay(request, left=True)
            return await self._known(request)
        await self._delay(request, left=False)
        bodies = self._service.bodies
        granted = await bodies.acquire(size, size)
        try:
            request.content = await read_body(receive, size)
            return await self._known(request)
        finally:
            bodies.release(granted)

    async def _delay(self, request: _Request, *, left: bool) -> None:
        """Wait for a `slow` fault. Raises Gone.

        Without `left`, part of a large body is unread, and a disconnect is noticed when it is read.
        """
        if not request.injected.delay_ms:
            return
        waiting = asyncio.ensure_future(pause(self._service.clock, request.injected.delay_ms))
        gone = asyncio.ensure_future(_left(request.receive)) if left else None
        try:
            await asyncio.wait({waiting} if gone is None else {waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise Gone
        finally:
            waiting.cancel()
            if gone is not None:
                gone.cancel()

    async def _known(self, request: _Request) -> Done:
        catch_up = None if self.catching_up is None else self.catching_up()
        try:
            return await self._do(request)
        except OciError as error:
            if error.status != _UNKNOWN or catch_up is None or not await catch_up():
                raise
        return await self._do(request)

    async def _checked(self, request: _Request) -> bytes:
        content = request.content
        if content is None:
            return b""
        if self._authenticator is not None:
            check = partial(self._authenticator.check_body, request.scope["headers"], content)
            await asyncio.to_thread(check) if len(content) > MOST_BODY else check()
        name = request.match.operation.name
        if len(content) > _MOST_KEPT and name not in MOST_BODY_OF:
            raise OciError(400, f"Request size is limited to {_MOST_KEPT >> 10} KiB for {name}")
        return content

    def _call(self, request: _Request, content: bytes) -> Call:
        scope, headers, operation = request.scope, request.headers, request.match.operation
        return Call(
            self._service,
            path=request.match.path,
            query=_query(operation, scope["query_string"]),
            headers=None if operation.headers is Nothing else headers_of(operation.headers, headers),
            body=self._bodies[operation.name](content) if operation.body is not None else None,
            principal=request.principal,
            host=(scope.get("client") or ("local",))[0],
            endpoint=f"{scope['scheme']}://{headers.get('host') or _address(scope)}",
        )

    async def _do(self, request: _Request) -> Done:
        scope, headers, operation = request.scope, request.headers, request.match.operation
        content = await self._checked(request)
        call = self._call(request, content)
        carried = self.groups is not None and HEADER in headers
        if not carried:
            # The forwarding broker has authorized the client
            admit(operation, call)
        # and counted its quotas.
        account = None if carried else account_of(operation, call, headers.get(CLIENT_ID, ""))
        group = None if self.groups is None else group_of(operation, call)
        doing: Callable[[], Coroutine[Any, Any, Done]] = partial(self._operate, request.match, call)
        if self.groups is not None and group is not None:
            if carried:
                return await self.groups.carried(group, doing)
            doing = partial(
                self.groups.answer,
                group,
                scope["method"],
                _target(scope),
                call,
                request_id=headers.get("opc-request-id", ""),
                body=content,
                here=doing,
                repeats=operation.repeats,
            )
        injected = call.injected = request.injected
        if injected.error is not None:
            raise injected.error
        if account is not None:
            account.admit(operation, call, len(content))
            doing = partial(_charged, account, operation, doing)
        done = await self._unanswered.wait(doing(), len(content))
        if injected.lost:
            await _drop(scope, request.receive)
        return done

    async def _operate(self, match: Match, call: Call) -> Done:
        operation = match.operation
        if self._service.limits is not None:
            self._service.limits.call(operation.name, call.principal.tenancy, self._service.clock.ticks_ms())
        try:
            answer = await operation.handler(call)
            if operation.changes:
                call.log_change(operation.name)
            return operation.status, answer
        except UnknownTopic:
            # The topic was deleted during the operation.
            raise unknown_stream(match.path.get("streamId", "")) from None


async def _charged(account: Account, operation: Operation, doing: Callable[[], Coroutine[Any, Any, Done]]) -> Done:
    size = 0
    try:
        status, answer = await counted(doing(), account.resume, account.pause)
        size = len(answer.body) if isinstance(answer.body, bytes) else 0
        return status, answer
    finally:
        account.settle(operation, size)


def _target(scope: Scope) -> bytes:
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def _address(scope: Scope) -> str:
    host, port = scope["server"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reader(operation: Operation) -> Callable[[bytes], Any]:
    return bytes if operation.raw_body else BodyReader(operation.body).read


async def _drop(scope: Scope, receive: Receive) -> None:
    extension = scope.get("extensions", {}).get(DROP)
    if extension is not None:
        extension["drop"]()
        await _left(receive)
        raise Gone


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _query(operation: Operation, text: bytes) -> Any:
    return None if operation.query is Nothing else query_of(operation.query, text)


def _failed(error: OciError) -> tuple[int, Answer]:
    # Messages quote input.
    message = error.message if len(error.message) <= _MOST_MESSAGE else error.message[:_MOST_MESSAGE] + "..."
    return error.status, Answer({"code": error.code, "message": message}, dict(error.headers))


def _json(body: Any) -> bytes:
    return body if isinstance(body, bytes) else _encode(body)


async def _drain(scope: Scope) -> None:
    extension = scope.get("extensions", {}).get(DRAIN)
    if extension is not None:
        await extension["drain"]()


async def _send(send: Send, status: int, answer: Answer, content: bytes, request_id: str) -> None:
    headers = [(b"opc-request-id", request_id.encode("latin-1"))]
    if answer.body is not None:
        headers.append(_JSON)
    if status != 204:
        headers.append((b"content-length", b"%d" % len(content)))
    for name, value in answer.headers.items():
        headers.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def open_api(
    service: OciService,
    clusters: VirtualClusters,
    clients: RequestAuthenticator,
    counters: Counters,
    catching_up: CatchingUp | None,
    peers: Peers | None,
) -> tuple[OciApp, AppendApp | None]:
    """Return the API and its endpoint for other brokers, or None. Without `catching_up` and `peers` none exist."""
    if catching_up is None or peers is None:
        return OciApp(service, clients, counters), None
    service.puts = router = AppendRouter(peers, clusters, catching_up)
    clusters.services.append_batch = lambda cluster, topic, index, batch: router.put(
        clusters.get(cluster), topic, index, batch
    )
    app = OciApp(service, SealAuthenticator(peers.seals, clients), counters)
    app.groups, app.catching_up = GroupForwarder(peers, clusters), catching_up
    return app, AppendApp(clusters, peers.seals)
