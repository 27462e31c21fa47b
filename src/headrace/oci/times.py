"""Times as Oracle's API writes them: RFC 3339 in UTC with milliseconds. Pure."""

from datetime import UTC, datetime, timedelta

from headrace.records.fallback.messages import time_text as text_of

__all__ = ["ms_of", "text_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def ms_of(time: datetime) -> int:
    """Milliseconds since 1970 of a time as it was sent, with microseconds or without; one without zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MS
