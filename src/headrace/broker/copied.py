"""Batches that Redis has and that wait for its replicas: where a topic's `min.insync.replicas` is above 1.

As in Kafka, the high watermark waits with them: what nobody can read yet, nobody can miss when a replica takes over
that has not got it. Where the replicas do not come in time, whoever wanted them is told, and the batch can be read all
the same, as in Kafka once the replica has left the in-sync ones.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from headrace.broker.cache import CacheBudget
from headrace.broker.ports import AppendDone, Copies, Lost
from headrace.topics.config import MIN_INSYNC, TopicConfig
from headrace.topics.errors import InvalidConfig, NotEnoughReplicas, StorageUnavailable
from headrace.topics.model import Append, Appended

Placed = Callable[[Append, Appended, AppendDone, Exception | None], None]


class _Held:
    """A batch that nobody can read yet."""

    __slots__ = ("append", "done", "placed", "result")

    def __init__(self, append: Append, placed: Appended, done: AppendDone | None) -> None:
        self.append = append
        self.placed = placed
        self.done = done
        """None: whoever appended it has been told."""
        self.result: Appended | Exception | None = None
        """How it went; None: it is not known yet."""


class Copied:
    """Those of one partition, in order."""

    __slots__ = ("_budget", "_copies", "_held", "_lost", "_placed", "_stream")

    def __init__(self, copies: Copies, stream: str, budget: CacheBudget, placed: Placed, lost: Lost) -> None:
        """Hold nothing yet.

        Args:
            copies: waits for replicas.
            stream: the partition's.
            budget: of the batches that all partitions hold.
            placed: makes a batch readable and then tells whoever appended it, or only tells of an error; called in the
                order of the log.
            lost: told that the primary may be another one by now: the log is to be opened anew.
        """
        self._held: deque[_Held] = deque()
        self._copies = copies
        self._stream = stream
        self._budget = budget
        self._placed = placed
        self._lost = lost

    @property
    def holds(self) -> bool:
        """Whether a batch waits: all that come behind it wait, too."""
        return bool(self._held)

    def hold(
        self, append: Append, placed: Appended, done: AppendDone, wanted: int, wait_ms: int, error: Exception | None
    ) -> None:
        """Redis has a batch, unless there is an error: it can be read when so many servers have it, or time is over.

        Args:
            append: the batch.
            placed: where it is.
            done: told when so many servers have it; or now, where `wait_ms` is 0.
            wanted: how many servers shall have it.
            wait_ms: how long `done` waits at most.
            error: why Redis has not got it.
        """
        if error is not None:
            self._placed(append, placed, done, error)
            return
        held = _Held(append, placed, done if wait_ms else None)
        self._held.append(held)
        self._budget.held += _size(held)
        if not wait_ms:
            done(placed)
        if wanted == 1:
            self._confirmed(held, None)
        else:
            self._copies.confirm(self._stream, wanted, wait_ms or _LONGEST_MS, partial(self._confirmed, held))

    def _confirmed(self, held: _Held, error: Exception | None) -> None:
        if held.result is not None:
            # The log was opened anew meanwhile.
            return
        if isinstance(error, StorageUnavailable):
            # A replica that takes over may lack it, so nobody reads it before an opening has told what there is.
            self._lost(error)
            # A log that is deleted, or in doubt already, tells nobody.
            self.fail(error)
            return
        held.result = error or held.placed
        waiting = self._held
        while waiting and waiting[0].result is not None:
            first = waiting.popleft()
            self._budget.held -= _size(first)
            self._placed(first.append, first.placed, partial(_tell, first.done, first.result), None)

    def fail(self, error: Exception) -> None:
        """The log is to be opened anew, or is another's: whoever opens it shows what is in it."""
        waiting, self._held = self._held, deque()
        for held in waiting:
            self._budget.held -= _size(held)
            held.result = error
        for held in waiting:
            if held.done is not None:
                held.done(error)


def _size(held: _Held) -> int:
    return len(held.append.batch) + _HELD_OVERHEAD


_HELD_OVERHEAD = 1_024
"""Bytes charged for each batch beside its own: Python objects of the batch, and of whoever waits for it."""
_LONGEST_MS = 2**31 - 1
"""`replica.lag.time.max.ms` bounds it."""


def _tell(done: AppendDone | None, result: Appended | Exception | None, _placed: Appended | Exception) -> None:
    if done is not None:
        assert result is not None
        done(result)


def check_possible(
    copies: Copies, config: Mapping[str, str], resolved: TopicConfig, before: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidConfig where a topic's own configuration asks for copies that there can never be.

    `before`: the configuration that it has; what does not change is not asked about.
    """
    wanted = resolved.min_insync_replicas
    asked = config.get(MIN_INSYNC) != (before or {}).get(MIN_INSYNC)
    if asked and wanted > 1 and not copies.possible:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted}: the embedded Valkey has no replicas, so 1 is all there is; "
            "start the server over a Redis with replicas (--redis URL)"
        )


def check_copies(copies: Copies, stream: str, wanted: int) -> None:
    """Raise NotEnoughReplicas where it is known that too few servers would have what is appended."""
    why = copies.short(stream, wanted)
    if why:
        raise NotEnoughReplicas(why)


def check_held(budget: CacheBudget) -> None:
    """Raise NotEnoughReplicas where as many batches as there is memory for wait for replicas already.

    Also for those who do not wait themselves and those whose clients are gone: what they sent is held all the same.
    """
    if budget.held >= budget.most_held:
        raise NotEnoughReplicas(f"{budget.held} bytes of batches wait for the replicas of Redis, which lag behind")


def confirmed(copies: Copies, stream: str, wanted: int, wait_ms: int, done: AppendDone) -> AppendDone:
    """Tells `done` of a batch that is there once so many servers have it, and of an error at once.

    Use it before the batch is sent: a primary that was promoted meanwhile would answer for replicas of its own.
    """
    way = copies.way(stream)

    def placed(result: Appended | Exception) -> None:
        if isinstance(result, Exception):
            done(result)
        elif copies.way(stream) != way:
            done(StorageUnavailable("another primary may have taken over since the records were acknowledged"))
        else:
            copies.confirm(stream, wanted, wait_ms, lambda error: done(error or result))

    return placed
