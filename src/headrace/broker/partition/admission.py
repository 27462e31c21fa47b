"""Hold a producer's batches until its transaction coordinator confirms that the transaction includes the partition.

The first transactional batch of a producer without an open transaction waits for the coordinator. Every later batch of
this producer waits after it, so that none is stored before an earlier one (KAFKA-14904). The confirmation is valid only
for the transaction that the coordinator saw: a marker or a recovery of the log invalidates it (KAFKA-14884). If the
marker is that of an earlier transaction, the number in the response tells the two apart. EndTxn may respond before all
markers are stored, so the next transaction of a producer may wait here when a marker arrives.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from headrace.aio.tasks import tell, unheard
from headrace.records.markers import Marker, is_later
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import (
    InvalidRecord,
    MissingTransactionalId,
    TopicError,
    TransactionUnverified,
)
from headrace.topics.model import Append, AppendDone

_BATCH = "a transactional batch"
_OVER = "the transaction ended before its batch was stored"

AdmitDone = Callable[[int | Exception], None]
"""Called once with the number of the transaction, or with the reason why it does not include the partition."""


class Admit(Protocol):
    """Asks the transaction coordinator about the first batch of a transaction in a partition."""

    def __call__(self, topic: str, index: int, append: Append, done: AdmitDone) -> None:
        """Confirm that the transaction of a batch includes the partition, durably.

        `append` has the transactional id, producer id and epoch. `done` may be called before this returns. Its error
        is the response to the producer.
        """


class Held(NamedTuple):
    """A batch that waits, with the arguments of its append."""

    append: Append
    done: AppendDone
    copies: int
    wait_ms: int


class AdmissionEvents(NamedTuple):
    """Callbacks for batches that waited. Only waiting batches hold references to them."""

    append: Callable[[Held, int | None], None]
    """Stores a confirmed batch with the number of its transaction, or appends one that waited after it (None)."""
    refuse: Callable[[Append], None]
    """Notes a rejected batch."""


class _Guard:
    """The batches of one producer that wait for one response of the coordinator."""

    __slots__ = ("ended", "events", "held")

    def __init__(self, first: Held, events: AdmissionEvents) -> None:
        self.held = [first]
        self.events = events
        self.ended = -1
        """Number of the transaction that has ended since. Negative: none has."""

    def outlasts(self, marker: Marker) -> bool:
        """Whether the batches may be of a later transaction than the one that ends.

        Only in the second protocol (KIP-890): each end gives the producer an epoch, and the next transaction uses it.
        """
        first = self.held[0].append
        return first.adds_partition and marker.number >= 0 and first.producer_epoch >= marker.producer_epoch


class Admission:
    """The batches of one partition that wait for coordinators."""

    __slots__ = ("admit", "guards", "prepare")

    def __init__(self, prepare: Callable[[], "asyncio.Task[None] | None"]) -> None:
        """Start without batches. `prepare` prepares storage for transactions; None: it is ready."""
        self.admit: Admit | None = None
        """None: the server has no transactions."""
        self.prepare = prepare
        self.guards: dict[int, _Guard] = {}
        """The guard of each producer that waits."""

    def check(self, append: Append) -> None:
        """Check a transactional batch.

        Raises:
            InvalidRecord: the server has no transactions.
            MissingTransactionalId: its request has no transactional id.
        """
        if self.admit is None:
            raise InvalidRecord("a transactional batch: this server has no transactions")
        if not append.transaction:
            raise MissingTransactionalId("a transactional batch in a request without a transactional id")

    def takes(self, owner: OffsetAssigner, topic: str, index: int, held: Held, events: AdmissionEvents) -> bool:
        """Hold a batch if it must wait. Return whether it does, or has been handled."""
        append = held.append
        guard = self.guards.get(append.producer_id)
        if guard is not None:
            guard.held.append(held)
            return True
        if append.transaction is None or not owner.must_verify(append):
            return False
        assert self.admit is not None
        guard = self.guards[append.producer_id] = _Guard(held, events)
        self.admit(topic, index, append, partial(self._answered, append.producer_id, guard))
        return True

    def _answered(self, producer_id: int, guard: _Guard, result: int | Exception) -> None:
        if self.guards.get(producer_id) is not guard:
            return
        if isinstance(result, Exception):
            self._end(producer_id, result)
            return
        task = self.prepare()
        if task is None:
            self._place(producer_id, guard, result)
        else:
            task.add_done_callback(partial(self._prepared, producer_id, guard, result))

    def _prepared(self, producer_id: int, guard: _Guard, number: int, done: "asyncio.Task[None]") -> None:
        unheard(done)
        if self.guards.get(producer_id) is not guard:
            return
        error = TransactionUnverified("the server stops") if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._end(producer_id, error)
        else:
            self._place(producer_id, guard, number)

    def _place(self, producer_id: int, guard: _Guard, number: int) -> None:
        if guard.ended >= 0 and not is_later(number, guard.ended):
            self._end(producer_id, TransactionUnverified(_OVER))
            return
        del self.guards[producer_id]
        first, *others = guard.held
        self._try_append(guard, first, number)
        for each in others:
            self._try_append(guard, each, None)

    @staticmethod
    def _try_append(guard: _Guard, held: Held, number: int | None) -> None:
        try:
            guard.events.append(held, number)
        except TopicError as error:
            tell(held.done, error, _BATCH)

    def invalidate(self, marker: Marker) -> None:
        """Reject a producer's batches that wait, unless the transaction that ends is an earlier one."""
        guard = self.guards.get(marker.producer_id)
        if guard is None:
            return
        if guard.outlasts(marker):
            guard.ended = marker.number
        else:
            self._end(marker.producer_id, TransactionUnverified(_OVER))

    def fail(self, error: Exception) -> None:
        """Reject all that waits: the log is in doubt, or has another leader."""
        for producer_id in tuple(self.guards):
            self._end(producer_id, error)

    def _end(self, producer_id: int, error: Exception) -> None:
        guard = self.guards.pop(producer_id)
        for each in guard.held:
            guard.events.refuse(each.append)
            tell(each.done, error, _BATCH)
