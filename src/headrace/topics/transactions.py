"""Transactions of one log (KIP-98): the open ones, the aborted ones, and the last stable offset.

A transaction opens with a producer's first transactional batch and ends with a marker. It is stable once the high
watermark has passed its marker. The last stable offset is the first offset of the oldest transaction that is not
stable, or else the high watermark.

A snapshot of this state and the batches after it give the same state as all batches of the log.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

MOST_ABORTED: Final = 100_000
"""Aborted transactions of one log in memory. Above it, the oldest tenth is only in storage. Each takes 32 bytes."""
MOST_ABORTED_TOTAL: Final = 1_000_000
"""Aborted transactions of all logs in memory."""
MOST_UNRELATED: Final = 1_000
"""Number of aborted transactions up to which a reader gets also those of producers that it does not read."""
UNNUMBERED: Final = -1

Producers = Callable[[], Container[int]]
"""Returns the producer IDs of the batches that a reader gets."""


class OpenTransaction(NamedTuple):
    """A transaction without a marker."""

    producer_id: int
    first_offset: int
    """Offset of its first batch."""
    epoch: int
    """Producer epoch of its first batch."""
    since_ms: int
    """When its first batch arrived, since the epoch."""
    number: int = UNNUMBERED
    """Its number at the coordinator, if the coordinator has returned it."""
    transactional_id: str = ""
    """Its transactional ID. Empty: unknown, because this was read from the log."""


class EndedTransaction(NamedTuple):
    """A transaction with a marker that may be above the high watermark."""

    transaction: OpenTransaction
    marker_offset: int
    commit: bool
    stable_end: int
    """First offset of the oldest open transaction when it ended, or the offset after the marker."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records no reader of committed records may see."""

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_end: int
    """See `EndedTransaction.stable_end`. No later aborted transaction begins before it."""


Unstable = OpenTransaction | EndedTransaction


class TransactionChanges(NamedTuple):
    """Changes of a log's transactions since the last snapshot."""

    unstable: dict[int, Unstable | None]
    """First offset -> transaction. None: it is stable."""
    aborted: list[AbortedTransaction]
    first_aborted: int
    """Aborted transactions with a marker before this offset are trimmed."""
    rebuilt: bool = False
    """Whether they replace what storage has."""


class AbortedTotal:
    """Number of aborted transactions of all logs in memory."""

    __slots__ = ("count", "most")

    def __init__(self, most: int = MOST_ABORTED_TOTAL) -> None:
        self.count = 0
        self.most = most


