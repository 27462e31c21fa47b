"""The transactions of a log for readers that are not its leader: the stored ones, and the batches after them.

The script `transactions` returns both as of one moment. The result is exact while the leader writes: what it stores
later only decides more transactions.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from headrace.records.batch import HEADER_SIZE, BatchHeader, read_header
from headrace.records.errors import BatchError
from headrace.records.markers import parse_marker
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import aborted_of, state_of, transactions_of
from headrace.topics.transactions import (
    AbortedTotal,
    AbortedTransaction,
    AbortedTransactions,
    OpenTransaction,
    Transactions,
    Unstable,
)

HEADERS_AT_ONCE: Final = 64
"""Batches after the snapshot that one script returns."""
_ABORTED_AT_ONCE: Final = 1_000


def keys(stream: str) -> list[str]:
    """Return the keys of the script `transactions`."""
    return [stream, state_of(stream), transactions_of(stream), aborted_of(stream)]


ARGUMENTS: Final = (_ABORTED_AT_ONCE, HEADERS_AT_ONCE)
"""Arguments of the script `transactions`."""


class TransactionIndex:
    """Reads the reply of the script `transactions`, and then those of `tail` while `following` has an entry id."""

    def __init__(self, reply: Sequence[Any]) -> None:
        """Raises ValueError."""
        extent, fields, self._count, self._aborted, starts = reply
        self.log_start, self.log_end, self.epochs = partition.extent(extent)
        self._used = bool(extent[5])
        self._stored = dict(zip(fields[::2], fields[1::2], strict=True))
        self._headers: list[tuple[BatchHeader, bytes]] = []
        self.following: str | None = None
        """Entry id from which batches are missing; None: none is missing."""
        self._read_to = max(self.log_start, int(extent[1] or 0))
        if self.epochs is not None and self._read_to < self.log_end:
            self.add(starts)

    def add(self, starts: Sequence[bytes]) -> None:
        """Add ids and starts of the batches from `following` on."""
        assert self.epochs is not None
        for entry_id, header, start in headers(starts):
            if header.base_offset >= self.log_end:
                break
            self._read_to = max(self._read_to, entries.next_offset_of(entry_id))
            if header.is_transactional:
                self._headers.append((header, start))
        if starts:
            self._read_to = max(self._read_to, entries.next_offset_of(starts[-2]))
        more = bool(starts) and self._read_to < self.log_end
        self.following = entries.range_start(self.epochs, self._read_to) if more else None

    def transactions(self) -> Transactions | None:
        """Return the transactions up to the log end; None: the stored ones are lost, or are being stored again.

        Raises ValueError.
        """
        if not self._used and not self._headers:
            return Transactions()
        found = Transactions()
        if self._used:
            if self._stored.pop(partition.ABORTED_COUNT, None) != b"%d" % self._count:
                return None
            unstable: list[Unstable] = [partition.decode_unstable(*each) for each in self._stored.items()]
            pairs = zip(self._aborted[-2::-2], self._aborted[::-2], strict=True)
            aborted = [partition.decode_aborted(*each) for each in pairs]
            complete_from = aborted[0].marker_offset if len(aborted) < self._count else 0
            found = Transactions(unstable, AbortedTransactions(aborted, complete_from, AbortedTotal()), used=True)
        for header, start in self._headers:
            apply(found, header, start, 0)
        return found


def headers(starts: Sequence[bytes]) -> Iterator[tuple[bytes, BatchHeader, bytes]]:
    """Yield entry id, header and start of batches, without entries of other programs."""
    for entry_id, start in zip(starts[::2], starts[1::2], strict=True):
        if len(start) >= HEADER_SIZE:
            header = read_header(start)
            if header.base_offset + header.span == entries.next_offset_of(entry_id):
                yield entry_id, header, start


def apply(transactions: Transactions, header: BatchHeader, start: bytes, now_ms: int) -> None:
    """Update transactions by the next batch of the log. An unreadable marker changes nothing."""
    if header.is_control:
        try:
            marker = parse_marker(start)
        except BatchError:
            return  # the leader reports it
        transactions.end(marker.producer_id, header.base_offset, commit=marker.commit)
    elif header.is_transactional:
        transactions.begin(OpenTransaction(header.producer_id, header.base_offset, header.producer_epoch, now_ms))


def decode_aborted(members: Iterable[tuple[bytes, float]]) -> list[AbortedTransaction]:
    """Return aborted transactions from members of the sorted set and their scores. Raises ValueError."""
    return [partition.decode_aborted(member, b"%d" % score) for member, score in members]
