"""Record batches as Arrow record batches for Spark. The only module that needs pyarrow."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.records import accelerator
from headrace.records.batch import peek
from headrace.records.compression import LIMIT
from headrace.records.fallback.columns import Rows
from headrace.records.fallback.header import Buffer
from headrace.records.walk import fixed_timestamp, payload

MAX_ROWS = 10_000
MAX_BYTES = 8 * 1024 * 1024
"""Spark is slower above about 10,000 rows or 10 MB per batch."""


@cache
def schema(include_headers: bool = False) -> pa.Schema:
    """Return the schema of `format("kafka")`."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if include_headers:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields.append(("headers", pa.list_(pa.field("element", header))))
    return pa.schema(fields)


def decode(
    batches: Iterable[tuple[int, Buffer]],
    *,
    topic: str,
    partition: int,
    first_offset: int,
    end_offset: int,
    include_headers: bool = False,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    limit: int = LIMIT,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches (base offset, bytes) in `first_offset` to `end_offset` (exclusive).

    As in Spark's Kafka source, a record without a timestamp (-1 ms) has the last millisecond of 1969, and one without
    headers has null. Control batches have no rows. Raises BatchError.
    """
    columns = accelerator.open_columns(max_rows, max_bytes, include_headers)
    arrays = _compiled_arrays if accelerator.available else _pure_arrays
    for base_offset, batch in batches:
        if base_offset >= end_offset:
            break
        header = peek(batch)
        if header.is_control or base_offset + header.last_offset_delta < first_offset:
            continue
        append_time = fixed_timestamp(header)
        columns.open(
            payload(header, batch, limit),
            header.count,
            header.last_offset_delta,
            base_offset,
            header.base_timestamp if append_time is None else append_time,
            append_time is not None,
            first_offset,
            end_offset,
        )
        while not columns.fill():
            yield _record_batch(arrays(columns.take(), include_headers), topic, partition)
    if columns.rows:
        yield _record_batch(arrays(columns.take(), include_headers), topic, partition)


def _record_batch(arrays: list[Any], topic: str, partition: int) -> pa.RecordBatch:
    rows = len(arrays[0])
    place = [pa.repeat(pa.scalar(topic, pa.string()), rows), pa.repeat(pa.scalar(partition, pa.int32()), rows)]
    return pa.RecordBatch.from_arrays([*arrays[:2], *place, *arrays[2:]], schema=schema(len(arrays) > 5))


def _compiled_arrays(taken: Any, include_headers: bool) -> list[Any]:
    rows, key, value, offset, timestamp, timestamp_type, headers = taken
    types = schema(include_headers)

    def array(kind: Any, length: int, *buffers: bytes | memoryview | None, children: list[Any] | None = None) -> Any:
        wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        return pa.Array.from_buffers(kind, length, wrapped, children=children)

    arrays = [
        array(pa.binary(), rows, *key),
        array(pa.binary(), rows, *value),
        array(pa.int64(), rows, None, offset),
        array(types.field("timestamp").type, rows, None, timestamp),
        array(pa.int32(), rows, None, timestamp_type),
    ]
    if include_headers:
        validity, list_offsets, header_key, header_value, count = headers
        kind = types.field("headers").type
        pairs = array(
            kind.value_type,
            count,
            None,
            children=[array(pa.string(), count, *header_key), array(pa.binary(), count, *header_value)],
        )
        arrays.append(array(kind, rows, validity, list_offsets, children=[pairs]))
    return arrays


def _pure_arrays(taken: Rows, include_headers: bool) -> list[Any]:
    types = schema(include_headers)
    arrays = [
        pa.array(taken.keys, pa.binary()),
        pa.array(taken.values, pa.binary()),
        pa.array(taken.offsets, pa.int64()),
        pa.array(taken.timestamps, pa.int64()).cast(types.field("timestamp").type),
        pa.array(taken.timestamp_types, pa.int32()),
    ]
    if include_headers:
        rows = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in taken.headers]
        arrays.append(pa.array(rows, types.field("headers").type))
    return arrays
