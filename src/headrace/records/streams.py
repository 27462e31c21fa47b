"""Records as entries of plain Redis Streams, and entries as record batches: the mapping of native topics.

One entry has one record in the fields `key`, `value`, `headers` and `timestamp`; a null component is an absent field.
Entries that somebody else wrote are records too:

- with fields among those four it is read as ours; without `timestamp` its time is that of its id;
- a single field, whatever its name, is the value (`timestamp` alone is a record of nothing but its time);
- anything else is a JSON object with all fields as the value; a field that comes more than once is an array.

JSON is UTF-8; what is not becomes `{"base64": "..."}`. Headers are a JSON array of `[name, value]` in order, the value
text, null, or base64 likewise; an object of names and texts is understood, too.
"""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from headrace.records import pure_streams
from headrace.records.batch import peek
from headrace.records.errors import InvalidBatch
from headrace.records.pure import Buffer
from headrace.records.pure_streams import Built, ByteHeaders, Row
from headrace.records.walk import fixed_timestamp, payload

try:
    import headrace.records._streams as _streams  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    available = False
    write_arguments = pure_streams.xadd_arguments
    _batches = pure_streams.build_batches
else:
    available = True
    write_arguments = _streams.xadd_arguments
    _batches = _streams.build_batches

MOST_DECOMPRESSED = 16 << 20
MOST_RECORDS = 50_000
"""Of a batch: each becomes an entry, and Redis does nothing else while it adds them."""
_NAMES = {b"key", b"value", b"headers", b"timestamp"}
_WHOLE = re.compile(rb"-?[0-9]{1,18}")


def xadd_arguments(batch: Buffer) -> tuple[bytes, int]:
    """The records of a checked batch, decompressed, as RESP bulk strings for the append script, and how many strings.

    Raises:
        CorruptBatch: the records cannot be read.
        BatchTooLarge: decompressed they would take more than `MOST_DECOMPRESSED` bytes, and more than they have now.
        InvalidBatch: they are more than `MOST_RECORDS`.
    """
    header = peek(batch)
    if header.count > MOST_RECORDS:
        raise InvalidBatch(f"{header.count} records: a native topic takes {MOST_RECORDS} in one batch at most")
    return write_arguments(
        payload(header, batch, max(MOST_DECOMPRESSED, len(batch))),
        header.count,
        header.last_offset_delta,
        header.base_timestamp,
        fixed_timestamp(header),
        encode_headers,
    )


def build_batches(entries: list[Any], bits: int, limit: int) -> Built:
    """Entries, as XRANGE answers them, as record batches; see `pure_streams.build_batches`."""
    return _batches(entries, bits, limit, read_fields)


def encode_headers(headers: ByteHeaders) -> bytes:
    """Headers as the text of their field."""
    return _json([[_text(name), None if value is None else _text(value)] for name, value in headers])


def decode_headers(text: bytes) -> ByteHeaders | None:
    """Headers from the text of their field; None when it is no such text."""
    try:
        found = json.loads(text)
        pairs = list(found.items()) if isinstance(found, dict) else found
        headers = []
        for name, value in pairs:
            known = _bytes(name)
            if known is None:
                return None
            headers.append((known, None if value is None else _bytes_or_fail(value)))
    except (ValueError, TypeError, RecursionError):
        return None
    return tuple(headers)


def read_fields(fields: Sequence[bytes], ms: int) -> Row:
    """The record of an entry.

    Args:
        fields: names and values in turn.
        ms: the time of the entry's id, for entries that have none of their own.
    """
    plain = pure_streams.read_plain(fields, ms)
    if plain is not None:
        return plain
    pairs = list(zip(fields[::2], fields[1::2], strict=False))
    named = dict(pairs)
    if len(named) == len(pairs) and named.keys() <= _NAMES:
        time = named.get(b"timestamp", b"%d" % ms)
        headers = decode_headers(named.get(b"headers", b"[]"))
        if headers is not None and _WHOLE.fullmatch(time) is not None:
            return named.get(b"key"), named.get(b"value"), int(time), headers
    return None, _object(pairs), ms, ()


def _object(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        key = _text(name)
        found.setdefault(key if isinstance(key, str) else f"base64:{key['base64']}", []).append(_text(value))
    return _json({name: values[0] if len(values) == 1 else values for name, values in found.items()})


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    return None


def _bytes_or_fail(value: object) -> bytes:
    found = _bytes(value)
    if found is None:
        raise ValueError(f"a header's value is text, not {value!r}")
    return found
