"""What an owner of a log writes to Redis, and what a reader finds, in short."""

from collections.abc import Sequence
from typing import Any

from headrace.records.build import build
from headrace.topics.model import StoredBatch


def batch(base: int, span: int = 1, size: int = 10) -> bytearray:
    """A batch of `span` records with values of `size` bytes, stamped."""
    made = bytearray(build([(None, b"v" * size, 1_000, ())] * span))
    made[:8] = base.to_bytes(8, "big", signed=True)
    return made


def xadd(key: str | bytes, entry_id: str, data: bytes | bytearray) -> list[Any]:
    """As an owner writes it."""
    return ["XADD", key, "NOMKSTREAM", entry_id, "b", bytes(data), "t", "1000", "s", "10"]


def whole(found: Sequence[StoredBatch] | None) -> list[tuple[int, int, bytes]] | None:
    """Base offset, next offset and bytes of each."""
    return None if found is None else [(each.base_offset, each.next_offset, bytes(each.batch)) for each in found]


def places(found: Sequence[StoredBatch] | None) -> list[int] | None:
    """Base offset of each."""
    return None if found is None else [each.base_offset for each in found]
