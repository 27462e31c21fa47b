"""What can be wrong with a record batch. The broker and the doors translate these; nothing else leaves this room."""


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
