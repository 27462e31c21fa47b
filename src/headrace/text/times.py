"""Times as people read and write them: in the local zone, with the zone said. Milliseconds since 1970 inside."""

import re
from datetime import UTC, datetime

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
# ISO 8601, which Kafka's own --by-duration takes: P1DT2H30M.
_ISO = re.compile(
    r"P(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?(?:T(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9.]+)S)?)?"
)
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


def local(milliseconds: int) -> str:
    """`2026-11-22 14:05:09.120+01:00`; what lies outside of the years that people count is a plain number."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"
    return moment.replace(microsecond=milliseconds % 1000 * 1000).isoformat(" ", "milliseconds")


def clock() -> str:
    """The time of day now, with its zone: `14:05:09+01:00`."""
    return datetime.now(UTC).astimezone().timetz().isoformat("seconds")


def duration(text: str) -> int:
    """Milliseconds of `90s`, `1h30m`, `7d`, or Kafka's `PT1H30M`; raises ValueError with what was expected."""
    iso = _ISO.fullmatch(text.upper())
    if iso is not None and any(iso.groupdict().values()):
        return sum(int(float(count) * _UNITS_MS[unit]) for unit, count in iso.groupdict().items() if count)
    parts = _PART.findall(text)
    if not parts or "".join(count + unit for count, unit in parts) != text:
        raise ValueError(f"expected a duration, such as 90s, 1h30m, 7d or PT1H30M, found {text!r}")
    return sum(int(float(count) * _UNITS_MS[unit]) for count, unit in parts)


def instant(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time that a person gave; raises ValueError with what was expected.

    Args:
        text: a duration before now (`10m`), a date or a time of ISO 8601 (`2026-11-22`, `2026-11-22T14:05+01:00`; the
            local zone where none is said), or milliseconds since 1970 behind an @, as kcat writes them.
        now_ms: what the durations are before.
    """
    if text.startswith("@") and text[1:].isdecimal():
        found = int(text[1:])
    else:
        try:
            found = now_ms - duration(text)
        except ValueError:
            found = _date(text)
    if not 0 <= found <= _LATEST_MS:
        raise ValueError(f"expected a time between the years 1970 and 9999, found {text!r}")
    return found


def _date(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        return round(moment.astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"expected a duration such as 10m or 2h, a time such as 2026-11-22T14:05 or @1700000000000, found {text!r}"
        ) from None
