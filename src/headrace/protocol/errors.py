"""Errors of the codec."""


class CodecError(Exception):
    """Base of all errors of the codec."""


class DecodeError(CodecError):
    """The bytes are not such a message. As in Kafka, close the connection."""


class EncodeError(CodecError):
    """A value is out of range, of a wrong type, or null where it must not be."""


class UnsupportedVersionError(CodecError):
    """The message has no such version (see `VERSIONS`)."""
