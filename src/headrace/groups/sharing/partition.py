"""One partition of a share group: which member holds which records, and what is done.

A decision (`acknowledge`, `release_member`, `expire`) counts after it is stored: `prepare` begins the only write in
flight, and `stored` or `lost` ends it. Acquisitions are not stored. After `lost`, acknowledgements have failed, and
their records stay acquired until their locks end. The next write contains the whole state.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from headrace.groups.sharing.runs import NO_MEMBER, Run, Runs
from headrace.groups.sharing.state import RecordState, ShareState


class ShareSettings(msgspec.Struct, frozen=True):
    """Settings of a share group."""

    delivery_limit: int = 5
    """`group.share.delivery.count.limit`."""
    window: int = 2000
    """`group.share.partition.max.record.locks`: offsets from the SPSO to the SPEO."""
    dead_letters: bool = False
    """Whether archived and rejected records go to a dead letter topic before they are done."""


class AcknowledgeType(Enum):
    """Outcome of an acknowledgement."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckProblem(Enum):
    """Reason of a rejected list of acknowledgements, with Kafka's names."""

    INVALID_RECORD_STATE = auto()
    """A record is not acquired by this member, or its lock has ended."""
    INVALID_REQUEST = auto()
    """Wrong types or order, or records never acquired."""


class AckBatch(NamedTuple):
    """Acknowledgements of consecutive offsets."""

    first: int
    last: int
    types: bytes
    """One type for all offsets, or one for each."""


class Acquired(NamedTuple):
    """Records that a member may process."""

    first: int
    last: int
    delivery_count: int


class Span(NamedTuple):
    """Offsets from `first` to `last`, inclusive."""

    first: int
    last: int


class DeadLetters(NamedTuple):
    """Records for the dead letter topic."""

    first: int
    last: int
    delivery_count: int


_GAP, _RELEASE, _REJECT, _RENEW = (
    kind.value for kind in (AcknowledgeType.GAP, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.RENEW)
)
_TYPES = bytes(kind.value for kind in AcknowledgeType)
_RENEWED = bytes((_RENEW,))


