"""One request and its answer: what a handler needs to know of both."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.groups.effects import Result
from headrace.groups.events import Request
from headrace.kafka.server.login import Login
from headrace.kafka.server.request_quota import RequestQuota
from headrace.metrics.counters import ListenerCounters
from headrace.protocol.headers import encode_response_header
from headrace.protocol.messages import RESPONSES
from headrace.protocol.response_errors import FINDERS, FINDERS_IN_PIECES
from headrace.security.access.principal import Principal
from headrace.text.addresses import is_everywhere

_SIZE = Struct(">i")
_WORTH_COUNTING = 256 << 10
T = TypeVar("T")


class VersionRange(Protocol):
    """The versions of an API that a listener serves."""

    @property
    def oldest(self) -> int:
        """The first one that is advertised."""

    @property
    def newest(self) -> int:
        """The last one."""


class ResponseChannel(Protocol):
    """Where finished answers go: the connection, or a list in a test."""

    broker: Broker
    """The virtual cluster that this connection is for; a login may choose another."""
    login: Login
    principal: Principal
    """Who is at the other end, as far as a login has told."""
    client_host: str
    local_host: str
    """The address of ours that the client connected to."""
    listener_name: str
    served: Mapping[int, VersionRange]
    """The APIs that this listener serves, by key."""
    counted: ListenerCounters
    """What this listener's connections count together."""
    fetches: int
    """How many Fetch requests it has sent."""

    def finished(self, context: "RequestContext") -> None:
        """A request of this connection has its answer: send what is due, in request order."""

    def ended(self, context: "RequestContext") -> None:
        """What a request asked for is through, after its answer or after its client."""

    def enter(self, admitted: Admitted, by: str) -> None:
        """Somebody logged in, by a mechanism."""

    def hold_up(self, context: "RequestContext") -> None:
        """Serve nothing that was sent behind this request before it has its answer."""

    @property
    def is_busy(self) -> bool:
        """Whether what another request asked for is still under way."""

    def park(self, context: "RequestContext", more: int) -> bool:
        """Count a request that waits for something else than the server, as `RequestContext.may_wait`."""

    def took_long(self) -> None:
        """The request being served may take longer than most, as whose records are gone through: look at the clock."""

    def mute(self, wait_ms: int) -> None:
        """Serve nothing more for so long: the client was told to wait."""

    def close(self, reason: str, *, expected: bool = False) -> None:
        """Drop the connection, with a line in the log; one for who looks closely where that is `expected`."""


class Late(Protocol):
    """What becomes of a request whose answer takes too long."""

    @property
    def stays(self) -> bool:
        """Whether what it asked for lies in memory until storage has answered, also where its client is gone."""

    def due_ms(self, context: "RequestContext") -> int | None:
        """When it is answered at the latest (ticks); None: it waits for something else than storage."""

    def answer(self, context: "RequestContext") -> None:
        """Answer that it takes too long."""


