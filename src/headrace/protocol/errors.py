"""What can go wrong between bytes and messages."""


class CodecError(Exception):
    """The base of all errors of this room."""


class DecodeError(CodecError):
    """The bytes are not a message of the version asked for. The peer's fault: Kafka closes the connection."""


class EncodeError(CodecError):
    """A field's value cannot be written: out of range, of a wrong type, or null where null is not allowed."""


class UnsupportedVersionError(CodecError):
    """The message has no such version (`VERSIONS` tells which it has)."""
