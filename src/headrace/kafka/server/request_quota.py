"""What one request counts against the quotas of its client, and how long that client waits behind its answer (KIP-219).

The answer leaves at once, with the time in it; nothing more is served on that connection until the time is over.
"""

from time import perf_counter

from headrace.broker.admin.quotas import ClientLimits
from headrace.broker.runtime.clock import Clock
from headrace.kafka.errors import Code, RequestError

_PERCENT = 100
"""Of a second of the event loop: what `request_percentage` counts in."""
_MOST_MS = 2**31 - 1
"""`throttle_time_ms` is an int32."""


class RequestQuota:
    """One request of a client for whom quotas hold."""

    __slots__ = ("_clock", "_limits", "_resumed", "_settled", "_spent", "wait_ms")

    def __init__(self, limits: ClientLimits, clock: Clock) -> None:
        """Begin to count its time, until `pause`."""
        self._limits = limits
        self._clock = clock
        self._settled = False
        self._spent = 0.0
        self._resumed = perf_counter() if limits.requests is not None else 0.0
        self.wait_ms = 0
        """How long the client waits."""

    @property
    def most_bytes(self) -> int | None:
        """The largest answer to a Fetch that is worth reading; None: any."""
        return None if self._limits.fetch is None else int(self._limits.fetch.most)

    def resume(self) -> None:
        """The request is being worked on."""
        if self._limits.requests is not None:
            self._resumed = perf_counter()

    def pause(self) -> None:
        """The request waits, or it is through."""
        requests = self._limits.requests
        if requests is None or not self._resumed:
            return
        spent = perf_counter() - self._resumed
        self._resumed = 0.0
        if self._settled:
            # What writing the answer took counts for the next one.
            requests.add(spent * _PERCENT, self._clock.ticks_ms())
        else:
            self._spent += spent

    def settle(self) -> int:
        """Count the time that the request took, once; how long the client waits."""
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
        """Count a Produce of so many bytes; how long the client waits."""
        if self._limits.produce is not None:
            self._wait(self._limits.produce.charge(size, self._clock.ticks_ms()))
        return self.wait_ms

    def fetched(self, size: int) -> bool:
        """Count an answer of so many bytes; whether it is to be empty, since its client has to wait before it."""
        if self.settle():
            return True
        if self._limits.fetch is not None:
            wait_ms, handed_out = self._limits.fetch.charge_unless_late(size, self._clock.ticks_ms())
            self._wait(wait_ms)
            return not handed_out
        return False

    def change(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that are to be created or deleted.

        Args:
            partitions: how many.
            strict: whether the client knows that it may be refused (KIP-599).

        Raises:
            RequestError: THROTTLING_QUOTA_EXCEEDED, and nothing is counted.
        """
        if self._limits.mutations is not None:
            wait_ms, allowed = self._limits.mutations.charge(partitions, self._clock.ticks_ms(), strict=strict)
            self._wait(wait_ms)
            if not allowed:
                raise RequestError(Code.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")

    def _wait(self, wait_ms: int) -> None:
        self.wait_ms = max(self.wait_ms, min(wait_ms, _MOST_MS))
