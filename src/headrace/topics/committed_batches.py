"""Batches that readers of committed records may see (KIP-98)."""

from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Final

from headrace.records.batch import ATTRIBUTES_AT, PRODUCER_AT, Buffer
from headrace.topics.transactions import AbortedTransaction

_ATTRIBUTES_LOW: Final = ATTRIBUTES_AT + 1
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_MARKER = _TRANSACTIONAL | _CONTROL
"""Transactional, and a control batch."""
_BASE_OFFSET: Final = Struct(">q")


def is_transactional(batch: Buffer) -> bool:
    """Whether a batch, a marker included, belongs to a transaction."""
    return bool(batch[_ATTRIBUTES_LOW] & _TRANSACTIONAL)


def is_control(batch: Buffer) -> bool:
    """Whether a batch has no records for clients, such as the marker of a transaction."""
    return bool(batch[_ATTRIBUTES_LOW] & _CONTROL)


class HiddenBatches:
    """Which batches below the last stable offset are markers, or belong to aborted transactions."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Use every aborted transaction that begins before the end of the batches, and ends after their start."""
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        for each in sorted(aborted, key=lambda each: each.first_offset):
            firsts, markers = self._spans.setdefault(each.producer_id, ([], []))
            firsts.append(each.first_offset)
            markers.append(each.marker_offset)

    def __contains__(self, batch: Buffer) -> bool:
        return batch[_ATTRIBUTES_LOW] & _MARKER == _MARKER or self.is_aborted(batch)

    def is_aborted(self, batch: Buffer) -> bool:
        """Whether a batch has records of an aborted transaction. A marker has none."""
        if batch[_ATTRIBUTES_LOW] & _MARKER != _TRANSACTIONAL:
            return False
        span = self._spans.get(_BASE_OFFSET.unpack_from(batch, PRODUCER_AT)[0])
        if span is None:
            return False
        offset: int = _BASE_OFFSET.unpack_from(batch)[0]
        # Transactions of one producer follow one another.
        place = bisect_right(span[0], offset) - 1
        return place >= 0 and offset < span[1][place]
