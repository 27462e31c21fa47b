"""Convert records to and from lines of text. `--format` is a template, as in kcat."""

import base64
import binascii
import json
import re
from collections.abc import Callable
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
    """None: unreadable, because a name is no UTF-8."""
    timestamp: int | None = None
    """Milliseconds since 1970; None: now."""


class BadLine(ValueError):
    """A line is no record; the message has the expected form."""


def read_text(line: bytes, key_separator: bytes | None) -> Record:
    """Parse plain text, byte for byte: `value`, or `key<separator>value`. Raise BadLine."""
    if key_separator is None:
        return Record(value=line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLine(f"expected KEY{key_separator.decode()}VALUE, found {line.decode(errors='backslashreplace')!r}")
    return Record(key=key, value=value)


def read_json(line: bytes) -> Record:
    """Parse a JSON line, ignoring the fields that `tail` adds. Raise BadLine."""
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
    """Convert a string, `{"base64": ...}` or null; any other value is sent as JSON."""
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
    """Return bytes as JSON: a string if they are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def write_json(topic: str, partition: int, offset: int, record: Record) -> str:
    """Return a record as a JSON line."""
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
    """Return a record as text: place, time, and key and value of up to `most` characters."""
    time = "-" if record.timestamp is None else times.local(record.timestamp)
    return f"{partition}/{offset}  {time}  {shown(record.key, most)}  {shown(record.value, most)}"


Placeholder = Callable[[str, int, int, Record], bytes]
"""(topic, partition, offset, record) -> bytes of the line."""


def _size(data: bytes | None) -> bytes:
    """Return the size, or -1 for null as in kcat."""
    return str(-1 if data is None else len(data)).encode()


def _headers(record: Record) -> bytes:
    if record.headers is None:
        return b"?"
    return b",".join(name.encode("utf-8", "surrogateescape") + b"=" + (value or b"") for name, value in record.headers)


PLACEHOLDERS: dict[str, tuple[str, Placeholder]] = {
    "t": ("topic", lambda topic, _p, _o, _r: topic.encode("utf-8", "surrogateescape")),
    "p": ("partition", lambda _t, partition, _o, _r: str(partition).encode()),
    "o": ("offset", lambda _t, _p, offset, _r: str(offset).encode()),
    "k": ("key", lambda _t, _p, _o, record: record.key or b""),
    "v": ("value (%s too)", lambda _t, _p, _o, record: record.value or b""),
    "h": ("headers, NAME=VALUE with commas between", lambda _t, _p, _o, record: _headers(record)),
    "T": (
        "timestamp in milliseconds",
        lambda _t, _p, _o, record: str(-1 if record.timestamp is None else record.timestamp).encode(),
    ),
    "d": (
        "time in the local zone",
        lambda _t, _p, _o, record: b"-" if record.timestamp is None else times.local(record.timestamp).encode(),
    ),
    "K": ("bytes of the key, -1: none", lambda _t, _p, _o, record: _size(record.key)),
    "V": ("bytes of the value, -1: none (%S too)", lambda _t, _p, _o, record: _size(record.value)),
}
_SAME = {"s": "v", "S": "V"}
"""kcat's letters that differ from rpk's."""
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<letter>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL)


def describe() -> str:
    """Return the placeholders, for the help."""
    return ", ".join(f"%{letter} {what}" for letter, (what, _) in PLACEHOLDERS.items())


def compile_format(text: str) -> Placeholder:
    r"""Compile a format such as `%p/%o %k: %v\n`. Raise ValueError."""
    parts: list[Placeholder] = []
    for token in _TOKEN.finditer(text):
        if token["text"] is not None:
            parts.append(_constant(token["text"].encode("utf-8", "surrogateescape")))
        elif token["hex"] is not None:
            parts.append(_constant(bytes.fromhex(token["hex"])))
        elif token["escape"] is not None:
            if token["escape"] not in _ESCAPES:
                raise ValueError(f"expected \\n, \\t, \\r, \\0, \\xHH or \\\\, found {token[0]!r}")
            parts.append(_constant(_ESCAPES[token["escape"]]))
        elif token["letter"] == "%":
            parts.append(_constant(b"%"))
        else:
            letter = _SAME.get(token["letter"], token["letter"])
            if letter not in PLACEHOLDERS:
                raise ValueError(f"expected one of {describe()}, %% for a percent sign, found {token[0]!r}")
            parts.append(PLACEHOLDERS[letter][1])
    return lambda topic, partition, offset, record: b"".join(part(topic, partition, offset, record) for part in parts)


def _constant(data: bytes) -> Placeholder:
    return lambda _topic, _partition, _offset, _record: data


def for_terminal(line: bytes) -> str:
    """Escape a line for a terminal, except line ends and tabs."""
    pieces = re.split(rb"([\n\t])", line)
    return "".join(shown(piece) if piece not in {b"\n", b"\t"} else piece.decode() for piece in pieces)
