"""What can be wrong with a record batch. The broker and the APIs translate these; nothing else leaves this room."""


class BatchError(Exception):
    """Base of every error about a record batch."""


class CorruptBatch(BatchError):
    """Lengths that do not add up, a wrong CRC, records or compressed bytes that cannot be read."""


class UnsupportedMagic(BatchError):
    """A message set of magic 0 or 1: the formats before the record batch."""


class InvalidBatch(BatchError):
    """A well-formed batch that breaks a rule: more than one batch, counts that disagree, the control bit, ..."""


class UnknownCodec(BatchError):
    """A compression codec that does not exist (5 to 7)."""


class BatchTooLarge(BatchError):
    """Records that would take more bytes than the given limit once decompressed."""


class NoRecordCode(ImportError):
    """Neither the C extension is here nor the libraries that stand in for it."""

    def __init__(self, missing: list[str]) -> None:
        super().__init__(
            f"this Headrace was built without its C extensions, and {' and '.join(missing)}, which can do their work, "
            "cannot be imported. Either: pip install 'headrace[pure]'. Or, with a C compiler: "
            "pip install --force-reinstall --no-deps --no-cache-dir headrace"
        )
