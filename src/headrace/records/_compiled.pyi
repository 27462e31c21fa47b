# Types of the optional C extension; the code is in records/c/_compiled.c and the other C files there.

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from headrace.records.fallback.encode import ArrowColumn, ArrowHeaders, ArrowNumbers, Fields, Section
from headrace.records.fallback.header import Buffer, HeaderFields
from headrace.records.fallback.messages import Shares, Told

_R = TypeVar("_R")

CRC32C: str  # how the CRC is computed here: `sse4.2`, `armv8` or `tables`

def crc32c(data: Buffer, crc: int = 0, /) -> int: ...
def crc32c_tables(data: Buffer, crc: int = 0, /) -> int: ...
def check(batch: Buffer, /) -> HeaderFields: ...
def peek(batch: Buffer, /) -> HeaderFields: ...
def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int, /) -> None: ...
def unfilled(size: int, /) -> bytearray: ...
def encode(records: Sequence[Fields], base_timestamp: int, /) -> bytes: ...
def encode_columns(
    key: ArrowColumn | None, value: ArrowColumn | None, start: int, stop: int, max_bytes: int, /
) -> tuple[bytes, int]: ...
def encode_rows(
    key: ArrowColumn | None,
    value: ArrowColumn | None,
    headers: ArrowHeaders | None,
    offsets: ArrowNumbers,
    timestamps: ArrowNumbers,
    start: int,
    stop: int,
    max_bytes: int,
    /,
) -> Section: ...
def records(
    kind: type[_R],
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    /,
) -> list[_R]: ...
def some(
    kind: type[_R],
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    first_offset: int,
    part: bytes,
    most: int,
    most_bytes: int,
    most_headers: int,
    /,
) -> tuple[list[tuple[_R, int]], int, int, int]: ...
def find(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    first_offset: int,
    not_before: int | None,
    /,
) -> tuple[int, int] | None: ...
def keyless(payload: Buffer, count: int, last_offset_delta: int, most: int, /) -> tuple[list[int], int]: ...
def merge(batches: list[bytes], sections: list[Buffer | None], most: int, /) -> list[bytes | None]: ...
def schemas(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    of_value: bool,
    header: bytes,
    most_schemas: int,
    most_malformed: int,
    /,
) -> tuple[list[tuple[bytes, int, int]], list[int], int, int]: ...

_Validity: TypeAlias = bytes | None
_BytesColumn: TypeAlias = tuple[_Validity, bytes, bytes | memoryview]
_Headers: TypeAlias = tuple[_Validity, bytes, _BytesColumn, _BytesColumn, int]

def publish(
    body: Buffer, partitions: int, now_ms: int, seed: int, left_out: int, most_value: int, most_total: int, /
) -> Shares | None: ...
def receipts(places: Buffer, told: list[Told | None], head: bytes, tail: bytes, /) -> bytes: ...

class OffsetMap:
    full: bool
    memory_bytes: int
    def __init__(self, slots: int, seed: bytes) -> None: ...
    def __len__(self) -> int: ...
    def get(self, key: bytes, /) -> int | None: ...
    def add(
        self, batches: Sequence[bytes], sections: Sequence[Buffer | None], passed_over: bytes, /
    ) -> tuple[int, list[int]]: ...
    def clean(
        self,
        batches: Sequence[bytes],
        sections: Sequence[Buffer | None],
        aborted: bytes,
        now_ms: int,
        horizon_ms: int,
        clean_segment: bool,
        /,
    ) -> tuple[list[bytes | None], int, int, int, int | None, list[int]]: ...

class Messages:
    count: int
    size: int
    full: bool
    passed_over: int
    def __init__(self, most_count: int, most_bytes: int, most_message: int = ...) -> None: ...
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
    ) -> int: ...
    def take(self) -> bytes: ...

class Columns:
    rows: int
    def __init__(self, max_rows: int, max_bytes: int, include_headers: bool) -> None: ...
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
    ) -> None: ...
    def fill(self) -> bool: ...
    def take(self) -> tuple[int, _BytesColumn, _BytesColumn, bytes, bytes, bytes, _Headers | None]: ...