class RequestContext(msgspec.Struct, eq=False):
    """A request under way. It is answered exactly once, in any order; the outlet sends in request order.

    The answer may be that it takes too long (`give_up`): what it asked for goes on, and is counted until it is through.
    """

    channel: ResponseChannel
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size: int
    """Bytes of the request, held while it is under way."""
    began: float = 0.0
    """When it was taken up, by `time.perf_counter`."""
    owned: bool = False
    """Whether views into the request stay valid: its frame has memory of its own."""
    done: bool = False
    chunks: list[Any] = []
    cancel: Any = None
    """Called when the connection is lost before the answer."""
    alone: bool = False
    """Whether what was sent behind it waits for its answer."""
    held: int = 0
    """Bytes of the broker's budget for reads that the answer is counted with until it has left."""
    answered: int = 0
    """Bytes of the answer, where it is worth counting."""
    account: RequestQuota | None = None
    """What it counts against quotas; None: none hold for its client."""
    taken_out: int = 0
    """Parts of the request that its handler does not see: they are refused."""
    amend: Callable[[Any], Iterator[None]] | None = None
    """Makes the answer, step by step, what its principal may see, with what was refused."""
    late: Late | None = None
    """None: it waits however long it takes, unless its class says otherwise."""
    seen_ms: int = -1
    """When it was first seen to wait (ticks); -1: it was not."""
    large: bool = False
    """Whether it is one of the large requests that are read and answered now."""
    parked: int = 0
    """Bytes that it is counted with while it waits for something else than the server."""
    kept: int = 0
    """Bytes that are counted until what it asked for is through, whatever has become of its answer."""

    @property
    def broker(self) -> Broker:
        """The broker behind this listener."""
        return self.channel.broker

    async def reserve(self, size: int) -> None:
        """Count an answer of about so many bytes, before it is made and until it has left; wait where there is no room.

        Small ones are not worth it. Once per answer: who holds some of the budget while waiting for more of it could
        wait for itself, and everybody else with it.
        """
        assert not self.held, "this answer is counted already"
        if size >= _WORTH_COUNTING:
            self.held += await self.channel.broker.reads.acquire(size, size)

    async def reserve_parts(self, sizes: Mapping[str, int]) -> set[str]:
        """As `reserve`, for an answer in parts, such as groups, that may be more than the whole budget together.

        Args:
            sizes: bytes that each part takes, about.

        Returns:
            The parts to answer, as many of the first ones as there is room for; the others are to be refused.
        """
        room = self.channel.broker.reads.limit
        total = 0
        fitting: set[str] = set()
        for name, size in sizes.items():
            # One part alone may be larger: nothing could be told of it else.
            if fitting and total + size > room:
                break
            total += size
            fitting.add(name)
        await self.reserve(total)
        return fitting

    async def ask_group(self, group: str, event: Request) -> Result:
        """Send a request to a group and wait for its result.

        Where this request is given up before the group is loaded it is not sent any more: its client may have asked for
        something else since, and that may come to the group first.
        """
        return await self.broker.groups.request(group, event, lambda: self.done)

    def pace(self) -> TimeSlice:
        """Takes turns with other requests, for work that may be long."""
        return self.channel.broker.lane.pace()

    async def turn(self) -> None:
        """Wait for a turn: what comes takes milliseconds that are not cut, and many may ask for it at once."""
        await self.channel.broker.lane.turn()

    async def parts(self, items: Iterable[T]) -> AsyncIterator[T]:
        """As `pace().each`, until the request is given up: its client may have asked for something else since."""
        async for item in self.pace().each(items):
            if self.done:
                break
            yield item

    @property
    def stays(self) -> bool:
        """As `Late.stays`, as long as that is what it waits for."""
        return self.late is not None and self.late.stays and self.late.due_ms(self) is not None

    def may_wait(self, more: int = 0) -> bool:
        """Whether it may wait for something else than the server for as long as it likes: too much does already.

        It is counted until it is answered, whatever this says. `more`: bytes that it takes beside those that came.
        """
        return not self.done and self.channel.park(self, more)

    def due_ms(self) -> int | None:
        """As `Late.due_ms`."""
        return None if self.late is None else self.late.due_ms(self)

    def give_up(self) -> None:
        """Answer that it takes too long."""
        if self.late is not None:
            self.late.answer(self)

    @property
    def principal(self) -> Principal:
        """The principal that sent the request."""
        return self.channel.principal

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and port to tell this client. A listener on every address tells the one the client came by."""
        host, port = self.channel.broker.advertised[self.channel.listener_name]
        return (self.channel.local_host if is_everywhere(host) else host), port

    @property
    def nodes(self) -> list[tuple[int, str, int]]:
        """Node id, host and port of every broker that is alive, by node id: of its listener of the same name."""
        broker = self.channel.broker
        own = (broker.node_id, *self.advertised)
        others = ((each.node_id, each.at(self.channel.listener_name)) for each in broker.ownership.others)
        return sorted([own, *((node_id, *place) for node_id, place in others if place is not None)])

    def count_change(self, partitions: int, *, strict_from: int | None) -> None:
        """Count partitions that are about to be created or deleted against `controller_mutation_rate` (KIP-599).

        `strict_from`: the version from which on clients know that they may be refused; None: they never do.

        Raises:
            RequestError: THROTTLING_QUOTA_EXCEEDED.
        """
        if self.account is not None:
            self.account.change(partitions, strict=strict_from is not None and self.version >= strict_from)

    def changed(self, what: str) -> None:
        """Have the log tell of something that this request has changed, such as `topic orders created`."""
        audit, operation = self.broker.access.audit, RESPONSES[self.api_key].__name__.removesuffix("Response")
        audit.changed(str(self.principal), self.channel.client_host, operation, what, request=self.correlation_id)

    async def all_changed(self, what: Iterable[str]) -> None:
        """As `changed` of each, letting others go first; to the end, also where the client is gone meanwhile."""

        async def tell() -> None:
            async for each in self.pace().each(what):
                self.changed(each)

        await to_the_end(tell())

    def answer(self, response: Any, version: int | None = None) -> None:
        """Encode and send. `version` differs from the request's only for an ApiVersions refusal (KIP-511)."""
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
        """As `answer`, letting others go first while a long answer is encoded."""
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
        """Tell the client how long it has to wait, and see to it that it does."""
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
        """The request is done and has no answer: Produce with acks=0."""
        self.finish([])
        if self.taken_out:
            self.channel.close("acks=0 and a topic was refused")

    def finish(self, chunks: list[Any]) -> None:
        """The answer as it leaves, in pieces: a whole frame with its size."""
        if self.done:  # it was given up
            self.channel.ended(self)
            return
        self.chunks = chunks
        self.done = True
        self.cancel = None
        self.channel.finished(self)
