"""Measure rates and compute throttle times. Pure.

As in Kafka, a `Rate` measures windows of time, and a `TokenBucket` holds the remaining allowance.
"""

import math

_MS = 1000
_LARGEST = 2.0**53


class Windows:
    """`quota.window.num` windows of `quota.window.size.seconds`."""

    __slots__ = ("count", "length_ms")

    def __init__(self, count: int, length_s: int) -> None:
        self.count = count
        self.length_ms = length_s * _MS

    @property
    def most(self) -> float:
        """Seconds for which an idle client may burst."""
        return (self.count - 1) * self.length_ms / _MS


class _Sample:
    __slots__ = ("amount", "began_ms", "last_ms")

    def __init__(self, ticks_ms: int) -> None:
        self.begin(ticks_ms)

    def begin(self, ticks_ms: int) -> None:
        self.began_ms = self.last_ms = ticks_ms
        self.amount = 0.0


class Rate:
    """Amounts of the last windows, as Kafka's `Rate` over a `WindowedSum` (KIP-13, KIP-219).

    A window begins with the first amount after the previous one, and expires after the length of all windows without a
    change. The rate is the total divided by the time since the oldest window began, but at least all windows but one.
    So a new client is not measured over a fraction of a second.
    """

    __slots__ = ("_at", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._at = 0

    def add(self, amount: float, ticks_ms: int) -> None:
        """Count an amount."""
        if not self._samples:
            self._samples.append(_Sample(ticks_ms))
        sample = self._samples[self._at]
        if ticks_ms - sample.began_ms >= self._windows.length_ms:
            sample = self._next(ticks_ms)
        sample.amount += amount
        sample.last_ms = ticks_ms

    def _next(self, ticks_ms: int) -> _Sample:
        self._at = (self._at + 1) % (self._windows.count + 1)
        if self._at == len(self._samples):
            self._samples.append(_Sample(ticks_ms))
        else:
            self._samples[self._at].begin(ticks_ms)
        return self._samples[self._at]

    def measured(self, ticks_ms: int) -> tuple[float, int]:
        """Return the rate per second, and the ms over which it was measured."""
        windows = self._windows
        expired_ms = ticks_ms - windows.count * windows.length_ms
        total, began_ms = 0.0, ticks_ms
        for sample in self._samples:
            if sample.last_ms <= expired_ms:
                sample.begin(ticks_ms)
            total += sample.amount
            began_ms = min(began_ms, sample.began_ms)
        over_ms = ticks_ms - began_ms
        missing = windows.count - 1 - over_ms // windows.length_ms
        over_ms = max(over_ms + max(missing, 0) * windows.length_ms, 1)
        return total * _MS / over_ms, over_ms

    def wait_ms(self, limit: float, ticks_ms: int) -> int:
        """Return the ms until the rate is within the limit per second without more use.

        For rate O over W ms and limit T this is the X with O * W / (W + X) = T: (O - T) / T * W.
        """
        rate, over_ms = self.measured(ticks_ms)
        return 0 if rate <= limit else round_half_up((rate - limit) / limit * over_ms)


class TokenBucket:
    """Tokens that refill evenly. The last request may overdraw them.

    Counted in thousandths, so that whole rates and milliseconds give whole numbers.
    """

    __slots__ = ("_left", "_seen_ms", "burst", "rate")

    def __init__(self, rate: float, burst: float, ticks_ms: int) -> None:
        """Create a full bucket."""
        self.rate = rate
        self.burst = burst
        self._left = burst * _MS
        self._seen_ms = ticks_ms

    def left(self, ticks_ms: int) -> float:
        """Return the tokens, negative if overdrawn."""
        passed = max(0, ticks_ms - self._seen_ms)
        self._seen_ms = max(self._seen_ms, ticks_ms)
        self._left = min(self.burst * _MS, self._left + passed * self.rate)
        return self._left / _MS

    def take(self, tokens: float, ticks_ms: int) -> None:
        """Take tokens, even if too few are left."""
        self.left(ticks_ms)
        self._left -= tokens * _MS

    def wait_ms(self, ticks_ms: int) -> int:
        """Return the ms until it is no longer overdrawn."""
        left = self.left(ticks_ms)
        return 0 if left >= 0 else round_half_up(-left / self.rate * _MS)

    def empty_ms(self, ticks_ms: int) -> int:
        """Return the ms until it is not empty."""
        return 0 if self.left(ticks_ms) > 0 else int(-self._left // self.rate) + 1

    def is_idle(self, ticks_ms: int) -> bool:
        """Return whether it is full, so that it can be dropped."""
        return self.left(ticks_ms) >= self.burst


def round_half_up(number: float) -> int:
    """Round as Java's Math.round, to at most 2**53."""
    return math.floor(min(number, _LARGEST) + 0.5)
