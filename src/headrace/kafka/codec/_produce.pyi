from headrace.records.plain import Buffer, HeaderFields

def read(
    buffer: Buffer, start: int, stop: int, owned: bool, /
) -> tuple[int, int, str, int, bytearray | memoryview, HeaderFields] | None: ...
