"""How a file of the archive is written, so that a reader finds an offset by reading little of it."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

FILE_BYTES: Final = 128 << 20
"""A file that has reached this size is ended."""
_GROUP_BYTES: Final = 4 << 20
_GROUP_ROWS: Final = (1024, 32_768)
_DICTIONARY: Final = ["key", "topic", "partition", "timestampType", "topicId"]
_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "topicId"]


def writer(sink: Any, columns: pa.Schema) -> pq.ParquetWriter:
    """A writer of a file with the archive's columns, and perhaps others behind them."""
    decoded = _flat(columns, columns.names[len(_ARCHIVE) :])
    return pq.ParquetWriter(
        sink,
        columns,
        compression="zstd",
        compression_level=1,
        use_dictionary=[*_DICTIONARY, *decoded],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=[*_STATISTICS, *decoded],
        write_page_index=True,
    )


_ARCHIVE: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "topicId")


def _flat(columns: pa.Schema, names: list[str]) -> list[str]:
    return [name for name in names if not pa.types.is_nested(columns.field(name).type)]


def group_rows(batch: pa.RecordBatch) -> int:
    """Rows for a row group of about 4 MiB, judged by some records."""
    low, high = _GROUP_ROWS
    fitting = _GROUP_BYTES * batch.num_rows // max(1, batch.nbytes)
    return int(max(low, min(high, fitting)))
