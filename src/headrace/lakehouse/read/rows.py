"""Rows of an archive as record batches again: with offsets, times, keys and headers as they were, null included."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.build import ArrowRows, build_rows
from headrace.records.fallback.encode import ArrowColumn, ArrowHeaders
from headrace.records.fallback.header import HEADER_SIZE
from headrace.topics.model import StoredBatch

_APPEND_TIME = 1
"""`timestampType` of times that the server has set."""


def batches(group: pa.Table, offset: int, end: int, limit: int, most: int) -> Iterator[StoredBatch]:
    """The records from `offset` to before `end`, as batches of at most `most` bytes of records.

    Args:
        group: rows in offset order.
        offset: the first offset wanted.
        end: the offset to stop before.
        limit: bytes that are wanted in all; the batch that reaches them is the last.
        most: bytes of a batch, unless one record is larger.
    """
    offsets = group["offset"].to_numpy()
    start, stop = np.searchsorted(offsets, [offset, end])
    if start == stop:
        return
    wanted = group.slice(int(start), int(stop - start))
    columns = _columns(wanted)
    for start_of_run, behind, append_time in _runs(wanted):
        first = start_of_run
        while first < behind:
            room = max(1, min(limit - HEADER_SIZE, most))
            following, batch = build_rows(columns, first, behind, append_time=append_time, max_bytes=room)
            place, last = int(offsets[start + first]), int(offsets[start + following - 1])
            yield StoredBatch(place, last + 1, memoryview(batch))
            limit -= len(batch)
            if limit <= HEADER_SIZE:
                return
            first = following


def _runs(rows: pa.Table) -> Iterator[tuple[int, int, bool]]:
    """Rows that can be in one batch: all with their producers' times, or all with one time of the server's."""
    kinds = rows["timestampType"].to_numpy()
    if not kinds.any():
        yield 0, len(kinds), False
        return
    times = pc.cast(rows["timestamp"], pa.int64()).to_numpy()
    changes = (kinds[1:] != kinds[:-1]) | ((kinds[1:] == _APPEND_TIME) & (times[1:] != times[:-1]))
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(kinds)]
    for low, high in pairwise(edges):
        yield low, high, bool(kinds[low] == _APPEND_TIME)


def _columns(rows: pa.Table) -> ArrowRows:
    headers = _one(rows["headers"])
    offsets, times = _one(rows["offset"]), _one(rows["timestamp"])
    return ArrowRows(
        _bytes_column(_one(rows["key"])),
        _bytes_column(_one(rows["value"])),
        None if headers.null_count == len(headers) else _headers_column(headers),
        (offsets.buffers()[1], offsets.offset),
        (times.buffers()[1], times.offset),
    )


def _one(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bytes_column(column: Any) -> ArrowColumn | None:
    if column.null_count == len(column):
        return None
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    validity, edges, data = column.buffers()
    return validity if column.null_count else None, edges, data if data is not None else b"", column.offset


def _headers_column(column: Any) -> ArrowHeaders:
    validity, edges = column.buffers()[:2]
    pairs = column.values
    names, values = pairs.field(0), pairs.field(1)
    return (
        validity if column.null_count else None,
        edges,
        column.offset,
        _bytes_column(names) or _nothing(len(names)),
        _bytes_column(values) or _nothing(len(values)),
    )


def _nothing(rows: int) -> ArrowColumn:
    """A column of nulls."""
    return bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b"", 0
