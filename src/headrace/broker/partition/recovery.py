"""Opens a log anew whose ownership is in doubt, as often as it takes."""

from collections.abc import Awaitable, Callable

import structlog

from headrace.broker.ports import LogStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.topics.errors import Fenced, StorageFull, StorageMoving, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import OpenedLog

_log = structlog.get_logger("headrace.broker.partition")
_RETRY_MS, _MOST_RETRY_MS = 50, 2_000
"""How soon a log is tried again that cannot be opened anew, at first and at last."""
_FULL_RETRY_MS = 500
"""How long one that Redis refused for want of room is left alone at first."""
_MOVING_RETRY_MS = 250
"""How long one whose slot moves is left alone at first: it can often be opened, and not be written to."""


async def reopened(
    topic: str,
    index: int,
    open_by: Callable[[int | None], Awaitable[OpenedLog]],
    view: Callable[[], int | None],
    reason: Exception,
    clock: Clock,
    offline: Callable[[Exception], None],
) -> OpenedLog:
    """What the log has when it is open again, by the view that holds then.

    Args:
        topic: the topic's name.
        index: the partition's number.
        open_by: tries once, by the view of a number; None: this server is alone.
        view: the number of the view that holds now.
        reason: why it has to be opened.
        clock: for the pauses between.
        offline: called where storage holds something else than the log.

    Raises:
        Fenced, UnknownTopic: another server has it, or it was deleted.
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
            # Who tried by an older view was refused for that.
            if by == view():
                raise
        except Exception as error:
            # Somebody has laid hands on the log, say; whatever it is may be put right.
            if str(error) != told:
                told = str(error)
                log_offline(topic, index, error)
                offline(error)
            await tries.pause()


def log_offline(topic: str, index: int, reason: Exception) -> None:
    """Tell in our log that a partition is offline."""
    foreseen = isinstance(reason, TopicError | ValueError)
    _log.error(
        "partition offline: storage holds something else than its log",
        topic=topic,
        partition=index,
        reason=str(reason),
        exc_info=None if foreseen else reason,
    )


def log_storage_refusal(reason: Exception) -> None:
    """Tell in our log that storage takes no records.

    Every partition tells the same: a line that comes again is counted, not written.
    """
    _log.warning("records are refused", reason=str(reason))


class ExhaustionReport:
    """Reports once in our log that a partition has no offsets left."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told = False

    def report(self, topic: str, index: int, reason: Exception) -> None:
        """Log the first of these errors; every later one has the same cause."""
        if not self._told:
            self._told = True
            _log.error(
                "no offsets left: the partition takes no more records, create another topic",
                topic=topic,
                partition=index,
                reason=str(reason),
            )


async def opened_last_by(storage: LogStorage, stream: str, epochs: LeaderEpochs | None) -> bool:
    """Whether nobody has opened a log since it was opened with these leader epochs. It asks without a write.

    A primary that has lost its replicas says NOREPLICAS, and is not asked: one of them may have taken its place. With a
    full disk it says MISCONF, whatever its replicas: what it answers may be old then (decision 58).

    Raises:
        StorageUnavailable.
    """
    found = (await storage.look(stream)).epochs
    return found is not None and epochs is not None and found.rows[-1] == epochs.rows[-1]


def log_given_up(topic: str, index: int, why: Exception, view: int | None) -> None:
    """Tell in our log that a partition takes nothing here any more.

    That is in order where it was deleted, or where there is a view: whose next one says who leads it. A server that is
    alone (None) has nobody to give it to.
    """
    tell = _log.error if view is None and isinstance(why, Fenced) else _log.info
    tell("partition lost", topic=topic, partition=index, reason=str(why))


def log_lost(topic: str, index: int, lost: int, leader_epoch: int) -> None:
    """Tell in our log that so many records are gone."""
    _log.error(
        "Redis came back without records that it had acknowledged: the leader epoch rises, so that consumers notice",
        topic=topic,
        partition=index,
        lost=lost,
        leader_epoch=leader_epoch,
    )
