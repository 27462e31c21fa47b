"""Recover a log whose ownership is in doubt, and retry until it succeeds."""

from collections.abc import Awaitable, Callable

import structlog

from headrace.broker.log_ports import LogStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.topics.errors import Fenced, StorageFull, StorageMoving, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import OpenedLog
from headrace.topics.transactions import Transactions

_log = structlog.get_logger("headrace.broker.partition")
_RETRY_MS, _MOST_RETRY_MS = 50, 2_000
"""First and maximum delay between attempts, in ms."""
_FULL_RETRY_MS = 500
"""First delay after Redis reported that it is full, in ms."""
_MOVING_RETRY_MS = 250
"""First delay while the log's slot moves, in ms. Such a log can often be opened but not written."""


async def reopened(
    topic: str,
    index: int,
    open_by: Callable[[int | None], Awaitable[OpenedLog]],
    view: Callable[[], int | None],
    reason: Exception,
    clock: Clock,
    offline: Callable[[Exception], None],
) -> OpenedLog:
    """Recover a log by the current broker epoch.

    `open_by` attempts once by a broker epoch (None for a single server). `offline` is called for foreign data.

    Raises:
        Fenced, UnknownTopic: another server leads the log, or it was deleted.
    """
    full, moving = isinstance(reason, StorageFull), isinstance(reason, StorageMoving)
    first_ms = _FULL_RETRY_MS if full else _MOVING_RETRY_MS if moving else _RETRY_MS
    tries = backoff(clock, first_ms, _MOST_RETRY_MS)
    if full:
        log_storage_refusal(reason)
    if full or moving:
        await tries.pause()
    told = ""
    while True:
        by = view()
        try:
            opened = await open_by(by)
            if by == view():
                return opened
        except (StorageUnavailable, StorageFull):
            await tries.pause()
        except UnknownTopic:
            raise
        except Fenced:
            # An attempt with an older broker epoch is refused for that reason.
            if by == view():
                raise
        except Exception as error:
            # Such as foreign data, which an operator may remove.
            if str(error) != told:
                told = str(error)
                log_offline(topic, index, error)
                offline(error)
            await tries.pause()


def log_offline(topic: str, index: int, reason: Exception) -> None:
    """Log that a partition is offline."""
    foreseen = isinstance(reason, TopicError | ValueError)
    _log.error(
        "partition offline: storage holds other data than its log",
        topic=topic,
        partition=index,
        reason=str(reason),
        exc_info=None if foreseen else reason,
    )


def log_storage_refusal(reason: Exception) -> None:
    """Log that storage accepts no records.

    All partitions log the same line, whose repetitions are counted.
    """
    _log.warning("records are refused", reason=str(reason))


class ExhaustionReport:
    """Logs once that a partition has no offsets left."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told = False

    def report(self, topic: str, index: int, reason: Exception) -> None:
        """Log the first; later ones have the same cause."""
        if not self._told:
            self._told = True
            _log.error(
                "no offsets left: the partition accepts no more records, create another topic",
                topic=topic,
                partition=index,
                reason=str(reason),
            )


async def rebuilt(
    topic: str, index: int, rebuild: Callable[[str], Awaitable[Transactions]], stream: str, clock: Clock
) -> Transactions:
    """Read a log's transactions from all of its batches, and retry while storage does not respond."""
    _log.warning("the index of transactions is lost and is read from the log", topic=topic, partition=index)
    tries = backoff(clock, _RETRY_MS, _MOST_RETRY_MS)
    while True:
        try:
            return await rebuild(stream)
        except TopicError:
            await tries.pause()


async def opened_last_by(storage: LogStorage, stream: str, epochs: LeaderEpochs | None) -> bool:
    """Whether no server opened a log since these leader epochs, without a write.

    Does not ask a primary that reports NOREPLICAS: a replica may have replaced it. A primary with a full disk always
    reports MISCONF, so its replies may be outdated (decision 58). Raises StorageUnavailable.
    """
    found = (await storage.look(stream)).epochs
    return found is not None and epochs is not None and found.rows[-1] == epochs.rows[-1]


def log_given_up(topic: str, index: int, why: Exception, view: int | None) -> None:
    """Log that a partition accepts no more writes here.

    Normal after a deletion and in a cluster, where the next broker epoch names a leader, not for a single server
    (None).
    """
    tell = _log.error if view is None and isinstance(why, Fenced) else _log.info
    tell("partition lost", topic=topic, partition=index, reason=str(why))


def log_lost(topic: str, index: int, lost: int, leader_epoch: int) -> None:
    """Log that `lost` records are gone."""
    _log.error(
        "Redis came back without records that it had acknowledged: the leader epoch rises, so that consumers notice",
        topic=topic,
        partition=index,
        lost=lost,
        leader_epoch=leader_epoch,
    )
