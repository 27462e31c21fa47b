"""Transactions of partitions that are open for longer than any timeout: does their coordinator still know them?

A coordinator ends each of its transactions. One that it has lost would stay open, and readers of committed records
would wait for its end forever.
"""

from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.participant import transaction_ended
from headrace.broker.runtime.clock import Clock, pause
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.topics.live import LiveTopic
from headrace.records.markers import NUMBERS, Marker
from headrace.topics.errors import TopicError
from headrace.topics.transactions import OpenTransaction
from headrace.transactions.model import PartitionId

GRACE_MS: Final = 60_000
"""Milliseconds above `transaction.max.timeout.ms` before a coordinator is asked."""
_INTERVAL_MS: Final = 60_000
_MOST: Final = 1_000
"""Transactions of one partition in one round, the oldest ones."""
_AT_ONCE: Final = 32
"""Questions at the same time."""
_WAIT_MS: Final = 5_000
"""Maximum wait for replicas of a marker. The marker is placed before."""
_log = structlog.get_logger("headrace.broker.coordinator")

MayEnd = Callable[[OpenTransaction, PartitionId], Awaitable[bool]]
"""Returns whether a coordinator may still end a transaction in a partition.

False must be reliable. Raises TopicError if it is unknown now.
"""


class LateTransactions:
    """Aborts transactions in this broker's partitions that no coordinator will end."""

    def __init__(
        self,
        topics: Iterable[LiveTopic],
        clock: Clock,
        lane: CooperativeScheduler,
        max_timeout_ms: Callable[[], int],
        may_end: MayEnd,
    ) -> None:
        """`max_timeout_ms` returns the present `transaction.max.timeout.ms`."""
        self._topics = topics
        self._clock = clock
        self._lane = lane
        self._max_timeout_ms = max_timeout_ms
        self._may_end = may_end

    async def check(self) -> int:
        """Ask about all late transactions once. Return the number of aborted ones.

        Transactions whose transactional ID is unknown are left to an administrator, and metrics show them.
        """
        aborted = 0
        async for live in self._lane.pace().each(list(self._topics)):
            for index, partition in enumerate(list(live.partitions)):
                log = partition.log
                if log is not None and log.transactions is not None and log.transactions.open:
                    aborted += await self._check(PartitionId(live.topic.id, index), log)
        return aborted

    async def _check(self, place: PartitionId, log: LeaderPartition) -> int:
        if not (log.is_leader and log.is_writable) or log.transactions is None:
            return 0
        before_ms = self._clock.now_ms() - self._max_timeout_ms() - GRACE_MS
        oldest = islice(log.transactions.open.values(), _MOST)
        late = [each for each in oldest if each.since_ms < before_ms and each.transactional_id]

        async def ask(transaction: OpenTransaction) -> bool:
            try:
                return not await self._may_end(transaction, place) and await _abort(log, transaction)
            except TopicError as error:
                _log.warning("a late transaction is left open", **_named(log, transaction), reason=str(error))
                return False

        return sum([ended async for part in in_slices(late, ask, _AT_ONCE) for _, ended in part])


async def _abort(log: LeaderPartition, transaction: OpenTransaction) -> bool:
    """Abort a transaction unless it has ended in the meantime. Raises TopicError."""
    known = log.transactions
    if known is None or known.open.get(transaction.producer_id) != transaction:
        return False
    _log.error("a transaction that its coordinator does not know is aborted", **_named(log, transaction))
    number = transaction.number % NUMBERS if transaction.number >= 0 else transaction.number
    marker = Marker(transaction.producer_id, transaction.epoch, commit=False, number=number)
    # Nothing may run between the comparison and the placement of the marker.
    await transaction_ended(log, marker, _WAIT_MS)
    return True


def _named(log: LeaderPartition, transaction: OpenTransaction) -> dict[str, str | int]:
    return {
        "topic": log.topic,
        "partition": log.index,
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "first_offset": transaction.first_offset,
    }


async def keep_checking(late: LateTransactions, clock: Clock) -> None:
    """Check once a minute until canceled."""
    while True:
        await pause(clock, _INTERVAL_MS)
        try:
            await late.check()
        except Exception:  # an error must not end the checks
            _log.exception("late transactions not checked")
