"""Errors of record batches."""


class BatchError(Exception):
    """Base of all errors of record batches."""


class CorruptBatch(BatchError):
    """Inconsistent lengths, a wrong CRC, unreadable records or compressed bytes."""


class UnsupportedMagic(BatchError):
    """A message set of magic 0 or 1."""


class InvalidBatch(BatchError):
    """A readable batch that is not allowed: bytes after it, wrong counts, a control bit."""


class UnknownCodec(BatchError):
    """A compression codec that does not exist (5 to 7)."""


class BatchTooLarge(BatchError):
    """Records that exceed the limit once decompressed."""


class NoRecordCode(ImportError):
    """Neither the C extension nor the fallback libraries are installed."""

    def __init__(self, missing: list[str]) -> None:
        super().__init__(
            f"this Headrace was built without its C extensions, and {' and '.join(missing)}, which can do their work, "
            "cannot be imported. Either install the extra pure (docs/packages.md), or a C compiler and then the wheel "
            "or the clone again with pip install --force-reinstall --no-deps --no-cache-dir"
        )
