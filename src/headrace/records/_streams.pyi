# Types of the optional C extension; the code is in records/c/_streams.c.

from typing import Any

from headrace.records.fallback.header import Buffer
from headrace.records.fallback.streams import Built, Reader

def xadd_arguments(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    /,
) -> tuple[bytes, int]: ...
def build_batches(entries: list[Any], bits: int, limit: int, read_fields: Reader, /) -> Built: ...
