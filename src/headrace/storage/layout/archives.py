"""Where the archive of a topic lies: a document that the archive writes and whoever reads old records looks up.

It points, and promises little: `archived` may be behind the table, never ahead of it. What is in the table is said by
the table itself (`headrace:<topic id>:<partition>` in Delta's `txn`).
"""

from typing import Literal

import msgspec

KIND = "archives"
"""The documents' kind; a document's id is the topic's id, so that a topic created again starts without an archive."""


class ArchiveDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of one topic."""

    topic: str
    """The topic's name."""
    table: str
    """Absolute URL of the table: `file:///...`, `s3://bucket/...`. Credentials are never in it."""
    format: Literal["delta"] = "delta"
    archived: dict[int, int]
    """By partition the offset before which every record is in the table, on disk or in the object store."""
    updated_ms: int
    """When this was written, by the archive's clock."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchiveDocument)


def encode(document: ArchiveDocument) -> bytes:
    """The document as JSON."""
    return _encoder.encode(document)


def decode(text: bytes) -> ArchiveDocument:
    """The inverse of `encode`, with later versions' fields left out; raises msgspec.ValidationError otherwise."""
    return _decoder.decode(text)
