"""How a file of the archive is written, so that a reader finds an offset by reading little of it.

Columns have field IDs, by which Iceberg's readers find them. They follow from the order in which the table got its
columns, as Iceberg assigns them: those of the archive first, then each of a value's with the fields within it.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

FILE_BYTES: Final = 128 << 20
"""A file that has reached this size is ended."""
_GROUP_BYTES: Final = 4 << 20
_GROUP_ROWS: Final = (1024, 32_768)
_DICTIONARY: Final = ["key", "topic", "partition", "timestampType", "topicId"]
_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType", "topicId"]


def writer(sink: Any, columns: pa.Schema) -> pq.ParquetWriter:
    """A writer of a file with the archive's columns, and perhaps others behind them."""
    decoded = _flat(columns, columns.names[len(_ARCHIVE) :])
    return pq.ParquetWriter(
        sink,
        with_field_ids(columns),
        compression="zstd",
        compression_level=1,
        use_dictionary=[*_DICTIONARY, *decoded],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=[*_STATISTICS, *decoded],
        write_page_index=True,
    )


_ARCHIVE: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "topicId")


def with_field_ids(columns: pa.Schema) -> pa.Schema:
    """The columns of a table, all of them and in its order, with their field IDs."""
    numbers = itertools.count(1)
    own = min(len(_ARCHIVE), len(columns))
    found = list(_numbered(list(columns)[:own], numbers))
    for column in list(columns)[own:]:
        found += _numbered([column], numbers)
    return pa.schema(found, metadata=columns.metadata)


def _numbered(fields: list[pa.Field], numbers: Iterator[int]) -> Iterator[pa.Field]:
    """Fields of one level get their numbers before those within them do."""
    ids = [next(numbers) for _ in fields]
    for number, field in zip(ids, fields, strict=True):
        kind = _numbered_type(field.type, numbers)
        yield pa.field(field.name, kind, field.nullable, {**(field.metadata or {}), _FIELD_ID: str(number).encode()})


def _numbered_type(kind: pa.DataType, numbers: Iterator[int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(list(_numbered(list(kind), numbers)))
    if pa.types.is_list(kind):
        return pa.list_(*_numbered([kind.value_field], numbers))
    if pa.types.is_map(kind):
        return pa.map_(*_numbered([kind.key_field, kind.item_field], numbers), kind.keys_sorted)
    return kind


def field_ids(fields: Any, within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Names and field IDs of columns, and of the fields within them; of those that have IDs."""
    for field in fields:
        names = (*within, field.name)
        number = (field.metadata or {}).get(_FIELD_ID)
        if number is not None:
            yield names, int(number)
        if pa.types.is_struct(field.type):
            yield from field_ids(field.type, names)
        elif pa.types.is_list(field.type):
            yield from field_ids([field.type.value_field.with_name("element")], names)
        elif pa.types.is_map(field.type):
            parts = [field.type.key_field.with_name("key"), field.type.item_field.with_name("value")]
            yield from field_ids(parts, names)


_FIELD_ID: Final = b"PARQUET:field_id"


def _flat(columns: pa.Schema, names: list[str]) -> list[str]:
    return [name for name in names if not pa.types.is_nested(columns.field(name).type)]


def group_rows(batch: pa.RecordBatch) -> int:
    """Rows for a row group of about 4 MiB, judged by some records."""
    low, high = _GROUP_ROWS
    fitting = _GROUP_BYTES * batch.num_rows // max(1, batch.nbytes)
    return int(max(low, min(high, fitting)))
