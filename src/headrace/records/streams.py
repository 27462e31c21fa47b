"""Records of native topics as entries of Redis Streams, and entries as record batches.

An entry has one record in the fields `key`, `value`, `headers` and `timestamp`; null is an absent field. Entries of
other writers are records, too:

- Only these fields: as above. Without `timestamp`, the record has the time of the entry id.
- A single field of another name: it is the value.
- Other fields: the value is a JSON object of all fields, with an array for a repeated one. An entry that is too large
  for this is no record.

JSON is UTF-8. Other bytes become `{"base64": "..."}`. See `fallback.streams` for headers.
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
except ImportError:  # no compiler at the installation
    available = False
    write_arguments = streams.xadd_arguments
    _batches = streams.build_batches
else:
    available = True
    write_arguments = _streams.xadd_arguments
    _batches = _streams.build_batches

MOST_DECOMPRESSED = 16 << 20
MOST_RECORDS = 50_000
"""Per batch: Redis is blocked while it adds them."""
LARGEST_ENTRY = 64 << 20
MOST_FIELDS = 10_000
"""Maximum bytes and fields of an entry to read, as it is copied in one step."""
LARGEST_OBJECT = 4 << 20
"""Maximum bytes of an entry for a JSON object. With six-fold growth by escapes, this takes 0.1 s."""
LONGEST_OTHER = 1 << 20
"""Maximum bytes of headers in another form. Longer ones are text."""
_NAMES = {b"key", b"value", b"headers", b"timestamp"}
_WHOLE = re.compile(rb"-?[0-9]{1,18}")


def xadd_arguments(batch: Buffer) -> tuple[bytes, int]:
    """Return the records of a checked batch as RESP bulk strings for the append script, and their number.

    Raises:
        CorruptBatch: the records are unreadable.
        BatchTooLarge: they exceed both `MOST_DECOMPRESSED` and their compressed size, or `LARGEST_ENTRY` in total.
        InvalidBatch: there are more than `MOST_RECORDS`.
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
    """See `fallback.streams.build_batches`."""
    return _batches(entries, bits, limit, read_fields)


def read_fields(fields: Sequence[bytes], ms: int) -> Row | None:
    """Return the record of an entry's names and values, or None if its JSON would be too large.

    `ms` is the time of the entry id.
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
