"""Measure rates and compute delays for all limits. Pure.

Two kinds, as in Kafka. A `Rate` measures over windows of time, and returns the delay until its limit holds again. A
`TokenBucket` holds what may still be used.
"""

import math

_MS = 1000
_LARGEST = 2.0**53


class Windows:
    """Over how long a `Rate` measures: `quota.window.num` windows of `quota.window.size.seconds`."""

    __slots__ = ("count", "length_ms")

    def __init__(self, count: int, length_s: int) -> None:
        self.count = count
        self.length_ms = length_s * _MS

    @property
    def most(self) -> float:
        """Return the seconds for which an idle client may burst."""
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

    A window begins with the first amount after the previous window, and counts until it was unchanged for the length of
    all windows. One more window may overlap that time. The rate is the total divided by the time since the oldest
    window began, which is at least all windows but one. A new client is therefore not measured by a fraction of a
    second.
    """

    __slots__ = ("_at", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        """Nothing was done."""
        self._windows = windows
        self._samples: list[_Sample] = []
        self._at = 0

    def add(self, amount: float, ticks_ms: int) -> None:
        """Count an amount that was used at this time."""
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
        """What was done per second, and the milliseconds over which that is."""
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
        """How long until the rate is within a limit per second if nothing more is done; 0: it is.

        With a rate of O over W ms and a limit of T it is the X for which O * W / (W + X) = T: (O - T) / T * W.
        """
        rate, over_ms = self.measured(ticks_ms)
        return 0 if rate <= limit else round_half_up((rate - limit) / limit * over_ms)


class TokenBucket:
    """Tokens that refill evenly. The last request may overdraw them.

    Counted in thousandths, so that whole rates and milliseconds give whole numbers.
    """

    __slots__ = ("_left", "_seen_ms", "burst", "rate")

    def __init__(self, rate: float, burst: float, ticks_ms: int) -> None:
        """Full.

        Args:
            rate: tokens per second.
            burst: what it holds at most.
            ticks_ms: milliseconds, from anywhere, never going back.
        """
        self.rate = rate
        self.burst = burst
        self._left = burst * _MS
        self._seen_ms = ticks_ms

    def left(self, ticks_ms: int) -> float:
        """Tokens that are there, below 0 where it is overdrawn."""
        passed = max(0, ticks_ms - self._seen_ms)
        self._seen_ms = max(self._seen_ms, ticks_ms)
        self._left = min(self.burst * _MS, self._left + passed * self.rate)
        return self._left / _MS

    def take(self, tokens: float, ticks_ms: int) -> None:
        """Take tokens, even if too few are left."""
        self.left(ticks_ms)
        self._left -= tokens * _MS

    def wait_ms(self, ticks_ms: int) -> int:
        """How long until it is not overdrawn any more; 0: it is not."""
        left = self.left(ticks_ms)
        return 0 if left >= 0 else round_half_up(-left / self.rate * _MS)

    def empty_ms(self, ticks_ms: int) -> int:
        """How long until there is something in it; 0: there is."""
        return 0 if self.left(ticks_ms) > 0 else int(-self._left // self.rate) + 1

    def is_idle(self, ticks_ms: int) -> bool:
        """Whether it might as well be forgotten."""
        return self.left(ticks_ms) >= self.burst


def round_half_up(number: float) -> int:
    """To the nearest whole number, halves up, as Java's Math.round; what is too large for one is 2**53."""
    return math.floor(min(number, _LARGEST) + 0.5)