class AbortedTransactions:
    """The newest aborted transactions of one log, by marker."""

    __slots__ = ("_firsts", "_markers", "_most", "_producers", "_stable_ends", "_total", "complete_from", "unsaved")

    def __init__(
        self,
        stored: Iterable[AbortedTransaction] = (),
        complete_from: int = 0,
        total: AbortedTotal | None = None,
        most: int = MOST_ABORTED,
    ) -> None:
        """Start with `stored` ones, by marker; earlier ones than `complete_from` are in storage only."""
        self._producers, self._firsts, self._markers, self._stable_ends = (array("q") for _ in range(4))
        self._total = AbortedTotal() if total is None else total
        self._most = most
        self.complete_from = complete_from
        """Every aborted transaction with a marker from this offset on is in memory."""
        self.unsaved = 0
        """Number of last ones that storage does not have."""
        for each in stored:
            self._add(each)

    def __len__(self) -> int:
        return len(self._markers)

    def _add(self, aborted: AbortedTransaction) -> None:
        self._producers.append(aborted.producer_id)
        self._firsts.append(aborted.first_offset)
        self._markers.append(aborted.marker_offset)
        self._stable_ends.append(aborted.stable_end)
        self._total.count += 1

    def add(self, aborted: AbortedTransaction) -> None:
        """Add one with the newest marker. Do nothing if it is known."""
        if self._markers and aborted.marker_offset <= self._markers[-1]:
            return
        self._add(aborted)
        self.unsaved += 1
        self.shrink()

    def shrink(self) -> None:
        """Forget the oldest tenth if there are too many, but none that storage does not have."""
        if len(self) > self._most or self._total.count > self._total.most:
            count = min(max(len(self) // 10, 1), len(self) - self.unsaved)
            if count > 0:
                self.complete_from = self._markers[count - 1] + 1
                self._drop(count)

    def _drop(self, count: int) -> None:
        for column in (self._producers, self._firsts, self._markers, self._stable_ends):
            del column[:count]
        self._total.count -= count
        self.unsaved = min(self.unsaved, len(self))

    def trim(self, log_start: int) -> bool:
        """Forget those with a marker before the log start offset. Return whether there were any."""
        count = bisect_left(self._markers, log_start)
        self.complete_from = max(self.complete_from, log_start) if self.complete_from else 0
        if count:
            self._drop(count)
        return count > 0

    def last(self, count: int) -> list[AbortedTransaction]:
        """Return the `count` newest ones."""
        return [self._at(place) for place in range(len(self) - count, len(self))]

    def _at(self, place: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producers[place], self._firsts[place], self._markers[place], self._stable_ends[place]
        )

    def between(self, offset: int, end: int, producers: Producers | None = None) -> list[AbortedTransaction]:
        """Return those that begin before `end` and have their marker from `offset` on.

        If there are many, those of other producers than `producers` may be left out.
        """
        start = bisect_left(self._markers, offset)
        # Stable ends never decrease: the oldest open transaction only becomes a later one.
        stop = bisect_left(self._stable_ends, end, start) + 1
        places: Iterable[int] = range(start, min(stop, len(self)))
        if producers is not None and stop - start > MOST_UNRELATED:
            wanted = producers()
            places = [at for at, each in enumerate(self._producers[start:stop], start) if each in wanted]
        return [self._at(place) for place in places if self._firsts[place] < end]

    def release(self) -> None:
        """Return the memory to the total: the log is closed or recovered again."""
        self._drop(len(self))


_NOTHING_UNSTABLE: Final[OrderedDict[int, Unstable]] = OrderedDict()
_NOTHING_OPEN: Final[OrderedDict[int, OpenTransaction]] = OrderedDict()
_NOTHING_ENDED: Final[deque[EndedTransaction]] = deque()
_NOTHING_CHANGED: Final[set[int]] = set()
_NOTHING_ABORTED: Final = AbortedTransactions()


class Transactions:
    """The transactions of one log, as its leader knows them."""

    __slots__ = ("_changed", "_ended", "_rebuilt", "_total", "_unstable", "aborted", "open", "used")

    def __init__(
        self,
        unstable: Iterable[Unstable] = (),
        aborted: AbortedTransactions | None = None,
        *,
        used: bool = False,
        rebuilt: bool = False,
        total: AbortedTotal | None = None,
    ) -> None:
        """Start with the state of a snapshot.

        `used`: the log had transactions before. `rebuilt`: the next snapshot replaces what storage has. `total` counts
        the aborted transactions of a log without `aborted`.
        """
        self._rebuilt = rebuilt
        self._total = total
        self._unstable: OrderedDict[int, Unstable] = _NOTHING_UNSTABLE
        self._ended: deque[EndedTransaction] = _NOTHING_ENDED
        self._changed: set[int] = _NOTHING_CHANGED
        self.open: OrderedDict[int, OpenTransaction] = _NOTHING_OPEN
        """Producer id -> its transaction without a marker, oldest first."""
        self.aborted = _NOTHING_ABORTED if aborted is None else aborted
        self.used = used
        """Whether the log ever had a transaction."""
        stored = list(unstable)
        if used or stored:
            self._allocate()
        for each in sorted(stored, key=_first_offset):
            self._unstable[_first_offset(each)] = each
            if isinstance(each, OpenTransaction):
                self.open[each.producer_id] = each
        self._ended.extend(
            sorted((each for each in stored if isinstance(each, EndedTransaction)), key=lambda each: each.marker_offset)
        )

    def _allocate(self) -> None:
        """Replace the shared empty collections: most logs have no transactions, and a server may have many logs."""
        self.used = True
        self._unstable, self._ended, self._changed, self.open = OrderedDict(), deque(), set(), OrderedDict()
        if self.aborted is _NOTHING_ABORTED:
            self.aborted = AbortedTransactions(total=self._total)

    def begin(self, transaction: OpenTransaction) -> None:
        """Register the first batch of a transaction. Do nothing if its producer has one."""
        if not self.used:
            self._allocate()
        if transaction.producer_id not in self.open:
            self.open[transaction.producer_id] = self._unstable[transaction.first_offset] = transaction
            self._changed.add(transaction.first_offset)

    def end(self, producer_id: int, marker_offset: int, *, commit: bool) -> bool:
        """Register a marker. Return whether it ends a transaction."""
        transaction = self.open.pop(producer_id, None)
        if transaction is None:
            return False
        stable_end = next(iter(self.open.values())).first_offset if self.open else marker_offset + 1
        ended = EndedTransaction(transaction, marker_offset, commit, stable_end)
        self._unstable[transaction.first_offset] = ended
        self._ended.append(ended)
        self._changed.add(transaction.first_offset)
        return True

    def finish(self, high_watermark: int) -> bool:
        """Make transactions with a marker below the high watermark stable. Return whether there were any."""
        if not self._ended or self._ended[0].marker_offset >= high_watermark:
            return False
        while self._ended and self._ended[0].marker_offset < high_watermark:
            ended = self._ended.popleft()
            transaction = ended.transaction
            del self._unstable[transaction.first_offset]
            self._changed.add(transaction.first_offset)
            if not ended.commit:
                self.aborted.add(
                    AbortedTransaction(
                        transaction.producer_id, transaction.first_offset, ended.marker_offset, ended.stable_end
                    )
                )
        return True

    @property
    def has_unstable(self) -> bool:
        """Whether the last stable offset may be below the high watermark."""
        return bool(self._unstable)

    def stable_end(self, high_watermark: int) -> int:
        """Return the last stable offset."""
        return min(next(iter(self._unstable)), high_watermark) if self._unstable else high_watermark

    def marker_in_flight(self, producer_id: int) -> int | None:
        """Return the offset of the producer's last marker that the high watermark has not passed, if any."""
        found = (each.marker_offset for each in reversed(self._ended) if each.transaction.producer_id == producer_id)
        return next(found, None)

    # Snapshots

    @property
    def unsaved(self) -> bool:
        """Whether there were changes since `take_changes`."""
        return bool(self._changed) or self._rebuilt

    def take_changes(self, log_start: int) -> TransactionChanges | None:
        """Return the changes since the last call; None for a log without transactions."""
        if not self.used:
            return None
        changed, self._changed = self._changed, set()
        aborted = self.aborted
        last, aborted.unsaved = aborted.last(aborted.unsaved), 0
        rebuilt, self._rebuilt = self._rebuilt, False
        return TransactionChanges({each: self._unstable.get(each) for each in changed}, last, log_start, rebuilt)

    def keep_changes(self, changes: TransactionChanges | None) -> None:
        """Return changes to the next `take_changes` after a failed save."""
        if changes is not None:
            self._changed.update(changes.unstable)
            self._rebuilt = self._rebuilt or changes.rebuilt
            self.aborted.unsaved = min(len(self.aborted), self.aborted.unsaved + len(changes.aborted))

    def unstable(self) -> list[Unstable]:
        """Return transactions that are not stable, oldest first."""
        return list(self._unstable.values())


def _first_offset(unstable: Unstable) -> int:
    return (unstable if isinstance(unstable, OpenTransaction) else unstable.transaction).first_offset
