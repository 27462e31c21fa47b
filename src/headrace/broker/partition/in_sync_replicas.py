"""Checks that enough replicas have a batch, for topics with `min.insync.replicas` above 1."""

import asyncio
from collections.abc import Mapping

from headrace.broker.log_ports import InSyncReplicas
from headrace.broker.partition.cache import CacheBudget
from headrace.topics.config import MIN_INSYNC, TopicConfig
from headrace.topics.errors import InvalidConfig, NotEnoughReplicas, NotEnoughReplicasAfterAppend, StorageUnavailable
from headrace.topics.model import AppendDone, Appended

_READER_MS = 500
"""Maximum wait of a read for replicas, in ms."""


def check_attainable(
    copies: InSyncReplicas, config: Mapping[str, str], resolved: TopicConfig, before: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidConfig if a topic's own configuration needs more replicas than possible.

    `before`: its configuration until now; an unchanged value is not checked.
    """
    wanted = resolved.min_insync_replicas
    asked = config.get(MIN_INSYNC) != (before or {}).get(MIN_INSYNC)
    if asked and wanted > 1 and not copies.can_replicate:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted}: the embedded Valkey has no replicas, so 1 is all there is; "
            "start the server over a Redis with replicas (--redis URL)"
        )


def check_replicas(copies: InSyncReplicas, stream: str, wanted: int) -> None:
    """Raise NotEnoughReplicas if too few replicas are known to follow the primary."""
    why = copies.why_too_few(stream, wanted)
    if why:
        raise NotEnoughReplicas(why)


def check_room(budget: CacheBudget) -> None:
    """Raise NotEnoughReplicas if batches that wait for replicas exhaust their memory.

    They include those with acks=0 or 1 and of disconnected clients.
    """
    if budget.held >= budget.most_held:
        raise NotEnoughReplicas(f"{budget.held} bytes of batches wait for the replicas of Redis, which lag")


def done_with_copies(copies: InSyncReplicas, stream: str, wanted: int, wait_ms: int, done: AppendDone) -> AppendDone:
    """Return a callback that calls `done` once `wanted` servers have the batch, at once for an error.

    Call this before the batch is sent: a primary promoted later would answer for its own replicas.
    """
    primary = copies.primary(stream)

    def placed(result: Appended | Exception) -> None:
        if isinstance(result, Exception):
            done(result)
        elif copies.primary(stream) != primary:
            done(StorageUnavailable("another primary may have taken over since the records were acknowledged"))
        else:
            copies.confirm(stream, wanted, wait_ms, lambda error: done(error or result))

    return placed


async def replicas_caught_up(copies: InSyncReplicas, stream: str, wanted: int) -> bool:
    """Whether `wanted` servers have all that a stream's primary has, after at most 500 ms.

    Raises:
        StorageUnavailable: another primary may have taken over.
    """
    if copies.why_too_few(stream, wanted):
        return False
    confirmed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not confirmed.done():
            confirmed.set_result(error)

    copies.confirm(stream, wanted, _READER_MS, done)
    error = await confirmed
    if isinstance(error, NotEnoughReplicasAfterAppend):
        return False
    if error is not None:
        raise error
    return True
