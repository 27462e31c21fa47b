"""Whether the C extension is there, and the functions that are faster with it. The one place that decides."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from headrace.records.errors import NoRecordCode
from headrace.records.fallback import columns, header, messages
from headrace.records.fallback import encode as fallback_encode
from headrace.records.fallback.encode import ArrowColumn, Fields, Section
from headrace.records.fallback.header import Buffer
from headrace.records.fallback.messages import Shares, Told

_R = TypeVar("_R")


class ColumnBuilder(Protocol):
    """Columns that grow by one batch after the other."""

    @property
    def rows(self) -> int:
        """Rows in the columns."""

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
        """Start on a batch's decompressed records section; rows from `first_offset` to before `end_offset` count."""

    def fill(self) -> bool:
        """Take records until the batch has no more (True) or the columns are full (False). Raises CorruptBatch."""

    def take(self) -> Any:
        """The columns so far, as buffers (C) or `fallback.columns.Rows`; they are empty then."""


class MessageWriter(Protocol):
    """Messages of a REST answer; see `fallback.messages.PureMessages`."""

    @property
    def count(self) -> int:
        """Messages so far."""

    @property
    def size(self) -> int:
        """Bytes of their keys and values."""

    @property
    def full(self) -> bool:
        """Whether it takes no more."""

    @property
    def passed_over(self) -> int:
        """Messages that were too large."""

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
        """Take the records of a batch; the offset to go on from. Raises CorruptBatch."""

    def take(self) -> bytes:
        """The JSON array so far; it is empty then."""


open_columns: Callable[[int, int, bool], ColumnBuilder]
"""Given rows and bytes that the columns may have at most, and whether headers are wanted."""
open_messages: Callable[..., MessageWriter]
"""Given how many messages, and how many bytes of keys and values, are wanted, and how many of one message at most."""
publish: Callable[[Buffer, int, int, int, int, int, int], Shares | None]
receipts: Callable[[Buffer, list[Told | None], bytes, bytes], bytes]
records: Callable[[type[_R], Buffer, int, int, int, int, int | None], list[_R]]
some: Callable[..., tuple[list[tuple[Any, int]], int, int, int]]
"""See `fallback.aiokafka_columns.some`."""
encode: Callable[[Sequence[Fields], int], bytes]
encode_columns: Callable[[ArrowColumn | None, ArrowColumn | None, int, int, int], tuple[bytes, int]]
encode_rows: Callable[..., Section]
"""See `fallback.encode.encode_rows`."""
find: Callable[[Buffer, int, int, int, int, int | None, int, int | None], tuple[int, int] | None]
"""See `fallback.aiokafka_columns.find`."""
unfilled: Callable[[int], bytearray]
"""Buffer of that many bytes, uninitialized: the caller must fill all of it before it is read."""

try:
    import headrace.records._compiled as _compiled  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
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
    open_columns = _compiled.Columns
    open_messages = _compiled.Messages
    publish = _compiled.publish
    receipts = _compiled.receipts
    unfilled = _compiled.unfilled
