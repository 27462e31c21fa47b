"""Runs of offsets of a share partition. Equal neighbors are one run."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from headrace.groups.sharing.state import RecordState, ShareState, StoredRun

NO_MEMBER = ""
"""Member of runs that no member holds. Empty member IDs are not valid."""
_last = attrgetter("last")


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive offsets with one state."""

    first: int
    last: int
    state: RecordState
    count: int = 0
    """Deliveries, including the present one. 0 if DONE."""
    member: str = NO_MEMBER
    until: int = 0
    """End of the lock (ticks)."""
    decision: RecordState | None = None
    """Next state, once stored: AVAILABLE, DEAD or DONE."""
    sent: bool = False
    """Whether the write in flight contains the decision."""

    @property
    def length(self) -> int:
        """Return the number of offsets."""
        return self.last - self.first + 1

    @property
    def held(self) -> bool:
        """Whether the records are acquired and undecided."""
        return self.state is RecordState.ACQUIRED and self.decision is None

    def part(self, first: int, last: int) -> "Run":
        """Return the run with other bounds."""
        return Run(first, last, self.state, self.count, self.member, self.until, self.decision, self.sent)

    def decided(self, decision: RecordState) -> "Run":
        """Return the run with a decision that is not stored yet."""
        return Run(self.first, self.last, self.state, self.count, self.member, self.until, decision)

    def leaving(self) -> "Run":
        """Return the run with its decision in flight."""
        return Run(self.first, self.last, self.state, self.count, self.member, self.until, self.decision, True)

    def settled(self) -> "Run":
        """Return the run in its next state."""
        if self.decision is None or self.decision is RecordState.DONE:
            return Run(self.first, self.last, RecordState.DONE)
        return Run(self.first, self.last, self.decision, self.count)

    def continues(self, other: "Run") -> bool:
        """Return whether both are one run if this one follows."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.until == other.until
            and self.decision is other.decision
            and self.sent is other.sent
            and self.member == other.member
        )


class Runs:
    """Offsets from the SPSO to the end offset (SPEO)."""

    def __init__(self, spso: int) -> None:
        self.spso = spso
        self.speo = spso
        """First offset that was never acquired."""
        self._runs: list[Run] = []

    @classmethod
    def load(cls, state: ShareState) -> "Runs":
        """Return a stored state's runs."""
        runs = cls(state.spso)
        at = state.spso
        loaded = []
        for run in state.runs:
            loaded.append(Run(at, at + run.length - 1, run.state, run.count))
            at += run.length
        runs.replace(loaded)
        runs.advance()
        return runs

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def index(self, offset: int) -> int:
        """Return the index of the run of an offset, or the number of runs."""
        return bisect_left(self._runs, offset, key=_last)

    def within(self, first: int, last: int) -> Iterator[Run]:
        """Return the runs, or parts of them, from `first` to `last`."""
        for index in range(self.index(first), len(self._runs)):
            run = self._runs[index]
            if run.first > last:
                return
            yield (
                run if first <= run.first and run.last <= last else run.part(max(first, run.first), min(last, run.last))
            )

    def replace(self, new: Sequence[Run]) -> None:
        """Give offsets other states. `new` is sorted. What is beyond the SPEO begins there and has no gaps."""
        if not new:
            return
        low = self.index(new[0].first)
        high = self.index(new[-1].last)
        if high < len(self._runs):
            high += 1
        before, after = max(low - 1, 0), high + 1
        pieces = [*self._runs[before:low], *_overlay(self._runs[low:high], new), *self._runs[high:after]]
        self._runs[before:after] = _merged(pieces)
        self.speo = self._runs[-1].last + 1

    def advance(self) -> None:
        """Move the SPSO over what is done."""
        done = 0
        while done < len(self._runs) and self._runs[done].state is RecordState.DONE:
            done += 1
        if done:
            self.spso = self._runs[done - 1].last + 1
            del self._runs[:done]

    def cut(self, offset: int) -> None:
        """Remove the runs below an offset."""
        if offset <= self.spso:
            return
        index = self.index(offset)
        if index < len(self._runs) and self._runs[index].first < offset:
            self._runs[index] = self._runs[index].part(offset, self._runs[index].last)
        del self._runs[:index]
        self.spso = offset
        self.speo = max(self.speo, offset)
        self.advance()

    def stored(self, epoch: int) -> ShareState:
        """Return the state to store, with all decisions."""
        spso = self.spso
        runs: list[StoredRun] = []
        for run in self._runs:
            state = run.decision or run.state
            if state is RecordState.ACQUIRED:
                state = RecordState.AVAILABLE
            count = 0 if state is RecordState.DONE else run.count
            if state is RecordState.DONE and not runs:
                spso = run.last + 1
            elif runs and runs[-1].state is state and runs[-1].count == count:
                runs[-1] = StoredRun(runs[-1].length + run.length, state, count)
            else:
                runs.append(StoredRun(run.length, state, count))
        return ShareState(epoch, spso, tuple(runs))


def _overlay(old: Sequence[Run], new: Sequence[Run]) -> Iterator[Run]:
    at = 0
    for run in old:
        start = run.first
        if at and new[at - 1].last >= start:
            start = new[at - 1].last + 1
        while at < len(new) and new[at].first <= run.last:
            if start < new[at].first:
                yield run.part(start, new[at].first - 1)
            yield new[at]
            start = new[at].last + 1
            at += 1
        if start <= run.last:
            yield run.part(start, run.last)
    yield from new[at:]


def _merged(runs: Iterable[Run]) -> list[Run]:
    merged: list[Run] = []
    for run in runs:
        if merged and run.continues(merged[-1]):
            merged.append(run.part(merged.pop().first, run.last))
        else:
            merged.append(run)
    return merged
