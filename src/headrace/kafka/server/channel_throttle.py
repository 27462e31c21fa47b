"""Throttling of a connection (KIP-219)."""

from collections.abc import Callable

from headrace.broker.runtime.clock import Clock, Timer
from headrace.kafka.server.in_flight_requests import PRODUCE, InFlightRequests
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.request_quota import RequestQuota
from headrace.security.access.principal import ANONYMOUS


def quota_of(context: RequestContext) -> RequestQuota | None:
    """Return the quota accounting of a request, with the bytes of a Produce counted; None: no quota applies."""
    channel = context.channel
    host = channel.client_host if channel.principal is ANONYMOUS else ""
    limits = channel.broker.quotas.limits(channel.principal.name, context.client_id or "", host)
    if limits is None:
        return None
    account = RequestQuota(limits, channel.broker.clock)
    if context.api_key == PRODUCE:
        account.produced(context.size)
    return account


class ChannelThrottle:
    """The throttle timer of a connection."""

    __slots__ = ("_clock", "_ended", "_order", "_over", "_timer", "_until_ms")

    def __init__(self, order: InFlightRequests, clock: Clock, over: Callable[[], None]) -> None:
        self._order = order
        self._clock = clock
        self._over = over
        self._until_ms = 0  # ticks
        self._timer: Timer | None = None
        self._ended = False

    def limit(self, context: RequestContext) -> None:
        """Count a request against the client's quotas."""
        context.account = quota_of(context)
        if context.account is not None and context.account.wait_ms:
            # Later requests wait from now on, not only after the response.
            self.mute(context.account.wait_ms)

    def mute(self, wait_ms: int) -> None:
        """Delay requests for at least `wait_ms` from now, except those of a lost client."""
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
        """Call `end` after a delay."""
        self._timer = self._clock.call_at(self._clock.ticks_ms() + wait_ms, end)

    def end(self) -> None:
        """Cancel the timer of a lost connection."""
        self._ended = True
        self._order.unmute()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
