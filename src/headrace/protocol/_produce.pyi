from headrace.records.fallback.header import Buffer, HeaderFields

def read(
    buffer: Buffer, start: int, stop: int, owned: bool, /
) -> tuple[int, int, str | bytes, int, bytearray | memoryview, HeaderFields, int, int, str | None] | None: ...
def accepted(
    version: int,
    correlation_id: int,
    topic: str | bytes,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    /,
) -> bytes: ...
