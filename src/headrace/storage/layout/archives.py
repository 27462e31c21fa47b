"""Location of a topic's archive: a document that the archive writes and readers of tiered records use.

`archived` may be older than the table, never newer. The table itself has the exact state (`headrace:<topic
id>:<partition>` in Delta's `txn`).
"""

from typing import Literal

import msgspec

KIND = "archives"
"""Kind of the documents. The id is the topic's, so that a re-created topic has no archive."""


class ArchiveDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of one topic."""

    topic: str
    """Name of the topic."""
    table: str
    """Absolute URL of the table without credentials: `file:///...`, `s3://bucket/...`."""
    format: Literal["delta"] = "delta"
    archived: dict[int, int]
    """Partition -> offset before which all records are durable in the table."""
    updated_ms: int
    """Time of the update, by the archive's clock."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchiveDocument)


def encode(document: ArchiveDocument) -> bytes:
    """Encode a document as JSON."""
    return _encoder.encode(document)


def decode(text: bytes) -> ArchiveDocument:
    """Decode a document, ignoring unknown fields. Raises msgspec.ValidationError."""
    return _decoder.decode(text)
