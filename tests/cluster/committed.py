"""What readers of committed records must find, given what `transfers` wrote.

Each transaction appends numbers to partitions of the target, and writes keys of a compacted topic. Its records have its
name, and those of the target also how many there are. So a reader can tell a fractured transaction, an aborted one
(Adya's G1a), a number that was moved twice or never, and an append that was overtaken by the same producer's next one
(G0). No transaction reads what another one wrote, so circular reads (G1c) are impossible.

Each key has one producer. So the last committed transaction that wrote it decides its value, whatever is cleaned.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Moved(msgspec.Struct, frozen=True):
    """A record of the target."""

    number: int
    transaction: str
    """Name of the producer, a colon, and which of its transactions."""
    of: int
    """Records of the transaction."""
    index: int


class Kept(msgspec.Struct, frozen=True):
    """The value of a key in the compacted topic."""

    transaction: str
    index: int
    """Which of the transaction's records there."""


class Record(NamedTuple):
    """A record that a consumer got."""

    offset: int
    key: bytes | None
    value: bytes | None


Writes = Sequence[tuple[bytes, bytes | None]]
"""Keys and encoded values, `Kept` or None, in their order."""


def place_of(transaction: str) -> tuple[str, int]:
    """The producer of a transaction, and which of its transactions it is."""
    producer, _, turn = transaction.partition(":")
    return producer, int(turn)


def moved(values: Iterable[bytes]) -> list[Moved]:
    """The records of one partition of the target, as they were written."""
    return [msgspec.json.decode(value, type=Moved) for value in values]


class Outcomes:
    """What the movers know of their transactions."""

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown = 0
        self.numbers = 0
        """Numbers of the committed ones."""
        self.writes: dict[str, Writes] = {}
        """Transaction -> what it has written, or meant to write, to the compacted topic."""
        self._lock = threading.Lock()

    def note(self, name: str, *, commit: bool, numbers: int = 0) -> None:
        with self._lock:
            (self.committed if commit else self.aborted).add(name)
            self.numbers += numbers

    def lost(self) -> None:
        """A mover does not know how its transaction has ended."""
        with self._lock:
            self.unknown += 1

    def write(self, name: str, writes: Writes) -> None:
        """A transaction is about to write these."""
        with self._lock:
            self.writes[name] = writes


class Target:
    """The committed records of the target, which may be read part by part."""

    def __init__(self, partitions: int) -> None:
        """Nothing is read yet."""
        self.transactions: dict[str, list[int]] = {}
        """Those that were read -> how many records each has, and how many of them were read."""
        self._times: Counter[int] = Counter()
        self._last: list[dict[str, tuple[int, int]]] = [{} for _ in range(partitions)]

    def add(self, logs: Sequence[Sequence[Moved]]) -> None:
        """Read what follows in each partition. Raises AssertionError."""
        for last, log in zip(self._last, logs, strict=True):
            for each in log:
                self._times[each.number] += 1
                self.transactions.setdefault(each.transaction, [each.of, 0])[1] += 1
                producer, turn = place_of(each.transaction)
                place = turn, each.index
                assert place > last.get(producer, (-1, -1)), f"G0: {each} was overtaken"
                last[producer] = place

    def check(self, numbers: int, outcomes: Outcomes) -> None:
        """Check the records once all numbers are moved and all transactions have ended. Raises AssertionError."""
        twice = sorted(number for number, count in self._times.items() if count > 1)
        assert not twice, f"moved twice: {twice[:10]} of {len(twice)}"
        missing = sorted(set(range(numbers)) - self._times.keys())
        assert not missing, f"never moved: {missing[:10]} of {len(missing)}"
        aborted = outcomes.aborted & self.transactions.keys()
        assert not aborted, f"G1a: aborted transactions are read: {sorted(aborted)[:5]}"
        lost = outcomes.committed - self.transactions.keys()
        assert not lost, f"committed transactions are lost: {sorted(lost)[:5]}"
        fractured = [name for name, (of, found) in self.transactions.items() if of != found]
        assert not fractured, f"fractured transactions: {fractured[:5]}"


def values_of_keys(committed: Iterable[str], outcomes: Outcomes) -> dict[bytes, bytes | None]:
    """The last value that a committed transaction wrote to each key."""
    values: dict[bytes, bytes | None] = {}
    for name in sorted(committed, key=place_of):
        values.update(outcomes.writes.get(name, ()))
    return values


def check_committed(log: Iterable[Record], committed: Container[str]) -> None:
    """Check that records of the compacted topic are of committed transactions. Raises AssertionError."""
    for each in log:
        if each.value is not None:
            kept = msgspec.json.decode(each.value, type=Kept)
            assert kept.transaction in committed, f"G1a: {each} is read"


def check_kept(
    logs: Sequence[Sequence[Record]], committed: Container[str], values: Mapping[bytes, bytes | None]
) -> None:
    """Check the committed records of the compacted topic, read from the start. Raises AssertionError.

    Args:
        logs: those of each partition.
        committed: the transactions that are committed.
        values: see `values_of_keys`.
    """
    last: dict[bytes, Record] = {}
    places: dict[bytes, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    for log in logs:
        check_committed(log, committed)
        for each in log:
            assert each.key is not None
            last[each.key] = each
            if each.value is None:
                continue
            kept = msgspec.json.decode(each.value, type=Kept)
            place = place_of(kept.transaction)[1], kept.index
            assert place > places[each.key], f"G0: {each} was overtaken"
            places[each.key] = place
    for key, value in values.items():
        found = last.get(key)
        if value is None:
            assert found is None or found.value is None, f"deleted key {key!r} is there again: {found}"
        else:
            assert found is not None, f"key {key!r} is lost, with {value!r}"
            assert found.value == value, f"the last record of key {key!r} is {found}, and not {value!r}"
    unknown = last.keys() - values.keys()
    assert not unknown, f"keys that no committed transaction wrote: {sorted(unknown)[:5]}"


def check_again(before: Mapping[int, Record], end: int, now: Sequence[Record], what: str) -> None:
    """Check that records that are read again are those that were read before. Raises AssertionError.

    Args:
        before: by offset, what was read below `end`.
        end: the offset up to which it was read.
        now: what is read now. The cleaner may have removed some.
        what: the partition, for the error.
    """
    for each in now:
        if each.offset < end:
            known = before.get(each.offset)
            assert known == each, f"{what}: now {each}, before {known}"