class SharePartition:
    """State of one partition in one share group. Times are ticks in milliseconds."""

    def __init__(self, state: ShareState, settings: ShareSettings) -> None:
        """Load a stored state. Raises ValueError if it is `NOT_BEGUN`: resolve and store the SPSO first."""
        if state.spso < 0:
            raise ValueError("the share partition has not begun")
        self.epoch = state.epoch
        self._settings = settings
        self._runs = Runs.load(state)
        self._in_flight = False
        self._stored = self._stored_before = self.spso
        """SPSO of the last write, and of the one before."""
        self._given_up = 0
        self._undecided_ends()

    # Reading.

    @property
    def spso(self) -> int:
        """Share partition start offset."""
        return self._runs.spso

    @property
    def speo(self) -> int:
        """First offset that was never acquired."""
        return self._runs.speo

    @property
    def runs(self) -> Iterator[Run]:
        """All runs from the SPSO to the SPEO."""
        return iter(self._runs)

    @property
    def state(self) -> ShareState:
        """The state to store now."""
        return self._runs.stored(self.epoch)

    @property
    def has_changes(self) -> bool:
        """Whether decisions wait for the next write."""
        return any(run.decision is not None and not run.sent for run in self._runs)

    @property
    def is_behind(self) -> bool:
        """Whether everything is done, and no write says so, because the last records were skipped.

        Without a write, the group's lag would count markers until the next record.
        """
        return self.spso == self.speo > self._stored

    @property
    def write_in_flight(self) -> bool:
        """Whether `prepare` began a write."""
        return self._in_flight

    @property
    def deadline(self) -> int | None:
        """When the first lock ends (ticks), if any. It may be past after `lost`."""
        return min((run.until for run in self._runs if run.held), default=None)

    def holds(self, member: str) -> bool:
        """Return whether a member holds records."""
        return any(run.held and run.member == member for run in self._runs)

    def wanted(self) -> Span | None:
        """Return where to read, and the last useful offset. None: nothing is available and the window is full."""
        first = last = None
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                first = run.first if first is None else first
                last = run.last
        end = self.spso + self._settings.window - 1
        if self.speo <= end:
            return Span(self.speo if first is None else first, end)
        return None if first is None or last is None else Span(first, last)

    def dead_letters(self) -> list[DeadLetters]:
        """Return the records to copy before `dead_lettered`."""
        return [
            DeadLetters(run.first, run.last, run.count)
            for run in self._runs
            if run.state is RecordState.DEAD and run.decision is None
        ]

    def take_given_up(self) -> int:
        """Return the number of records that reached the delivery limit since the last call."""
        taken, self._given_up = self._given_up, 0
        return taken

    # Acquiring.

    def acquire(
        self,
        member: str,
        read_from: int,
        batches: Sequence[tuple[int, int]],
        max_records: int,
        until: int,
        *,
        exact: bool = False,
        skipped: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        """Acquire records that were read from the log, lowest first.

        Stop after the batch with `max_records`, or exactly there. Near the delivery limit, acquire fewer, and the last
        delivery alone. From `read_from` (at most `speo`) on, gaps between batches and `skipped` ones (aborted and
        control batches, sorted) are done.
        """
        if read_from > self.speo:
            raise ValueError(f"read from {read_from} beyond the end offset {self.speo}")
        taking = _Taking(self._runs, self._settings, member, until, max_records)
        for first, last, exists in _segments(read_from, batches, skipped):
            if last < self.spso:
                continue
            if not exists:
                taking.skip(first, last)
            elif max_records < 1 or not taking.take(first, last, exact):
                break
        self._runs.replace(taking.changes)
        self._runs.advance()
        return taking.acquired

    def gap(self, first: int, last: int) -> None:
        """Mark available and new offsets without records as done. `first` is at most `speo`."""
        self.acquire(NO_MEMBER, first, (), 0, 0, skipped=((first, last),))

    def advance_log_start(self, offset: int) -> None:
        """Mark everything below the log start offset as done. It needs no write."""
        self._runs.cut(offset)
        self._stored = max(self._stored, offset)

    # Deciding.

    def acknowledge(
        self, member: str, batches: Sequence[AckBatch], now: int, *, renew_until: int | None = None
    ) -> AckProblem | None:
        """Decide about acquired records: the whole list, or nothing if a problem is returned.

        Offsets below the SPSO have no effect. RENEW needs `renew_until`. The window bounds the cost.
        """
        given_up = self._given_up
        problem = self._decide(member, batches, now, renew_until)
        if problem is not None:
            self._given_up = given_up
        return problem

    def _decide(self, member: str, batches: Sequence[AckBatch], now: int, renew_until: int | None) -> AckProblem | None:
        # A malformed list is one whatever its records are, as in Kafka.
        if not are_valid(batches, renewing=renew_until is not None):
            return AckProblem.INVALID_REQUEST
        changes: list[Run] = []
        for batch in batches:
            if batch.last < self.spso:
                continue
            if batch.last >= self.speo:
                return AckProblem.INVALID_REQUEST
            for run in self._runs.within(batch.first, batch.last):
                if not run.held or run.member != member or run.until <= now:
                    return AckProblem.INVALID_RECORD_STATE
                for first, last, kind in equal_types(batch, run.first, run.last):
                    changes.append(self._acknowledged(run.part(first, last), kind, renew_until))
        self._runs.replace(changes)
        return None

    def release_member(self, member: str) -> None:
        """Release all records of a member."""
        self._runs.replace(
            [
                # An ended lock: after a lost write, `expire` decides again.
                Run(run.first, run.last, run.state, run.count).decided(self._after(run))
                for run in self._runs
                if run.held and run.member == member
            ]
        )

    def give_back(self, member: str, spans: Iterable[tuple[int, int]]) -> None:
        """Undo acquisitions of records that the member did not get. They need no write, and do not count."""
        self._runs.replace(
            [
                Run(run.first, run.last, RecordState.AVAILABLE, run.count - 1)
                for first, last in spans
                for run in self._runs.within(first, last)
                if run.held and run.member == member
            ]
        )

    def expire(self, now: int) -> None:
        """Release records with ended locks."""
        self._runs.replace([run.decided(self._after(run)) for run in self._runs if run.held and run.until <= now])

    def dead_lettered(self, first: int, last: int) -> None:
        """Mark copied records as done."""
        self._runs.replace(
            [
                run.decided(RecordState.DONE)
                for run in self._runs.within(first, last)
                if run.state is RecordState.DEAD and run.decision is None
            ]
        )

    def configure(self, settings: ShareSettings) -> None:
        """Apply other settings. Records at a lower limit are archived."""
        self._settings = settings
        self._undecided_ends()

    # Storing.

    def prepare(self) -> ShareState | None:
        """Begin a write and return its state. None if nothing waits or a write is in flight."""
        if self._in_flight or not (self.has_changes or self.is_behind):
            return None
        self._in_flight = True
        self._runs.replace([run.leaving() for run in self._runs if run.decision is not None])
        state = self._runs.stored(self.epoch)
        self._stored_before, self._stored = self._stored, state.spso
        return state

    def stored(self) -> None:
        """End the write: its decisions count."""
        self._in_flight = False
        self._runs.replace([run.settled() for run in self._runs if run.sent])
        self._runs.advance()

    def lost(self) -> None:
        """End a write without success: its acknowledgements do not count."""
        self._in_flight = False
        self._stored = self._stored_before
        self._runs.replace([_taken_back(run) for run in self._runs if run.sent])

    def _acknowledged(self, run: Run, kind: int, renew_until: int | None) -> Run:
        if kind == _RENEW and renew_until is not None:
            return Run(run.first, run.last, run.state, run.count, run.member, renew_until)
        if kind == _RELEASE:
            return run.decided(self._after(run))
        return run.decided(self._archived if kind == _REJECT else RecordState.DONE)

    @property
    def _archived(self) -> RecordState:
        return RecordState.DEAD if self._settings.dead_letters else RecordState.DONE

    def _after(self, run: Run) -> RecordState:
        if run.count < self._settings.delivery_limit:
            return RecordState.AVAILABLE
        self._given_up += run.length
        return self._archived

    def _undecided_ends(self) -> None:
        # A leader ended during the last delivery.
        self._runs.replace(
            [
                Run(run.first, run.last, RecordState.ACQUIRED, run.count).decided(self._after(run))
                for run in self._runs
                if run.state is RecordState.AVAILABLE and run.count >= self._settings.delivery_limit
            ]
        )


class _Taking:
    def __init__(self, runs: Runs, settings: ShareSettings, member: str, until: int, most: int) -> None:
        self._runs = runs
        self._settings = settings
        self._member = member
        self._until = until
        self._most = most
        self._limit = most
        self._slowed = False
        self._speo = runs.speo
        self._got = 0
        self.changes: list[Run] = []
        self.acquired: list[Acquired] = []

    def skip(self, first: int, last: int) -> None:
        for run in self._runs.within(first, last):
            if run.state is RecordState.AVAILABLE:
                self.changes.append(Run(run.first, run.last, RecordState.DONE))
        self._extend(last, RecordState.DONE)

    def take(self, first: int, last: int, exact: bool) -> bool:
        for run in self._runs.within(first, last):
            if run.state is RecordState.AVAILABLE and not self._again(run, exact):
                return False
        if self._speo > last:
            return self._got < self._limit
        room = self._runs.spso + self._settings.window - self._speo
        if room <= 0:
            return False
        length = last - self._speo + 1
        if length > self._settings.window:
            length = room
        if exact:
            length = min(length, room)
        if exact or self._slowed:
            length = min(length, self._limit - self._got)
        if length > 0:
            start = self._extend(self._speo + length - 1, RecordState.ACQUIRED)
            self._add(Acquired(start, self._speo - 1, 1))
        return self._speo > last and self._got < self._limit

    def _again(self, run: Run, exact: bool) -> bool:
        limit = _limit_of(run.count, self._settings.delivery_limit, self._most)
        if limit is not None:
            self._limit, self._slowed = min(self._limit, limit), True
        length = min(run.length, self._limit - self._got) if exact or self._slowed else run.length
        if length <= 0:
            return False
        last = run.first + length - 1
        self.changes.append(Run(run.first, last, RecordState.ACQUIRED, run.count + 1, self._member, self._until))
        self._add(Acquired(run.first, last, run.count + 1))
        return length == run.length

    def _extend(self, last: int, state: RecordState) -> int:
        start = self._speo
        if last >= start:
            done = state is RecordState.DONE
            self.changes.append(
                Run(start, last, state) if done else Run(start, last, state, 1, self._member, self._until)
            )
            self._speo = last + 1
        return start

    def _add(self, new: Acquired) -> None:
        self._got += new.last - new.first + 1
        if self.acquired:
            before = self.acquired[-1]
            if before.last + 1 == new.first and before.delivery_count == new.delivery_count:
                new = Acquired(self.acquired.pop().first, new.last, new.delivery_count)
        self.acquired.append(new)


def _limit_of(count: int, delivery_limit: int, most: int) -> int | None:
    """Return how many records to acquire with one of `count` deliveries, if fewer than usual."""
    if count and count >= delivery_limit - 1:
        return 1
    half = max(2, (delivery_limit + 1) // 2)
    return None if count < half else max(1, most >> (count - half + 1))


def _segments(
    read_from: int, batches: Sequence[tuple[int, int]], skipped: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, bool]]:
    at = read_from
    for first, last in _without(batches, skipped):
        if at < first:
            yield at, first - 1, False
            at = first
        if at <= last:
            yield at, last, True
            at = last + 1
    end = max((spans[-1][1] for spans in (batches, skipped) if spans), default=-1)
    if at <= end:
        yield at, end, False


def _without(batches: Sequence[tuple[int, int]], skipped: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = 0
    for first, last in batches:
        start = first
        while at < len(skipped) and skipped[at][0] <= last:
            if start < skipped[at][0]:
                yield start, skipped[at][0] - 1
            start = max(start, skipped[at][1] + 1)
            if skipped[at][1] > last:
                break
            at += 1
        if start <= last:
            yield start, last


def are_valid(batches: Iterable[AckBatch], *, renewing: bool) -> bool:
    """Return whether a list of acknowledgements is in order, and has known types: one for a batch or for each offset.

    `renewing`: whether RENEW is allowed.
    """
    before = -1
    for batch in batches:
        if not before < batch.first <= batch.last or len(batch.types) not in {1, batch.last - batch.first + 1}:
            return False
        if batch.types.translate(None, _TYPES) or (_RENEWED in batch.types and not renewing):
            return False
        before = batch.last
    return True


def equal_types(batch: AckBatch, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield neighbors of a batch that have the same type, with it: those from `first` to `last`."""
    if len(batch.types) == 1:
        yield first, last, batch.types[0]
        return
    start, kind = first, batch.types[first - batch.first]
    for offset in range(first + 1, last + 1):
        each = batch.types[offset - batch.first]
        if each != kind:
            yield start, offset - 1, kind
            start, kind = offset, each
    yield start, last, kind


def _taken_back(run: Run) -> Run:
    decision = RecordState.DONE if run.state is RecordState.DEAD else None
    return Run(run.first, run.last, run.state, run.count, run.member, run.until, decision)
