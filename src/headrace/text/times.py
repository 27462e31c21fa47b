"""Times for people, in the local zone, with the zone shown. The values are milliseconds since 1970."""

import re
from datetime import UTC, datetime

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
# ISO 8601, as in Kafka's --by-duration: P1DT2H30M.
_ISO = re.compile(
    r"P(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?(?:T(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9.]+)S)?)?"
)
_LATEST_MS = 253_402_300_799_999
"""End of the year 9999."""


def local(milliseconds: int) -> str:
    """Return `2026-11-22 14:05:09.120+01:00`. Years that Python does not support are plain numbers."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"
    return moment.replace(microsecond=milliseconds % 1000 * 1000).isoformat(" ", "milliseconds")


def clock() -> str:
    """Return the time of day with its zone: `14:05:09+01:00`."""
    return datetime.now(UTC).astimezone().timetz().isoformat("seconds")


def duration(text: str) -> int:
    """Return the milliseconds of `90s`, `1h30m`, `7d`, or Kafka's `PT1H30M`.

    Raises ValueError with the expected forms.
    """
    iso = _ISO.fullmatch(text.upper())
    if iso is not None and any(iso.groupdict().values()):
        return sum(int(float(count) * _UNITS_MS[unit]) for unit, count in iso.groupdict().items() if count)
    parts = _PART.findall(text)
    if not parts or "".join(count + unit for count, unit in parts) != text:
        raise ValueError(f"expected a duration, such as 90s, 1h30m, 7d or PT1H30M, found {text!r}")
    return sum(int(float(count) * _UNITS_MS[unit]) for count, unit in parts)


def instant(text: str, now_ms: int) -> int:
    """Parse a time as milliseconds since 1970. Raises ValueError with the expected forms.

    Args:
        text: a duration before `now_ms` (`10m`), ISO 8601 (`2026-11-22`, `2026-11-22T14:05+01:00`, by default in the
            local zone), or kcat's `@` and milliseconds since 1970.
        now_ms: the current time.
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
