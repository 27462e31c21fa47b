"""Whether enough servers have what was appended, where a topic's `min.insync.replicas` is above 1."""

import asyncio
from collections.abc import Mapping

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.ports import Copies
from headrace.topics.config import MIN_INSYNC, TopicConfig
from headrace.topics.errors import InvalidConfig, NotEnoughReplicas, NotEnoughReplicasAfterAppend, StorageUnavailable
from headrace.topics.model import AppendDone, Appended

_READER_MS = 500
"""How long a reader waits for copies before it is shown what is known to have them."""


def check_attainable(
    copies: Copies, config: Mapping[str, str], resolved: TopicConfig, before: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidConfig where a topic's own configuration asks for copies that there can never be.

    `before`: the configuration that it has; what does not change is not asked about.
    """
    wanted = resolved.min_insync_replicas
    asked = config.get(MIN_INSYNC) != (before or {}).get(MIN_INSYNC)
    if asked and wanted > 1 and not copies.can_replicate:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted}: the embedded Valkey has no replicas, so 1 is all there is; "
            "start the server over a Redis with replicas (--redis URL)"
        )


def check_replicas(copies: Copies, stream: str, wanted: int) -> None:
    """Raise NotEnoughReplicas where it is known that too few servers would have what is appended."""
    why = copies.why_too_few(stream, wanted)
    if why:
        raise NotEnoughReplicas(why)


def check_room(budget: CacheBudget) -> None:
    """Raise NotEnoughReplicas where as many batches as there is memory for wait for replicas already.

    Also for those who do not wait themselves and those whose clients are gone: what they sent is held all the same.
    """
    if budget.held >= budget.most_held:
        raise NotEnoughReplicas(f"{budget.held} bytes of batches wait for the replicas of Redis, which lag behind")


def done_with_copies(copies: Copies, stream: str, wanted: int, wait_ms: int, done: AppendDone) -> AppendDone:
    """Tells `done` of a batch that is there once so many servers have it, and of an error at once.

    Use it before the batch is sent: a primary that was promoted meanwhile would answer for replicas of its own.
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


async def copies_have_come(copies: Copies, stream: str, wanted: int) -> bool:
    """Whether so many servers have all that a stream's primary has; waits for it for a moment.

    Raises:
        StorageUnavailable: another primary may have taken over meanwhile.
    """
    if copies.why_too_few(stream, wanted):
        return False
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not told.done():
            told.set_result(error)

    copies.confirm(stream, wanted, _READER_MS, done)
    error = await told
    if isinstance(error, NotEnoughReplicasAfterAppend):
        return False
    if error is not None:
        raise error
    return True
