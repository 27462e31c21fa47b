"""Checks of each record of a batch in Python; see `topics.record_checks`."""

from typing import Any

from headrace.records.errors import CorruptBatch
from headrace.records.fallback.columns import read
from headrace.records.fallback.header import Buffer

_BY_ID, _BY_GUID = 5, 17
"""Bytes of a reference to a schema: a form of 0 or 1, and the number."""


def _records(payload: Buffer, count: int, last_offset_delta: int) -> list[Any]:
    found = list(read(payload, count, last_offset_delta, 0, 0, None))
    if len(found) != count:
        raise CorruptBatch(f"{len(found)} records instead of {count}")
    return found


def keyless(payload: Buffer, count: int, last_offset_delta: int, most: int, /) -> tuple[list[int], int]:
    """Return the indexes of the first `most` records without key, and the number of all of these.

    The payload is a decompressed records section. Raises CorruptBatch.
    """
    records = _records(payload, count, last_offset_delta)
    indexes = [index for index, record in enumerate(records) if record.key is None]
    return indexes[:most], len(indexes)


def schemas(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    of_value: bool,
    header: bytes,
    most_schemas: int,
    most_malformed: int,
    /,
) -> tuple[list[tuple[bytes, int, int]], list[int], int, int]:
    """Return the schemas that values, otherwise keys, refer to.

    A reference is the beginning of the value (a zero byte and an ID of four bytes), or the `header` of that name, which
    may also have a one and a GUID of 16 bytes. Records without this part have none. Raises CorruptBatch.

    Returns:
        The first `most_schemas` references, each with the index of its first record and its number of records.
        The indexes of the first `most_malformed` records without a valid reference, and the number of all of these.
        The index of the first record with one more schema, or -1.
    """
    found: dict[bytes, tuple[int, int]] = {}
    malformed: list[int] = []
    excess = -1
    for index, record in enumerate(_records(payload, count, last_offset_delta)):
        part = record.value if of_value else record.key
        if part is None:
            continue
        reference = _reference(part, record.headers, header.decode())
        if not reference:
            malformed.append(index)
        elif reference in found:
            first, number = found[reference]
            found[reference] = first, number + 1
        elif len(found) < most_schemas:
            found[reference] = index, 1
        elif excess < 0:
            excess = index
    named = [(reference, *place) for reference, place in found.items()]
    return named, malformed[:most_malformed], len(malformed), excess


def _reference(part: bytes, headers: Any, name: str) -> bytes:
    """Return a record's reference, empty if it is malformed."""
    for key, value in headers:
        if key == name and value is not None:
            if value[:1] == b"\0" and len(value) >= _BY_ID:
                return bytes(value[:_BY_ID])
            return bytes(value[:_BY_GUID]) if value[:1] == b"\1" and len(value) >= _BY_GUID else b""
    return bytes(part[:_BY_ID]) if part[:1] == b"\0" and len(part) >= _BY_ID else b""
