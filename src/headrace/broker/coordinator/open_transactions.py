"""Check of pending offsets whose transaction may have been lost.

A loaded group asks the coordinator of transactions about its pending offsets. It drops those that no end of a
transaction will follow. Otherwise OffsetFetch would return UNSTABLE_OFFSET_COMMIT for ever.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import structlog

from headrace.aio.retry import retry
from headrace.aio.tasks import end
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.groups.events import Event, TransactionLost
from headrace.groups.pending_offsets import OpenTransaction
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.broker.coordinator")

_AT_ONCE = 32
"""Questions to the coordinator of transactions at the same time."""
_AGAIN_MS, _SELDOM_MS = 250, 5_000
"""First and longest delay before a question or a drop is repeated."""


class OpenTransactions(Protocol):
    """What groups need from the coordinator of transactions."""

    async def may_end(self, group: str, transaction: OpenTransaction) -> bool:
        """Return whether the transaction may still end in a group.

        The response False must be reliable. Raises TopicError if it is unknown now, for example while the coordinator
        of the transactional ID loads.
        """


class PendingGroup(Protocol):
    """A group that may have pending offsets."""

    @property
    def name(self) -> str:
        """Name of the group."""

    @property
    def closed(self) -> bool:
        """Whether the group has ended here."""

    def open_transactions(self) -> Iterable[OpenTransaction]:
        """Return the transactions with durable pending offsets."""

    def post(self, event: Event) -> None:
        """Queue an event."""


class PendingOffsetCheck:
    """Checks the groups of one virtual cluster, each in a task."""

    def __init__(self, clock: Clock, transactions: OpenTransactions | None) -> None:
        """Without a coordinator of transactions, pending offsets remain."""
        self._clock = clock
        self._transactions = transactions
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, group: PendingGroup) -> None:
        """Check a loaded group's pending offsets, if it has any."""
        found = sorted(group.open_transactions())
        if self._transactions is None or not found:
            return
        task = asyncio.get_running_loop().create_task(self._check(group, found, self._transactions))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(
        self, group: PendingGroup, found: Iterable[OpenTransaction], transactions: OpenTransactions
    ) -> None:
        again = backoff(self._clock, _AGAIN_MS, _SELDOM_MS)
        lost = set()
        for each in found:

            async def ask(asked: OpenTransaction = each) -> bool:
                async with self._few:
                    return await transactions.may_end(group.name, asked)

            with suppress(TopicError):
                if not await retry(ask, TopicError, again, is_over=lambda: group.closed):
                    lost.add(each)
                    _log.warning(
                        "pending offsets of an unknown transaction are dropped",
                        group=group.name,
                        transactional_id=each.transactional_id,
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                    )
        again.reset()
        # Storage may refuse a change.
        while not group.closed and (still := lost.intersection(group.open_transactions())):
            for each in still:
                group.post(TransactionLost(producer_id=each.producer_id, number=each.number))
            await again.pause()

    async def stop(self) -> None:
        """End all checks."""
        for task in tuple(self._tasks):
            await end(task)
