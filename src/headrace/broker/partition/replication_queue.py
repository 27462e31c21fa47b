"""What Redis has and may not be read yet: where a topic's `min.insync.replicas` is above 1.

As in Kafka, the high watermark waits with it, for as long as it takes: what nobody can read yet, nobody can miss when
a replica takes over that has not got it. Whoever appended a batch waits for `replica.lag.time.max.ms` at most.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from headrace.aio.callbacks import tell
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.ports import Copies
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append, AppendDone, Appended, Lost

_BATCH = "a batch that waits for copies"
Placed = Callable[[Append, Appended, AppendDone, Exception | None], None]


class _Held:
    """A batch that nobody can read yet, or all that was in the log when it was opened."""

    __slots__ = ("append", "done", "end", "overdue", "placed", "result")

    def __init__(self, append: Append | None, placed: Appended, end: int, done: AppendDone | None) -> None:
        self.append = append
        """None: what was in the log when it was opened."""
        self.placed = placed
        self.end = end
        """The offset behind it."""
        self.done = done
        """None: whoever appended it has been told."""
        self.overdue = append is None
        """Whether nobody waits for its copies any more but those who want to read it."""
        self.result: Appended | Exception | None = None
        """How it went; None: it is not known yet."""


class ReplicationQueue:
    """What waits in one log, in order: it lies between the high watermark and the offset that the next batch gets."""

    __slots__ = ("_asked", "_budget", "_copies", "_held", "_lost", "_opened", "_placed", "_stream", "_wanted")

    def __init__(
        self,
        copies: Copies,
        stream: str,
        budget: CacheBudget,
        placed: Placed,
        opened: Callable[[int], None],
        lost: Lost,
    ) -> None:
        """Hold nothing yet.

        Args:
            copies: waits for replicas.
            stream: the partition's.
            budget: of the batches that all partitions hold.
            placed: makes a batch readable and then tells whoever appended it, or only tells of an error; called in the
                order of the log.
            opened: makes readable what was in the log when it was opened, up to an offset.
            lost: told that the primary may be another one by now: the log is to be opened anew.
        """
        self._held: deque[_Held] = deque()
        self._copies = copies
        self._stream = stream
        self._budget = budget
        self._placed = placed
        self._opened = opened
        self._lost = lost
        self._wanted = 1
        self._asked: _Held | None = None
        """Up to which batch copies are waited for however long it takes."""

    @property
    def holds(self) -> bool:
        """Whether a batch waits: all that come behind it wait, too."""
        return bool(self._held)

    @property
    def end(self) -> int:
        """The offset behind what waits last."""
        return self._held[-1].end

    def want(self, copies: int) -> None:
        """So many servers are to have what can be read from now on, what waits already included."""
        self._wanted = copies
        if copies == 1 and self._held:
            self._asked = None
            self._reached(self.end)
        elif self._asked is not None:
            self._asked = None
            self._ask_on()

    def hold_opened(self, end: int) -> None:
        """The log was opened: what is in it, up to `end`, can be read when so many servers have it as are wanted."""
        self._hold(_Held(None, Appended(end), end, None))
        self._ask_on()

    def hold(
        self, append: Append, placed: Appended, done: AppendDone, wanted: int, wait_ms: int, error: Exception | None
    ) -> None:
        """Redis has a batch, unless there is an error: it can be read when so many servers have it.

        Args:
            append: the batch.
            placed: where it is.
            done: told when so many servers have it, or time is over; or now, where `wait_ms` is 0.
            wanted: how many servers shall have it.
            wait_ms: how long `done` waits at most.
            error: why Redis has not got it.
        """
        if error is not None:
            self._placed(append, placed, done, error)
            return
        held = _Held(append, placed, placed.base_offset + append.span, done if wait_ms else None)
        self._hold(held)
        if not wait_ms:
            tell(done, placed, _BATCH)
        if wanted == 1:
            held.result = placed
            self._flush()
        else:
            self._copies.confirm(self._stream, wanted, wait_ms or _LONGEST_MS, partial(self._confirmed, held))

    def _hold(self, held: _Held) -> None:
        self._held.append(held)
        self._budget.held += _size(held)

    def _confirmed(self, held: _Held, error: Exception | None) -> None:
        if held.result is not None:
            # Somebody else's copies came behind it, or the log was opened anew meanwhile.
            return
        if isinstance(error, StorageUnavailable):
            self._doubted(error)
        elif error is None:
            self._reached(held.end)
        else:
            done, held.done, held.overdue = held.done, None, True
            if done is not None:
                tell(done, error, _BATCH)
            self._ask_on()

    def _ask_on(self) -> None:
        """Wait for the copies of all that is here: once for all of it, and however long it takes."""
        if self._asked is None and self._held:
            last = self._asked = self._held[-1]
            self._copies.confirm(self._stream, self._wanted, None, partial(self._have_come, last, self._wanted))

    def _have_come(self, last: _Held, wanted: int, error: Exception | None) -> None:
        if self._asked is not last or wanted != self._wanted:
            # Asked once more since.
            return
        self._asked = None
        if isinstance(error, StorageUnavailable):
            self._doubted(error)
        elif error is None:
            self._reached(last.end)

    def _doubted(self, error: StorageUnavailable) -> None:
        # A replica that takes over may lack it, so nobody reads it before an opening has told what there is.
        self._lost(error)
        # A log that is deleted, or in doubt already, tells nobody.
        self.fail(error)

    def _reached(self, end: int) -> None:
        """There are enough copies of all up to an offset: what comes last was written last."""
        for held in self._held:
            if held.end > end:
                break
            held.result = held.placed
        self._flush()

    def _flush(self) -> None:
        waiting = self._held
        while waiting and waiting[0].result is not None:
            first = waiting.popleft()
            self._budget.held -= _size(first)
            if first.append is None:
                self._opened(first.end)
            else:
                self._placed(first.append, first.placed, partial(_tell, first.done, first.result), None)
        if waiting and waiting[0].overdue:
            self._ask_on()

    def fail(self, error: Exception) -> None:
        """The log is to be opened anew, or is another's: whoever opens it shows what is in it."""
        waiting, self._held, self._asked = self._held, deque(), None
        for held in waiting:
            self._budget.held -= _size(held)
            held.result = error
        for held in waiting:
            if held.append is not None and held.done is not None:
                self._placed(held.append, held.placed, partial(tell, held.done, to=_BATCH), error)


def _size(held: _Held) -> int:
    return 0 if held.append is None else len(held.append.batch) + _HELD_OVERHEAD


_HELD_OVERHEAD = 1_024
"""Bytes charged for each batch beside its own: Python objects of the batch, and of whoever waits for it."""
_LONGEST_MS = 2**31 - 1
"""`replica.lag.time.max.ms` bounds it."""


def _tell(done: AppendDone | None, result: Appended | Exception | None, _placed: Appended | Exception) -> None:
    if done is not None:
        assert result is not None
        tell(done, result, _BATCH)
