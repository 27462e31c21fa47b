"""A request and its response, for handlers."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import count
from struct import Struct
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.groups.effects import Result
from headrace.groups.events import Request
from headrace.kafka.server.cleanups import Cleanups
from headrace.kafka.server.login import Login
from headrace.kafka.server.request_quota import RequestQuota
from headrace.metrics.counters import ListenerCounters
from headrace.protocol.headers import encode_response_header
from headrace.protocol.messages import RESPONSES
from headrace.protocol.response_errors import FINDERS, FINDERS_IN_PIECES
from headrace.security.access.principal import Principal
from headrace.text.addresses import is_everywhere
from headrace.transactions.effects import Result as TransactionResult
from headrace.transactions.events import Request as TransactionRequest

_SIZE = Struct(">i")
_WORTH_COUNTING = 256 << 10
T = TypeVar("T")


class VersionRange(Protocol):
    """Versions of an API that a listener serves."""

    @property
    def oldest(self) -> int:
        """First advertised version."""

    @property
    def newest(self) -> int:
        """Last advertised version."""


NUMBERS = count(1)
"""Numbers of connections: a later one has a higher number."""


class ResponseChannel(Protocol):
    """Destination of responses: a connection, or a list in a test."""

    number: int
    """The next one of `NUMBERS` when the client connected."""
    broker: Broker
    """Virtual cluster of the connection; a login may change it."""
    login: Login
    principal: Principal
    """Principal of the connection."""
    client_host: str
    local_host: str
    """Local address that the client connected to."""
    listener_name: str
    served: Mapping[int, VersionRange]
    """APIs that this listener serves, by key."""
    counted: ListenerCounters
    """Counters of the listener."""
    fetches: int
    """Number of Fetch requests received."""
    software: str
    """Name and version of the client library; empty: unknown."""
    cleanups: Cleanups
    """Called when the connection is lost."""

    def finished(self, context: "RequestContext") -> None:
        """Send due responses in request order."""

    def ended(self, context: "RequestContext") -> None:
        """Release the memory of a request that completed after its response."""

    def enter(self, admitted: Admitted, by: str) -> None:
        """Set principal and virtual cluster after a login."""

    def hold_up(self, context: "RequestContext") -> None:
        """Delay later requests until this one has its response."""

    @property
    def is_busy(self) -> bool:
        """Whether another request is in flight."""

    def park(self, context: "RequestContext", more: int) -> bool:
        """Count a waiting request, see `RequestContext.may_wait`."""

    def took_long(self) -> None:
        """Check the clock after this request."""

    def mute(self, wait_ms: int) -> None:
        """Serve no requests for the throttle time `wait_ms`."""

    def close(self, reason: str, *, expected: bool = False) -> None:
        """Log the reason, at debug level if `expected`, and close."""


class Late(Protocol):
    """Handling of overdue requests."""

    @property
    def stays(self) -> bool:
        """Whether it occupies memory until storage responds, even without its client."""

    def due_ms(self, context: "RequestContext") -> int | None:
        """Return the deadline (ticks), or None if it does not wait for storage."""

    def answer(self, context: "RequestContext") -> None:
        """Respond with a timeout."""


class RequestContext(msgspec.Struct, eq=False):
    """A request in flight. It is answered exactly once, in any order; the channel sends in request order.

    After a timeout (`give_up`), its work continues.
    """

    channel: ResponseChannel
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size: int
    """Bytes of the request, held while it is in flight."""
    began: float = 0.0
    """Start time by `time.perf_counter`."""
    waited: float = 0.0
    """Seconds of it that it waited for records, which its duration excludes."""
    owned: bool = False
    """Whether views into the request stay valid because its frame has separate memory."""
    done: bool = False
    chunks: list[Any] = []
    cancel: Any = None
    """Called when the connection is lost before the response."""
    alone: bool = False
    """Whether later requests wait for its response."""
    held: int = 0
    """Bytes of the broker's read budget held by the response until it has left."""
    answered: int = 0
    """Bytes of the response, if it is large enough to count."""
    account: RequestQuota | None = None
    """Quota accounting; None: no quota applies."""
    taken_out: int = 0
    """Number of refused parts, removed before the handler runs."""
    amend: Callable[[Any], Iterator[None]] | None = None
    """Hides parts of the response from its principal and adds the refused ones, step by step."""
    late: Late | None = None
    """None: the wait is unlimited unless its class sets a limit."""
    seen_ms: int = -1
    """Time when it was first seen waiting (ticks); -1: never."""
    large: bool = False
    """Whether it is one of the large requests being served."""
    parked: int = 0
    """Bytes counted while it waits for something other than the server."""
    kept: int = 0
    """Bytes counted until its work completes, even after the response."""

    @property
    def broker(self) -> Broker:
        """The channel's broker."""
        return self.channel.broker

    async def reserve(self, size: int) -> None:
        """Wait for about `size` bytes of budget, held until the response has left.

        Call it at most once: a second reservation could deadlock. Skip it for small responses.
        """
        assert not self.held, "this answer is counted already"
        if size >= _WORTH_COUNTING:
            self.held += await self.channel.broker.reads.acquire(size, size)

    async def reserve_parts(self, sizes: Mapping[str, int]) -> set[str]:
        """Reserve memory for the first parts of a response that fit, and return them."""
        room = self.channel.broker.reads.limit
        total = 0
        fitting: set[str] = set()
        for name, size in sizes.items():
            # A single part may exceed the budget.
            if fitting and total + size > room:
                break
            total += size
            fitting.add(name)
        await self.reserve(total)
        return fitting

    async def ask_group(self, group: str, event: Request) -> Result:
        """Send a request to a group and return its result.

        After a timeout before the group is loaded, it is not sent, as later requests could overtake it.
        """
        return await self.broker.groups.request(group, event, lambda: self.done)

    async def ask_transaction(self, transactional_id: str, event: TransactionRequest) -> TransactionResult:
        """Send a request to a transactional ID and return its result. Not after a timeout, as in `ask_group`."""
        return await self.broker.transactions.request(transactional_id, event, lambda: self.done)

    def pace(self) -> TimeSlice:
        """Return a time slice for long work."""
        return self.channel.broker.lane.pace()

    async def turn(self) -> None:
        """Wait for a turn before work that takes milliseconds."""
        await self.channel.broker.lane.turn()

    async def parts(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate as `pace().each`, but stop after a timeout, as later requests could conflict."""
        async for item in self.pace().each(items):
            if self.done:
                break
            yield item

    @property
    def stays(self) -> bool:
        """See `Late.stays`."""
        return self.late is not None and self.late.stays and self.late.due_ms(self) is not None

    def may_wait(self, more: int = 0) -> bool:
        """Count a waiting request and `more` bytes, and return whether it may wait without a limit."""
        return not self.done and self.channel.park(self, more)

    def due_ms(self) -> int | None:
        """See `Late.due_ms`."""
        return None if self.late is None else self.late.due_ms(self)

    def give_up(self) -> None:
        """Respond with a timeout."""
        if self.late is not None:
            self.late.answer(self)

    @property
    def principal(self) -> Principal:
        """The principal of the connection."""
        return self.channel.principal

    @property
    def advertised(self) -> tuple[str, int]:
        """Advertised host and port. A listener on all addresses advertises the one that the client used."""
        host, port = self.channel.broker.advertised[self.channel.listener_name]
        return (self.channel.local_host if is_everywhere(host) else host), port

    @property
    def nodes(self) -> list[tuple[int, str, int]]:
        """Node id, host and port of each live broker, by node id."""
        broker = self.channel.broker
        own = (broker.node_id, *self.advertised)
        others = ((each.node_id, each.at(self.channel.listener_name)) for each in broker.ownership.others)
        return sorted([own, *((node_id, *place) for node_id, place in others if place is not None)])

    def count_change(self, partitions: int, *, strict_from: int | None) -> None:
        """Count partitions against `controller_mutation_rate` (KIP-599) before their creation or deletion.

        From version `strict_from` on, this may raise RequestError THROTTLING_QUOTA_EXCEEDED.
        """
        if self.account is not None:
            self.account.change(partitions, strict=strict_from is not None and self.version >= strict_from)

    def changed(self, what: str) -> None:
        """Log a change by this request."""
        audit, operation = self.broker.access.audit, RESPONSES[self.api_key].__name__.removesuffix("Response")
        audit.changed(str(self.principal), self.channel.client_host, operation, what, request=self.correlation_id)

    async def all_changed(self, what: Iterable[str]) -> None:
        """Log many changes in slices, even if the client leaves."""

        async def tell() -> None:
            async for each in self.pace().each(what):
                self.changed(each)

        await to_the_end(tell())

    def answer(self, response: Any, version: int | None = None) -> None:
        """Encode and send the response; `version` differs only for ApiVersions (KIP-511)."""
        if self.done:
            self.channel.ended(self)
            return
        if self.account is not None:
            self._throttle(self.account, response)
        if self.amend is not None:
            for _ in self.amend(response):
                pass
        body = response.encode(self.version if version is None else version)
        self._send(body, FINDERS[type(response)](response))

    async def answer_in_pieces(self, response: Any) -> None:
        """Encode and send a long response."""
        body: list[Any] = []
        pace = self.broker.lane.pace()
        if self.account is not None:
            self._throttle(self.account, response)
        if self.amend is not None:
            await pace.drain(self.amend(response))
        await pace.drain(response.encode_in_pieces(self.version, body))
        errors: set[int] = set()
        await pace.drain(FINDERS_IN_PIECES[type(response)](response, errors))
        self._send(body, errors)

    def _throttle(self, account: RequestQuota, response: Any) -> None:
        wait_ms = account.settle()
        if wait_ms:
            if "throttle_time_ms" in type(response).__struct_fields__:
                response.throttle_time_ms = wait_ms
            self.channel.mute(wait_ms)

    def _send(self, body: list[Any], errors: set[int] | None) -> None:
        if errors:
            self.channel.counted.apis[self.api_key].failed(errors)
        header = encode_response_header(self.api_key, self.version, self.correlation_id)
        size = len(header) + sum(map(len, body))
        self.answered = _SIZE.size + size
        self.finish([_SIZE.pack(size), header, *body])

    def finish_without_response(self) -> None:
        """End a Produce request with acks=0."""
        self.finish([])
        if self.taken_out:
            self.channel.close("acks=0 and a topic was refused")

    def finish(self, chunks: list[Any]) -> None:
        """End with the chunks of a complete frame, or none."""
        if self.done:  # timed out
            self.channel.ended(self)
            return
        self.chunks = chunks
        self.done = True
        self.cancel = None
        self.channel.finished(self)
