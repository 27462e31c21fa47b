"""End transactions in a partition, on behalf of their coordinator or an administrator.

A coordinator repeats a request until it succeeds, also after another broker has taken over. Each step is therefore
idempotent, and success means that the result survives a failure of this broker.
"""

import asyncio
from collections.abc import Callable

from headrace.aio.tasks import tell, to_the_end, unheard
from headrace.broker.partition.leader import LeaderPartition
from headrace.records.markers import NUMBERS, Marker
from headrace.topics.append import EndStep
from headrace.topics.errors import TopicError
from headrace.topics.model import Appended

AS_LONG_AS_IT_TAKES = 2**31 - 1
"""Milliseconds. `replica.lag.time.max.ms` is the effective limit."""
_END = "the end of a transaction"

EndDone = Callable[[Exception | None], None]
"""Called once: None if the transaction has ended in the partition."""


def end_transaction(
    partition: LeaderPartition, marker: Marker, done: EndDone, wait_ms: int = AS_LONG_AS_IT_TAKES
) -> None:
    """End the transaction of a producer in a partition.

    - An open transaction gets the marker.
    - Without one, epoch and number are saved.
    - Batches that wait for their coordinator are rejected, except those of a later transaction.
    - A request that was already fulfilled succeeds when its result is durable. `marker.number` identifies it. A
      negative number, of an administrator, is never a repeated one.

    `wait_ms` is the maximum wait for replicas. Errors such as NotLeader, InvalidProducerEpoch and StorageUnavailable
    are passed to `done`.
    """
    if marker.number >= NUMBERS:
        marker = marker._replace(number=marker.number % NUMBERS)

    def placed(result: Appended | Exception) -> None:
        done(result if isinstance(result, Exception) else None)

    try:
        step = partition.end_step(marker)
        if step is EndStep.PLACE:
            partition.append_marker(marker, placed, wait_ms)
            return
        if partition.wait_for_marker(marker.producer_id, placed, wait_ms):
            return
        if step is EndStep.NOTE:
            partition.note_end(marker)
    except TopicError as error:
        tell(done, error, _END)
        return
    if partition.is_unsaved(marker.producer_id):
        unheard(asyncio.get_running_loop().create_task(to_the_end(_save(partition, marker, done)), name="end"))
    else:
        tell(done, None, _END)


async def transaction_ended(partition: LeaderPartition, marker: Marker, wait_ms: int = AS_LONG_AS_IT_TAKES) -> None:
    """As `end_transaction`, for a caller that waits. Raises its errors."""
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(error)

    end_transaction(partition, marker, done, wait_ms)
    error = await ended
    if error is not None:
        raise error


async def _save(partition: LeaderPartition, marker: Marker, done: EndDone) -> None:
    error: Exception | None = None
    try:
        await partition.save_producers()
        if not partition.is_writable:
            partition.end_step(marker)  # raises the reason
    except TopicError as failure:
        error = failure
    tell(done, error, _END)
