"""Functions of the C extension, or their fallbacks in Python."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from headrace.records.errors import NoRecordCode
from headrace.records.fallback import checks, cleaning, columns, header, merging, messages
from headrace.records.fallback import encode as fallback_encode
from headrace.records.fallback.encode import ArrowColumn, Fields, Section
from headrace.records.fallback.header import Buffer
from headrace.records.fallback.messages import Shares, Told

_R = TypeVar("_R")


class ColumnBuilder(Protocol):
    """Columns to which batches are appended."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def open(
        self,
        payload: Buffer,
        count: int,
        last_offset_delta: int,
        base_offset: int,
        base_timestamp: int,
        log_append_time: bool,
        first_offset: int,
        end_offset: int,
        /,
    ) -> None:
        """Start a decompressed records section; rows of `first_offset` to `end_offset` (exclusive) count."""

    def fill(self) -> bool:
        """Read records until the batch ends (True) or the columns are full (False). Raises CorruptBatch."""

    def take(self) -> Any:
        """Remove and return the columns, as buffers (C) or `fallback.columns.Rows`."""


class MessageWriter(Protocol):
    """Writer of messages; see `fallback.messages.PureMessages`."""

    @property
    def count(self) -> int:
        """Number of messages."""

    @property
    def size(self) -> int:
        """Bytes of keys and values."""

    @property
    def full(self) -> bool:
        """Whether it is full."""

    @property
    def passed_over(self) -> int:
        """Number of messages that were too large."""

    def write(
        self,
        payload: Buffer,
        count: int,
        last_offset_delta: int,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        first_offset: int,
        not_before: int | None,
        prefix: bytes,
        /,
    ) -> int:
        """Add the records of a batch, and return the next offset. Raises CorruptBatch."""

    def take(self) -> bytes:
        """Remove and return the JSON array."""


class OffsetMap(Protocol):
    """Hashes of keys (128 bits) with the last offset of each; see `records.cleaning`.

    One thread at a time may use it. Otherwise, methods raise RuntimeError.
    """

    def __len__(self) -> int:
        """Number of keys."""

    @property
    def full(self) -> bool:
        """Whether there is no place for another key."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of its memory. It does not grow."""

    def get(self, key: bytes, /) -> int | None:
        """Return the last offset of a key, or None."""

    def add(
        self, batches: Sequence[bytes], sections: Sequence[Buffer | None], passed_over: bytes, /
    ) -> tuple[int, list[int]]:
        """Add the keys of batches. `sections` has the decompressed records of the compressed ones.

        A batch is passed over if its byte in `passed_over` is not zero. Other threads can run.

        Returns:
            The index of the first batch with a key for which there was no place, or the number of batches.
            The indexes of batches that cannot be read.
        """

    def clean(
        self,
        batches: Sequence[bytes],
        sections: Sequence[Buffer | None],
        aborted: bytes,
        now_ms: int,
        horizon_ms: int,
        clean_segment: bool,
        /,
    ) -> tuple[list[bytes | None], int, int, int, int | None, list[int]]:
        """Return what remains of batches; see `fallback.cleaning.CleanedSections`.

        Control batches remain, and do not count. Changed batches of any codec have plain records. Other threads can
        run.
        """


open_offset_map: Callable[[int, bytes], OffsetMap]
"""Takes the number of slots, at least 2, and a seed of 16 bytes."""
open_columns: Callable[[int, int, bool], ColumnBuilder]
"""Takes the maximum rows and bytes of the columns, and whether to include headers."""
open_messages: Callable[..., MessageWriter]
"""Takes the maximum messages, bytes of keys and values, and bytes of one message."""
publish: Callable[[Buffer, int, int, int, int, int, int], Shares | None]
receipts: Callable[[Buffer, list[Told | None], bytes, bytes], bytes]
records: Callable[[type[_R], Buffer, int, int, int, int, int | None], list[_R]]
some: Callable[..., tuple[list[tuple[Any, int]], int, int, int]]
"""See `fallback.columns.some`."""
encode: Callable[[Sequence[Fields], int], bytes]
encode_columns: Callable[[ArrowColumn | None, ArrowColumn | None, int, int, int], tuple[bytes, int]]
encode_rows: Callable[..., Section]
"""See `fallback.encode.encode_rows`."""
find: Callable[[Buffer, int, int, int, int, int | None, int, int | None], tuple[int, int] | None]
"""See `fallback.columns.find`."""
keyless: Callable[[Buffer, int, int, int], tuple[list[int], int]]
"""See `fallback.checks.keyless`."""
merge: Callable[[list[bytes], list[Buffer | None], int], list[bytes | None]]
"""See `fallback.merging.merge`. Other threads can run."""
schemas: Callable[[Buffer, int, int, bool, bytes, int, int], tuple[list[tuple[bytes, int, int]], list[int], int, int]]
"""See `fallback.checks.schemas`."""
unfilled: Callable[[int], bytearray]
"""Return an uninitialized buffer. The caller must fill it before reading it."""

try:
    import headrace.records._compiled as _compiled  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler at the installation
    available = False
    _missing = [name for name in ("google_crc32c", "aiokafka") if importlib.util.find_spec(name) is None]
    if _missing:
        raise NoRecordCode(_missing) from None
    description = "Python (CRC-32C: google-crc32c, records: aiokafka)"
    crc32c = header.crc32c
    check = header.check
    peek = header.peek
    stamp = header.stamp
    encode = fallback_encode.encode
    encode_columns = fallback_encode.encode_columns
    encode_rows = fallback_encode.encode_rows
    records = columns.records
    some = columns.some
    find = columns.find
    keyless = checks.keyless
    merge = merging.merge
    schemas = checks.schemas
    open_offset_map = cleaning.PureOffsetMap
    open_columns = columns.PureColumns
    open_messages = messages.PureMessages
    publish = messages.publish
    receipts = messages.receipts
    unfilled = bytearray
else:
    available = True
    description = f"C extension (CRC-32C: {_compiled.CRC32C})"
    crc32c = _compiled.crc32c
    check = _compiled.check
    peek = _compiled.peek
    stamp = _compiled.stamp
    encode = _compiled.encode
    encode_columns = _compiled.encode_columns
    encode_rows = _compiled.encode_rows
    records = _compiled.records
    some = _compiled.some
    find = _compiled.find
    keyless = _compiled.keyless
    merge = _compiled.merge
    schemas = _compiled.schemas
    open_offset_map = _compiled.OffsetMap
    open_columns = _compiled.Columns
    open_messages = _compiled.Messages
    publish = _compiled.publish
    receipts = _compiled.receipts
    unfilled = _compiled.unfilled
