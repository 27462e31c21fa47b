"""Kafka requests from within the server, for example by the web console.

A request takes the same path as one that a listener receives: decoding, ACLs, restriction, quotas, handler, timeout and
audit log. The bytes are encoded and decoded, so that a caller can send nothing that a client could not.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from headrace.aio.tasks import close_with, counted, unheard
from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted
from headrace.broker.runtime.clock import pause
from headrace.kafka import apis
from headrace.kafka.server.authorization import serve
from headrace.kafka.server.channel_throttle import quota_of
from headrace.kafka.server.cleanups import Cleanups
from headrace.kafka.server.frames import NotServed, decode_request
from headrace.kafka.server.login import Login
from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import NUMBERS, RequestContext, VersionRange
from headrace.kafka.server.restriction import Restriction
from headrace.kafka.server.timeout_responses import TimeoutResponses, overdue_among
from headrace.kafka.server.timeouts import SWEEP_MS
from headrace.metrics.counters import ListenerCounters
from headrace.protocol.headers import decode_response_header, encode_request_header
from headrace.protocol.message import Message
from headrace.protocol.messages import RESPONSES
from headrace.security.access.principal import Principal

_MOST_THROTTLE_MS = 30_000
"""Longest delay of a response to a client that exceeds a quota."""
_SIZE_BYTES = 4


class _Channel:
    """`ResponseChannel` of one request."""

    def __init__(
        self, broker: Broker, principal: Principal, host: str, listener: ListenerCounters, served: Mapping[int, Api]
    ) -> None:
        self.broker = broker
        self.login = Login(None)
        self.principal = principal
        self.client_host = host
        self.local_host = host
        self.listener_name = next(iter(broker.advertised), "")
        self.served: Mapping[int, VersionRange] = served
        self.counted = listener
        self.fetches = 0
        self.throttle_ms = 0
        self.software = ""
        self.cleanups = Cleanups()
        self.number = next(NUMBERS)
        self.failure = ""
        self.answered = asyncio.Event()

    def finished(self, context: RequestContext) -> None:
        """See `ResponseChannel.finished`."""
        self.answered.set()
        self.ended(context)

    def ended(self, context: RequestContext) -> None:
        """See `ResponseChannel.ended`."""
        held, context.held = context.held, 0
        self.broker.reads.release(held)

    def enter(self, admitted: Admitted, by: str) -> None:
        """Raise AssertionError: the caller has authenticated the principal."""
        raise AssertionError("a request of this process does not log in")

    def hold_up(self, context: RequestContext) -> None:
        """Do nothing: the channel has no later requests."""

    @property
    def is_busy(self) -> bool:
        """See `ResponseChannel.is_busy`."""
        return False

    def park(self, context: RequestContext, more: int) -> bool:
        """See `ResponseChannel.park`."""
        return True

    def took_long(self) -> None:
        """Do nothing: the channel has no later requests."""

    def mute(self, wait_ms: int) -> None:
        """See `ResponseChannel.mute`. The response is delayed instead, as the next request has its own channel."""
        self.throttle_ms = max(self.throttle_ms, wait_ms)

    def close(self, reason: str, *, expected: bool = False) -> None:
        """End the request without a response."""
        self.failure = reason
        self.answered.set()


class InProcessClient:
    """Sends requests to the brokers of this process."""

    def __init__(self, client_id: str, restriction: Restriction | None = None) -> None:
        """`client_id`: as in requests of other clients, for quotas. `restriction`: that of the listeners."""
        apis.load()
        self._client_id = client_id
        self._served: Mapping[int, Api] = APIS if restriction is None else restriction.served()
        self._reason = "" if restriction is None else restriction.reason
        self._counted = ListenerCounters(client_id, {key: api.name for key, api in APIS.items()}, {})
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel requests that are still being served."""
        for task in self._tasks:
            task.cancel()

    async def send(self, request: Message, broker: Broker, principal: Principal, host: str) -> Any:
        """Serve a request in its newest version and return the response.

        Raises:
            NotServed: the request is malformed, or the restriction withholds its API.
            EncodeError: a value does not fit its field.
        """
        api = self._served.get(request.API_KEY)
        if api is None:
            raise NotServed(f"This server does not support {APIS[request.API_KEY].name} ({self._reason})")
        version = api.newest
        channel = _Channel(broker, principal, host, self._counted, self._served)
        head = encode_request_header(request.API_KEY, version, 0, self._client_id)
        # Writable: the log keeps the bytes of record batches, and writes offsets into them.
        frame = bytearray(b"".join([head, *request.encode(version)]))
        api, context, decoded = decode_request(memoryview(frame), channel, self._served)
        context.owned = True
        if api.bound is not None:
            context.late = TimeoutResponses(api, api.bound, decoded)
        context.account = quota_of(context)
        try:
            self._serve(api, decoded, context)
            await self._answered(channel, context)
        finally:
            channel.cleanups.run()
        if channel.throttle_ms:
            await pause(broker.clock, min(channel.throttle_ms, _MOST_THROTTLE_MS))
        body = b"".join(context.chunks)
        _, position = decode_response_header(body, _SIZE_BYTES, context.api_key, context.version)
        return RESPONSES[context.api_key].decode(body, position, context.version)

    def _serve(self, api: Api, request: Any, context: RequestContext) -> None:
        broker, account = context.broker, context.account
        grants = broker.access.grants(context.principal, context.channel.client_host, broker.cluster)
        later = api.handler(request, context) if grants is None else serve(api, request, context, grants)
        if account is not None:
            account.pause()
        if later is None:
            return
        task = asyncio.get_running_loop().create_task(_complete(later, context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        unheard(task)
        close_with(task, later)

    async def _answered(self, channel: _Channel, context: RequestContext) -> None:
        """Wait for the response, or respond with a timeout as a listener does. The work continues."""
        while not channel.answered.is_set():
            try:
                async with asyncio.timeout(SWEEP_MS / 1000):
                    await channel.answered.wait()
            except TimeoutError:
                for overdue in overdue_among([context], channel.broker.clock.ticks_ms()):
                    overdue.give_up()
        if channel.failure:
            raise RuntimeError(channel.failure)


async def _complete(later: Coroutine[Any, Any, Any], context: RequestContext) -> None:
    account = context.account
    try:
        response = await (later if account is None else counted(later, account.resume, account.pause))
        if response is not None and not context.done:
            await context.answer_in_pieces(response)
    except BaseException as error:
        context.channel.close(f"{APIS[context.api_key].name} failed: {error!r}")
        raise
    finally:
        context.channel.ended(context)
