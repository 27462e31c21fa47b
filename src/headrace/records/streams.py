"""Records as entries of plain Redis Streams, and entries as record batches: the mapping of native topics.

One entry has one record in the fields `key`, `value`, `headers` and `timestamp`; a null component is an absent field.
Entries that somebody else wrote are records too:

- with fields among those four it is read as ours; without `timestamp` its time is that of its id;
- a single field, whatever its name, is the value (`timestamp` alone is a record of nothing but its time);
- anything else is a JSON object with all fields as the value; a field that comes more than once is an array. Where that
  would take too long, it is no record.

JSON is UTF-8; what is not becomes `{"base64": "..."}`. Headers are as `fallback.streams` has them.
"""

import re
from collections.abc import Sequence
from typing import Any

from headrace.records.batch import peek
from headrace.records.errors import BatchTooLarge, InvalidBatch
from headrace.records.fallback import streams
from headrace.records.fallback.header import Buffer
from headrace.records.fallback.streams import Built, ByteHeaders, Row, as_text, decode_headers, to_json
from headrace.records.walk import fixed_timestamp, payload

try:
    import headrace.records._streams as _streams  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    available = False
    write_arguments = streams.xadd_arguments
    _batches = streams.build_batches
else:
    available = True
    write_arguments = _streams.xadd_arguments
    _batches = _streams.build_batches

MOST_DECOMPRESSED = 16 << 20
MOST_RECORDS = 50_000
"""Of a batch: each becomes an entry, and Redis does nothing else while it adds them."""
LARGEST_ENTRY = 64 << 20
MOST_FIELDS = 10_000
"""Bytes and fields of an entry that is read: others wait while its record, which is in one piece, is copied."""
LARGEST_OBJECT = 4 << 20
"""Bytes of an entry whose value is a JSON object. Six-fold where all is to be escaped, it is made in 0.1 s then."""
LONGEST_OTHER = 1 << 20
"""Bytes of headers in another form than this server's: what is longer is no headers, but text."""
_NAMES = {b"key", b"value", b"headers", b"timestamp"}
_WHOLE = re.compile(rb"-?[0-9]{1,18}")


def xadd_arguments(batch: Buffer) -> tuple[bytes, int]:
    """The records of a checked batch, decompressed, as RESP bulk strings for the append script, and how many strings.

    Raises:
        CorruptBatch: the records cannot be read.
        BatchTooLarge: decompressed they would take more than `MOST_DECOMPRESSED` bytes, and more than they have now; or
            together more than one entry may have that is read.
        InvalidBatch: they are more than `MOST_RECORDS`.
    """
    header = peek(batch)
    if header.count > MOST_RECORDS:
        raise InvalidBatch(f"{header.count} records: a native topic takes {MOST_RECORDS} in one batch at most")
    size, made = len(batch), None
    if size <= LARGEST_ENTRY:
        made = write_arguments(
            payload(header, batch, max(MOST_DECOMPRESSED, size)),
            header.count,
            header.last_offset_delta,
            header.base_timestamp,
            fixed_timestamp(header),
        )
        size = len(made[0])
    if made is None or size > LARGEST_ENTRY:
        raise BatchTooLarge(f"{size} bytes of records: a native topic takes {LARGEST_ENTRY} in one batch at most")
    return made


def build_batches(entries: list[Any], bits: int, limit: int) -> Built:
    """Entries, as XRANGE answers them, as record batches; see `fallback.streams.build_batches`."""
    return _batches(entries, bits, limit, read_fields)


def read_fields(fields: Sequence[bytes], ms: int) -> Row | None:
    """The record of an entry; None where its JSON would be too large.

    Args:
        fields: names and values in turn.
        ms: the time of the entry's id, for entries that have none of their own.
    """
    plain = streams.read_plain(fields, ms)
    if plain is not None:
        return plain
    pairs = list(zip(fields[::2], fields[1::2], strict=False))
    named = dict(pairs)
    if len(named) == len(pairs) and named.keys() <= _NAMES:
        time = named.get(b"timestamp", b"%d" % ms)
        headers = _headers(named.get(b"headers", b"[]"))
        if headers is not None and _WHOLE.fullmatch(time) is not None:
            return named.get(b"key"), named.get(b"value"), int(time), headers
    if sum(map(len, fields)) > LARGEST_OBJECT:
        return None
    return None, _object(pairs), ms, ()


def _headers(text: bytes) -> ByteHeaders | None:
    """Headers that others have written, or that C is not there to read."""
    most = LONGEST_OTHER if available or not text.startswith(b"[") else streams.MOST_HEADER_TEXT
    if len(text) > most:
        return None
    return decode_headers(text)


def _object(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        key = as_text(name)
        found.setdefault(key if isinstance(key, str) else f"base64:{key['base64']}", []).append(as_text(value))
    return to_json({name: values[0] if len(values) == 1 else values for name, values in found.items()})
