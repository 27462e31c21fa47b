"""How long one connection is not served: its client has used up a quota (KIP-219)."""

from collections.abc import Callable

from headrace.broker.runtime.clock import Clock, Timer
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.request_quota import RequestQuota
from headrace.kafka.server.in_flight_requests import PRODUCE, InFlightRequests
from headrace.security.access.principal import ANONYMOUS


class ChannelThrottle:
    """The one timer of a connection that has to wait."""

    __slots__ = ("_clock", "_ended", "_order", "_over", "_timer", "_until_ms")

    def __init__(self, order: InFlightRequests, clock: Clock, over: Callable[[], None]) -> None:
        """Nobody has to wait yet.

        Args:
            order: the connection's, which puts requests off meanwhile.
            clock: the time.
            over: goes on with what was put off.
        """
        self._order = order
        self._clock = clock
        self._over = over
        self._until_ms = 0  # ticks
        self._timer: Timer | None = None
        self._ended = False

    def limit(self, context: RequestContext) -> None:
        """Have a request count against the quotas that hold for its client."""
        channel = context.channel
        host = channel.client_host if channel.principal is ANONYMOUS else ""
        limits = channel.broker.quotas.limits(channel.principal.name, context.client_id or "", host)
        if limits is None:
            return
        context.account = RequestQuota(limits, self._clock)
        if context.api_key == PRODUCE and (wait_ms := context.account.produced(context.size)):
            # What is sent behind it waits already now: much more could be under way before its answer is there.
            self.mute(wait_ms)

    def mute(self, wait_ms: int) -> None:
        """Put requests off for so long from now, or for as long as was said before if that is longer.

        Not those of a client that has left: they count for its next connections, and wait for nothing in memory.
        """
        if self._ended:
            return
        self._until_ms = max(self._until_ms, self._clock.ticks_ms() + wait_ms)
        self._order.mute()
        if self._timer is None:
            self._timer = self._clock.call_at(self._until_ms, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._clock.ticks_ms() < self._until_ms:
            self._timer = self._clock.call_at(self._until_ms, self._look)
            return
        self._order.unmute()
        self._over()

    def then(self, wait_ms: int, end: Callable[[], None]) -> None:
        """Do something else after that time: this connection is never served."""
        self._timer = self._clock.call_at(self._clock.ticks_ms() + wait_ms, end)

    def end(self) -> None:
        """Call off whatever was to come: the connection is gone."""
        self._ended = True
        self._order.unmute()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
