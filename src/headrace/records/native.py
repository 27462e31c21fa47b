"""Whether the C extension is there, and the functions that are faster with it. The one place that decides."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from headrace.records import by_aiokafka, plain, plain_columns, plain_encode, plain_messages, plain_publish
from headrace.records.errors import NoRecordCode
from headrace.records.plain import Buffer
from headrace.records.plain_encode import ArrowColumn, Fields
from headrace.records.plain_publish import Shares, Told

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
        """Start on a batch's opened records section; rows at `first_offset` and up to before `end_offset` count."""

    def fill(self) -> bool:
        """Take records until the batch has no more (True) or the columns are full (False). Raises CorruptBatch."""

    def take(self) -> Any:
        """The columns so far, as buffers (C) or `plain_columns.Rows`; they are empty then."""


class MessageWriter(Protocol):
    """Messages of a REST answer; see `plain_messages.PlainMessages`."""

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
encode: Callable[[Sequence[Fields], int], bytes]
encode_columns: Callable[[ArrowColumn | None, ArrowColumn | None, int, int, int], tuple[bytes, int]]
find: Callable[[Buffer, int, int, int, int, int | None, int, int | None], tuple[int, int] | None]
"""See `by_aiokafka.find`."""

try:
    import headrace.records._native as _native  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    available = False
    _missing = [name for name in ("google_crc32c", "aiokafka") if importlib.util.find_spec(name) is None]
    if _missing:
        raise NoRecordCode(_missing) from None
    description = "Python (CRC-32C: google-crc32c, records: aiokafka)"
    crc32c = plain.crc32c
    check = plain.check
    peek = plain.peek
    stamp = plain.stamp
    encode = plain_encode.encode
    encode_columns = plain_encode.encode_columns
    records = by_aiokafka.records
    find = by_aiokafka.find
    open_columns = plain_columns.PlainColumns
    open_messages = plain_messages.PlainMessages
    publish = plain_publish.publish
    receipts = plain_publish.receipts
else:
    available = True
    description = f"C extension (CRC-32C: {_native.CRC32C})"
    crc32c = _native.crc32c
    check = _native.check
    peek = _native.peek
    stamp = _native.stamp
    encode = _native.encode
    encode_columns = _native.encode_columns
    records = _native.records
    find = _native.find
    open_columns = _native.Columns
    open_messages = _native.Messages
    publish = _native.publish
    receipts = _native.receipts
