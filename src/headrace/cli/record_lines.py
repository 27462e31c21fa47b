"""Records as lines of text: what `records produce` reads and `records tail` writes. No I/O.

A JSON line has `key`, `value`, `headers` and `timestamp` (ms since the epoch). Bytes that are UTF-8 are a JSON string,
others `{"base64": "..."}`, and nothing at all is null: what `tail --json` writes, `produce --json` sends unchanged.
"""

import base64
import binascii
import json
from typing import Any

import msgspec

from headrace.text import times
from headrace.text.escaping import json_text, shown

Headers = tuple[tuple[str, bytes | None], ...]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record to be sent."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers | None = ()
    """None: they cannot be read, as a name among them is no UTF-8."""
    timestamp: int | None = None
    """Milliseconds since the epoch; None: now."""


class BadLine(ValueError):
    """A line that is no record; the message says what was expected."""


def read_text(line: bytes, key_separator: bytes | None) -> Record:
    """A line of plain text, byte for byte: `value`, or `key<separator>value`. Raises BadLine."""
    if key_separator is None:
        return Record(value=line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLine(f"expected KEY{key_separator.decode()}VALUE, found {line.decode(errors='backslashreplace')!r}")
    return Record(key=key, value=value)


def read_json(line: bytes) -> Record:
    """A JSON line; fields that `tail` adds (topic, partition, offset) are passed over. Raises BadLine."""
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise BadLine('expected an object with a "value", such as {"key": "k", "value": "v"}')
    unknown = fields.keys() - {"key", "value", "headers", "timestamp", "topic", "partition", "offset"}
    if unknown:
        raise BadLine(f"unknown field {min(unknown)!r}: a record has key, value, headers and timestamp")
    timestamp = fields.get("timestamp")
    if timestamp is not None and (not isinstance(timestamp, int) or isinstance(timestamp, bool) or timestamp < 0):
        raise BadLine(f"timestamp: expected milliseconds since 1970, found {timestamp!r}")
    return Record(
        key=_to_bytes(fields.get("key")),
        value=_to_bytes(fields["value"]),
        headers=_to_headers(fields.get("headers") or []),
        timestamp=timestamp,
    )


def _to_bytes(value: Any) -> bytes | None:
    """A string is itself, `{"base64": ...}` its bytes, null nothing; any other JSON value is sent as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadLine(f"not base64: {value['base64']!r}") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _to_headers(pairs: Any) -> Headers:
    if isinstance(pairs, dict):
        pairs = list(pairs.items())
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise BadLine('headers: expected [["name", "value"], ...] or {"name": "value", ...}')
    return tuple((str(name), _to_bytes(value)) for name, value in pairs)


def from_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON has them: a string where they are UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def write_json(topic: str, partition: int, offset: int, record: Record) -> str:
    """A record as a JSON line."""
    return json_text(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": record.timestamp,
            "key": from_bytes(record.key),
            "value": from_bytes(record.value),
            "headers": None
            if record.headers is None
            else [[name, from_bytes(value)] for name, value in record.headers],
        }
    )


def write_text(partition: int, offset: int, record: Record, most: int | None = None) -> str:
    """A record as a line for people: place, time, key, value; each of the latter cut after `most` characters."""
    time = "-" if record.timestamp is None else times.local(record.timestamp)
    return f"{partition}/{offset}  {time}  {shown(record.key, most)}  {shown(record.value, most)}"
