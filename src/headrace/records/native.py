"""Whether the C extension is there, and the functions that are faster with it. The one place that decides."""

from headrace.records import plain

try:
    import headrace.records._native as _native  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    available = False
    description = "Python (struct, google-crc32c; records walked by aiokafka)"
    crc32c = plain.crc32c
    check = plain.check
    peek = plain.peek
else:
    available = True
    description = f"C extension (CRC-32C: {_native.CRC32C})"
    crc32c = _native.crc32c
    check = _native.check
    peek = _native.peek
