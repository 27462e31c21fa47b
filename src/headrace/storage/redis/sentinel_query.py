"""Asks Sentinels for the primary: all of them at once, since one that has missed a failover names the old one.

"Guidelines for Redis clients with Sentinel support" has clients believe the first one that answers, and ask the server
itself for its ROLE. The old primary says that it is one until a Sentinel makes it a replica: what it acknowledges until
then is lost. So the highest configuration epoch wins, which rises with each failover ("Configuration epochs" in the
documentation of Sentinel); whoever connects asks for the role.
"""

import asyncio
from collections.abc import Iterable
from concurrent import futures
from time import monotonic
from typing import Any, Final, NamedTuple

import redis.asyncio
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import NoPermissionError
from redis.sentinel import MasterNotFoundError as BlockingMasterNotFoundError

from headrace.aio.tasks import end

_OTHERS_S: Final = 0.25
"""How long the others are waited for once one has named a primary. A Sentinel answers at once, or stands still."""
_ADDRESS: Final = "SENTINEL GET-MASTER-ADDR-BY-NAME"


class _Named(NamedTuple):
    """Whom a Sentinel names."""

    epoch: int
    """The configuration epoch by which it does."""
    place: tuple[str, int]


class AsyncSentinels(redis.asyncio.Sentinel):
    """Those of a primary, to be asked in an event loop."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Raises redis-py's MasterNotFoundError, which has a reason for each Sentinel."""
        loop = asyncio.get_running_loop()
        asked = {loop.create_task(_named(each, service_name), name="sentinel"): each for each in self.sentinels}
        waited, until_s = set(asked), None
        try:
            while waited and (until_s is None or loop.time() < until_s):
                left_s = None if until_s is None else until_s - loop.time()
                done, waited = await asyncio.wait(waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if until_s is None and any(task.exception() is None for task in done):
                    until_s = loop.time() + _OTHERS_S
        finally:
            for task in waited:
                await end(task)
        told = {task: task.exception() for task in asked if task not in waited}
        named = [task.result() for task, error in told.items() if error is None]
        if not named:
            raise MasterNotFoundError(_none_named(service_name, ((asked[task], told[task]) for task in told)))
        return _latest(named)


class Sentinels(redis.Sentinel):
    """The same for threads."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Raises redis-py's MasterNotFoundError, which has a reason for each Sentinel."""
        pool = futures.ThreadPoolExecutor(len(self.sentinels), "sentinel")
        asked = {pool.submit(_named_blocking, each, service_name): each for each in self.sentinels}
        # Who stands still ends by the timeout of its own socket.
        pool.shutdown(wait=False)
        waited, until_s = set(asked), None
        while waited and (until_s is None or monotonic() < until_s):
            left_s = None if until_s is None else until_s - monotonic()
            done, waited = futures.wait(waited, left_s, futures.FIRST_COMPLETED)
            if until_s is None and any(each.exception() is None for each in done):
                until_s = monotonic() + _OTHERS_S
        told = {each: each.exception() for each in asked if each not in waited}
        named = [each.result() for each, error in told.items() if error is None]
        if not named:
            raise BlockingMasterNotFoundError(_none_named(service_name, ((asked[each], told[each]) for each in told)))
        return _latest(named)


async def _named(asked: Any, service: str) -> _Named:
    """Whom a Sentinel names. Raises RedisError, OSError, LookupError."""
    # The epoch before the address: one that changes its mind in between names the new primary under the old epoch, and
    # never the other way round.
    state = _known(await asked.sentinel_masters(), service)
    try:
        address = await asked.execute_command(_ADDRESS, service)
    except NoPermissionError:
        address = None
    return _believed(state, address)


def _named_blocking(asked: Any, service: str) -> _Named:
    """See `_named`."""
    state = _known(asked.sentinel_masters(), service)
    try:
        address = asked.execute_command(_ADDRESS, service)
    except NoPermissionError:
        address = None
    return _believed(state, address)


def _known(masters: Any, service: str) -> Any:
    state = masters.get(service)
    if state is None:
        raise LookupError("knows none of that name")
    return state


def _believed(state: Any, address: Any) -> _Named:
    """Whom a Sentinel names by what it says of a primary, and the address that it gives clients; None: it may not.

    Who leads a failover gives the address of the promoted server, and has the old one, which may be down, as the
    primary until all other replicas follow.

    Raises:
        LookupError: it takes the primary to be down.
    """
    told = str(state["ip"]), int(state["port"])
    given = told if address is None else (_text(address[0]), int(address[1]))
    if given == told and (not state["is_master"] or state["is_sdown"] or state["is_odown"]):
        raise LookupError("takes it to be down")
    return _Named(int(state["config-epoch"]), given)


def _text(told: bytes | str) -> str:
    return told.decode() if isinstance(told, bytes) else told


def _latest(named: Iterable[_Named]) -> tuple[str, int]:
    """The first one of those with the highest epoch."""
    return max(named, key=lambda each: each.epoch).place


def _none_named(service: str, told: Iterable[tuple[Any, BaseException | None]]) -> str:
    why = "; ".join(_why(asked, error) for asked, error in told)
    return f"no Sentinel names a primary {service!r} ({why})"


def _why(asked: redis.Redis | redis.asyncio.Redis, error: BaseException | None) -> str:
    options = asked.connection_pool.connection_kwargs
    why = "it is no Sentinel" if "unknown command" in str(error) else str(error).rstrip(".")
    return f"{options['host']}:{options['port']}: {why}"
