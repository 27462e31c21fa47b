"""Prometheus' text format, version 0.0.4, for as many series as are allowed.

Source: Prometheus documentation, "Exposition formats". All series of a metric stand together, no series twice.
"""

import re
from hashlib import sha256

from headrace.metrics.counters import TICKS, Durations
from headrace.metrics.families import SERIES_EXCESS, Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST_VALUE = 256
_DIGEST = 16
_ODD = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufffd]")
_FIRST, _LAST = 7, 26
_BOUNDS = tuple(repr((1 << slot) / TICKS) for slot in range(_FIRST, _LAST + 1))
"""From an eighth of a millisecond to a minute, each double the last."""
HISTOGRAM_SERIES = len(_BOUNDS) + 3
"""Series of one histogram: a bucket for each bound and one for everything, the sum, and the count."""


def label(value: str) -> str:
    """A label's value, quoted.

    Groups may be called anything: lone surrogates and control characters become U+FFFD and their code, and so does
    U+FFFD itself, so that different names stay different. Very long ones end in a digest.
    """
    tail = ""
    if len(value) > _LONGEST_VALUE:
        # No code begins with `#`: a name that was cut is like no other.
        tail = "\ufffd#" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        value = value[: _LONGEST_VALUE - _DIGEST]
    if _ODD.search(value) is not None:
        value = _ODD.sub(lambda found: f"\ufffd{ord(found[0]):04x}", value)
    return '"' + value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + tail + '"'


def labels(**values: str) -> str:
    """Labels with their braces; those that are empty are left out, which means the same."""
    inside = ",".join(f"{name}={label(value)}" for name, value in values.items() if value)
    return f"{{{inside}}}" if inside else ""


class Exposition:
    """A page under construction."""

    def __init__(self, most_series: int) -> None:
        """Start empty; beyond `most_series` series are only counted."""
        self._parts: list[str] = []
        self._left = most_series
        self._excess = 0
        self._family: Family | None = None
        self._begun: set[str] = set()

    def sample(self, family: Family, value: float, text: str = "") -> None:
        """Add a series; `text` is its labels. Raises ValueError when another metric has come since the last of this."""
        if self._room(family, 1):
            self._parts.append(f"{family.name}{text} {value}\n")

    def histogram(self, family: Family, durations: Durations, text: str = "") -> None:
        """Add a histogram; arguments and errors as `sample`."""
        if not self._room(family, HISTOGRAM_SERIES):
            return
        name, parts = family.name, self._parts
        inside = f"{text[1:-1]}," if text else ""
        slots = tuple(durations.slots)
        below = sum(slots[:_FIRST])
        for slot, bound in enumerate(_BOUNDS, _FIRST):
            below += slots[slot]
            parts.append(f'{name}_bucket{{{inside}le="{bound}"}} {below}\n')
        count = sum(slots)
        parts.append(f'{name}_bucket{{{inside}le="+Inf"}} {count}\n')
        parts.append(f"{name}_sum{text} {durations.ticks / TICKS}\n{name}_count{text} {count}\n")

    def _room(self, family: Family, series: int) -> bool:
        if self._left < series:
            self._excess += series
            return False
        self._left -= series
        if family is not self._family:
            self._begin(family)
        return True

    def _begin(self, family: Family) -> None:
        if family.name in self._begun:
            raise ValueError(f"the series of {family.name} do not stand together")
        self._begun.add(family.name)
        self._family = family
        self._parts.append(f"# HELP {family.name} {family.doc}\n# TYPE {family.name} {family.kind.value}\n")

    def finish(self) -> bytes:
        """The whole page; its last metric says how many series are missing."""
        self._left = max(self._left, 1)
        self.sample(SERIES_EXCESS, self._excess)
        return "".join(self._parts).encode()
