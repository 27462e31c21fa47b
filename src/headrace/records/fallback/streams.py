"""Records as entries of Redis Streams and back, in Python.

Headers are one field: a JSON array of `[name, value]`. Both are text, or `{"base64": "..."}` if they are not UTF-8. A
value may be null.
"""

import base64
import json
import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from headrace.records import accelerator
from headrace.records.errors import CorruptBatch
from headrace.records.fallback import columns
from headrace.records.fallback.encode import varint, wrap
from headrace.records.fallback.header import HEADER_SIZE, Buffer
from headrace.records.walk import Record

ByteHeaders = tuple[tuple[bytes, bytes | None], ...]


def encode_headers(headers: ByteHeaders) -> bytes:
    """Return the text of the headers' field."""
    return to_json([[as_text(name), None if value is None else as_text(value)] for name, value in headers])


def decode_headers(text: bytes) -> ByteHeaders | None:
    """Return headers from their field, also from a JSON object, or None."""
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


def to_json(value: object) -> bytes:
    """Return compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_text(data: bytes) -> str | dict[str, str]:
    """Return the JSON value of bytes."""
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


Row = tuple[bytes | None, bytes | None, int, ByteHeaders]
"""Key, value, timestamp (ms), headers."""
Reader = Callable[[Sequence[bytes], int], Row | None]
Built = tuple[list[tuple[int, int, bytes]], list[bytes], list[bytes]]
"""Batches with base and next offset; ids of entries that are no records; ids of deleted entries."""

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_AT, _CRC_STARTS = 17, 21
_MAX_DELTA = 2**31 - 1
MOST_HEADERS = 100_000
MOST_HEADER_TEXT = 32 << 20
"""Bytes as JSON. Both are limits for all records of a batch."""
_WHOLE = re.compile(rb"-?[0-9]{1,18}")
_ID = re.compile(rb"([0-9]+)-([0-9]+)")


def xadd_arguments(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    /,
) -> tuple[bytes, int]:
    """Return the records of a decompressed batch as RESP bulk strings, and their number.

    Each record has the number of its field arguments, then names and values. Raises CorruptBatch, also for header names
    that are not UTF-8, which only the C code supports.
    """
    out: list[bytes] = []
    headers = text_bytes = 0
    for record in columns.records(Record, payload, count, last_offset_delta, 0, base_timestamp, fixed_timestamp):
        headers += len(record.headers)
        if headers > MOST_HEADERS:
            raise CorruptBatch(f"more than {MOST_HEADERS} headers in one batch for a native topic")
        fields: list[bytes] = []
        if record.key is not None:
            fields += (b"key", record.key)
        if record.value is not None:
            fields += (b"value", record.value)
        if record.headers:
            text = encode_headers(tuple((name.encode(), value) for name, value in record.headers))
            text_bytes += len(text)
            if text_bytes > MOST_HEADER_TEXT:
                raise CorruptBatch(
                    f"headers of more than {MOST_HEADER_TEXT} bytes as JSON in one batch for a native topic"
                )
            fields += (b"headers", text)
        fields += (b"timestamp", b"%d" % record.timestamp)
        out.append(b"%d" % len(fields))
        out += fields
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in out), len(out)


def read_plain(fields: Sequence[bytes], ms: int) -> Row | None:
    """Return the record of a simple entry without headers, or None for others."""
    if len(fields) == 2 and fields[0] != b"timestamp":
        return None, fields[1], ms, ()
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if len(named) * 2 != len(fields) or not named.keys() <= {b"key", b"value", b"timestamp"}:
        return None
    text = named.get(b"timestamp")
    if text is not None and _WHOLE.fullmatch(text) is None:
        return None
    return named.get(b"key"), named.get(b"value"), ms if text is None else int(text), ()


def build_batches(entries: list[Any], bits: int, limit: int, read_fields: Reader, /) -> Built:
    """Return entries as record batches of about `limit` bytes, each record at the offset of its id.

    Args:
        entries: `[id, [name, value, ...]]`, `[id, None]` for a deleted one, or `[id, bytes]` for one that is too large.
        bits: bits of an offset for the sequence.
        limit: bytes; a larger record has a separate batch.
        read_fields: returns the record of other fields, or None.

    Returns:
        Batches, ids without an offset or record, and ids of deleted entries.
    """
    batches: list[tuple[int, int, bytes]] = []
    unfit: list[bytes] = []
    gone: list[bytes] = []
    rows: list[tuple[int, Row]] = []
    size = HEADER_SIZE
    for entry_id, fields in entries:
        found = _ID.fullmatch(entry_id)
        if found is None:
            raise ValueError(f"{entry_id!r} is no entry id")
        ms, sequence = int(found[1]), int(found[2])
        if fields is None:
            gone.append(entry_id)
            continue
        fits = isinstance(fields, list) and not sequence >> bits and ms < 1 << (62 - bits)
        row = (read_plain(fields, ms) or read_fields(fields, ms)) if fits else None
        if row is None:
            unfit.append(entry_id)
            continue
        offset = ms << bits | sequence
        header_bytes = len(_headers(row[3]))
        most = 51 + len(row[0] or b"") + len(row[1] or b"") + header_bytes
        if rows and (offset - rows[0][0] > _MAX_DELTA or size + most > limit):
            batches.append(_batch(rows))
            rows, size = [], HEADER_SIZE
        size += len(_record(offset, row, rows[0] if rows else (offset, row)))
        rows.append((offset, row))
    if rows:
        batches.append(_batch(rows))
    return batches, unfit, gone


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _headers(headers: ByteHeaders) -> bytes:
    return varint(len(headers)) + b"".join(_sized(name) + _sized(value) for name, value in headers)


def _record(offset: int, row: Row, first: tuple[int, Row]) -> bytes:
    key, value, timestamp, headers = row
    deltas = varint(wrap(timestamp - first[1][2])) + varint(offset - first[0])
    body = b"\0" + deltas + _sized(key) + _sized(value) + _headers(headers)
    return varint(len(body)) + body


def _batch(rows: list[tuple[int, Row]]) -> tuple[int, int, bytes]:
    first, last = rows[0], rows[-1][0]
    section = b"".join(_record(offset, row, first) for offset, row in rows)
    times = [row[2] for _, row in rows]
    batch = bytearray(HEADER_SIZE) + section
    fields = (last - first[0], times[0], max(times), -1, -1, -1, len(rows))
    _HEADER.pack_into(batch, 0, first[0], len(batch) - 12, 0, 2, 0, 0, *fields)
    _CRC.pack_into(batch, _CRC_AT, accelerator.crc32c(bytes(batch[_CRC_STARTS:])))
    return first[0], last + 1, bytes(batch)
