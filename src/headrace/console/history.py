"""The history of one figure in three resolutions, for charts. Pure.

The finest values are samples. Coarser ones combine all samples of their interval: means of rates, and maxima of
gauges, so that a short peak stays visible. A history takes 3.4 kB at most, for as long as the server runs.
"""

from array import array
from math import isnan

import msgspec

NAN = float("nan")


class ChartRange(msgspec.Struct, frozen=True):
    """A period that charts can show."""

    name: str
    """Its value in URLs."""
    label: str
    step_ms: int
    """Time between two values."""
    kept: int
    """Number of values."""


EVERY_MS = 2_000
"""Time between samples."""
RANGES = (
    ChartRange("10m", "10 minutes", EVERY_MS, 300),
    ChartRange("2h", "2 hours", 30_000, 240),
    ChartRange("24h", "24 hours", 300_000, 288),
)
"""The finest first."""


def chart_range(name: str) -> ChartRange:
    """Return the range of this name, or the finest one."""
    return next((each for each in RANGES if each.name == name), RANGES[0])


class Ring:
    """The last `kept` values, with the precision of C's float."""

    __slots__ = ("_at", "_kept", "_values")

    def __init__(self, kept: int) -> None:
        self._values = array("f")
        self._kept = kept
        self._at = 0

    def add(self, value: float) -> None:
        """Add a value and drop the oldest one."""
        if len(self._values) < self._kept:
            self._values.append(value)
        else:
            self._values[self._at] = value
            self._at = (self._at + 1) % self._kept

    def last(self, count: int | None = None) -> "array[float]":
        """Return at most `count` values, the newest last."""
        values = self._values
        whole = values[self._at :] + values[: self._at] if self._at else values[:]
        return whole if count is None else whole[-count:]


class _Coarse:
    """Combined values of one resolution, and the interval that has not ended."""

    __slots__ = ("_interval", "_peak", "_ring", "_samples", "_step_ms", "_total")

    def __init__(self, step_ms: int, kept: int, *, peak: bool) -> None:
        self._ring = Ring(kept)
        self._step_ms = step_ms
        self._peak = peak
        self._interval = -1
        self._samples = 0
        self._total = 0.0

    def add(self, value: float, at_ms: int, kept: int) -> None:
        interval = at_ms // self._step_ms
        if interval != self._interval:
            if self._interval >= 0:
                self._ring.add(self._now)
                # Intervals without a sample, for example while the machine was suspended.
                for _ in range(min(interval - self._interval - 1, kept)):
                    self._ring.add(NAN)
            self._interval = interval
            self._samples, self._total = 0, 0.0
        if not isnan(value):
            self._total = max(self._total, value) if self._peak else self._total + value
            self._samples += 1

    @property
    def _now(self) -> float:
        if not self._samples:
            return NAN
        return self._total if self._peak else self._total / self._samples

    def last(self) -> "array[float]":
        values = self._ring.last()
        values.append(self._now)
        return values


class History:
    """One figure over time."""

    __slots__ = ("_coarse", "_recent", "now")

    def __init__(self, *, peak: bool = False) -> None:
        """Start empty. With `peak`, coarse values are the maxima of their intervals, else the means."""
        self.now = NAN
        """The newest value, or NaN."""
        self._recent = Ring(RANGES[0].kept)
        self._coarse = tuple(_Coarse(each.step_ms, each.kept, peak=peak) for each in RANGES[1:])

    def add(self, value: float, at_ms: int) -> None:
        """Add a sample of a monotonic time."""
        self.now = value
        self._recent.add(value)
        for each, shown in zip(self._coarse, RANGES[1:], strict=True):
            each.add(value, at_ms, shown.kept)

    def last(self, count: int | None = None) -> "array[float]":
        """Return at most `count` samples, the newest last."""
        return self._recent.last(count)

    def over(self, shown: ChartRange) -> "array[float]":
        """Return the values of a range, the newest last. It may be of an interval that has not ended."""
        place = RANGES.index(shown)
        return self._recent.last() if not place else self._coarse[place - 1].last()[-shown.kept :]
