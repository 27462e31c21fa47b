"""Match records by text in their key or value, raw or decoded, and by a field of JSON."""

import json
from typing import Any, Final

import msgspec

from headrace.console.record_worker import Decoded, Parts
from headrace.records.walk import Record

_MOST_PARSED: Final = 1 << 20
"""Maximum bytes of a value whose fields are looked at."""
_LONGEST: Final = 1_000
"""Maximum characters of a text or a field name."""


class Filter(msgspec.Struct, frozen=True):
    """What a search looks for. Everything given must match; upper and lower case differ."""

    key: str = ""
    """Text in the key."""
    text: str = ""
    """Text in the key or value; with a field, the field's whole value."""
    field: str = ""
    """Path of a field in the value, such as `order.items.0.id`."""

    @classmethod
    def of(cls, key: str, text: str, field: str) -> "Filter":
        """Return the filter of a request."""
        return cls(key[:_LONGEST], text[:_LONGEST], field.strip()[:_LONGEST])

    def __bool__(self) -> bool:
        return bool(self.key or self.text or self.field)

    def matches(self, record: Record, parts: Parts) -> bool:
        """Return whether a record matches."""
        if self.key and not _has(record.key, parts[0], self.key):
            return False
        if self.field:
            found = _field(record.value, parts[1], self.field)
            return found is not None and (not self.text or found == self.text)
        return not self.text or _has(record.value, parts[1], self.text) or _has(record.key, parts[0], self.text)


def _has(data: bytes | None, decoded: Decoded | None, text: str) -> bool:
    if decoded is not None and decoded.text is not None and text in decoded.text:
        return True
    return data is not None and text.encode("utf-8", "surrogateescape") in data


def _field(data: bytes | None, decoded: Decoded | None, path: str) -> str | None:
    """Return a field's value as text: texts without quotes, others as JSON; None: there is no such field."""
    source: bytes | str | None = data if decoded is None else decoded.text
    if not source or len(source) > _MOST_PARSED:
        return None
    try:
        found: Any = msgspec.json.decode(source)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    for part in path.split("."):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isascii() and part.isdecimal() and int(part[:9]) < len(found):
            found = found[int(part[:9])]
        else:
            return None
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
