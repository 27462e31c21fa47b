"""Quota usage of one request (KIP-219).

The response leaves at once, with the throttle time. Then the connection is not served for that time.
"""

from time import perf_counter

from headrace.broker.admin.quotas import ClientLimits
from headrace.broker.runtime.clock import Clock
from headrace.kafka.errors import Code, RequestError

_PERCENT = 100
"""Unit of `request_percentage`: percent of a second of the event loop."""
_MOST_MS = 2**31 - 1
"""`throttle_time_ms` is an int32."""


class RequestQuota:
    """Quota usage of one request."""

    __slots__ = ("_clock", "_limits", "_resumed", "_settled", "_spent", "wait_ms")

    def __init__(self, limits: ClientLimits, clock: Clock) -> None:
        """Start to measure its time, until `pause`."""
        self._limits = limits
        self._clock = clock
        self._settled = False
        self._spent = 0.0
        self._resumed = perf_counter() if limits.requests is not None else 0.0
        self.wait_ms = 0
        """Throttle time."""

    @property
    def most_bytes(self) -> int | None:
        """Maximum useful bytes of a Fetch response, or None."""
        return None if self._limits.fetch is None else int(self._limits.fetch.most)

    def resume(self) -> None:
        """Start to measure."""
        if self._limits.requests is not None:
            self._resumed = perf_counter()

    def pause(self) -> None:
        """Stop to measure."""
        requests = self._limits.requests
        if requests is None or not self._resumed:
            return
        spent = perf_counter() - self._resumed
        self._resumed = 0.0
        if self._settled:
            # The time to write the response counts for the next one.
            requests.add(spent * _PERCENT, self._clock.ticks_ms())
        else:
            self._spent += spent

    def settle(self) -> int:
        """Count the request's time, once, and return the throttle time."""
        requests = self._limits.requests
        if requests is not None and not self._settled:
            if self._resumed:
                now = perf_counter()
                self._spent += now - self._resumed
                self._resumed = now
            self._settled = True
            most_ms = requests.window_ms
            self._wait(requests.charge(self._spent * _PERCENT, self._clock.ticks_ms(), most_ms))
        return self.wait_ms

    def produced(self, size: int) -> int:
        """Count bytes of a Produce, and return the throttle time."""
        if self._limits.produce is not None:
            self._wait(self._limits.produce.charge(size, self._clock.ticks_ms()))
        return self.wait_ms

    def fetched(self, size: int) -> bool:
        """Count bytes of a Fetch response, and return whether it must be empty."""
        if self.settle():
            return True
        if self._limits.fetch is not None:
            wait_ms, handed_out = self._limits.fetch.charge_unless_late(size, self._clock.ticks_ms())
            self._wait(wait_ms)
            return not handed_out
        return False

    def change(self, partitions: int, *, strict: bool) -> None:
        """Count partitions before their creation or deletion.

        If `strict` (KIP-599), raise RequestError THROTTLING_QUOTA_EXCEEDED without counting.
        """
        if self._limits.mutations is not None:
            wait_ms, allowed = self._limits.mutations.charge(partitions, self._clock.ticks_ms(), strict=strict)
            self._wait(wait_ms)
            if not allowed:
                raise RequestError(Code.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")

    def _wait(self, wait_ms: int) -> None:
        self.wait_ms = max(self.wait_ms, min(wait_ms, _MOST_MS))
