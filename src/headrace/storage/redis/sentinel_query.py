"""Query all Sentinels for the primary concurrently, because one that missed a failover names the old one.

"Guidelines for Redis clients with Sentinel support" uses the first reply, and checks ROLE. But the old primary has that
role until a Sentinel demotes it, and its writes until then are lost. So the highest configuration epoch counts, which
rises with each failover. The connection checks the role.
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
"""Seconds to wait for the others after a Sentinel has named a primary."""
_ADDRESS: Final = "SENTINEL GET-MASTER-ADDR-BY-NAME"


class _Named(NamedTuple):
    epoch: int
    """Configuration epoch of the name."""
    place: tuple[str, int]


class AsyncSentinels(redis.asyncio.Sentinel):
    """Sentinels of a primary, for an event loop."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary. Raises MasterNotFoundError with a reason for each Sentinel."""
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
    """As `AsyncSentinels`, for threads."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """As `AsyncSentinels.discover_master`."""
        pool = futures.ThreadPoolExecutor(len(self.sentinels), "sentinel")
        asked = {pool.submit(_named_blocking, each, service_name): each for each in self.sentinels}
        # A hanging request ends by its socket timeout.
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
    # The epoch first: a failover in between gives the new primary an old epoch, never the reverse.
    state = _known(await asked.sentinel_masters(), service)
    try:
        address = await asked.execute_command(_ADDRESS, service)
    except NoPermissionError:
        address = None
    return _believed(state, address)


def _named_blocking(asked: Any, service: str) -> _Named:
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
    """Prefer the address for clients, if it is not denied. Raises LookupError for a primary that is down.

    During a failover, the leading Sentinel returns the promoted server there, while its state still has the old
    primary.
    """
    told = str(state["ip"]), int(state["port"])
    given = told if address is None else (_text(address[0]), int(address[1]))
    if given == told and (not state["is_master"] or state["is_sdown"] or state["is_odown"]):
        raise LookupError("takes it to be down")
    return _Named(int(state["config-epoch"]), given)


def _text(told: bytes | str) -> str:
    return told.decode() if isinstance(told, bytes) else told


def _latest(named: Iterable[_Named]) -> tuple[str, int]:
    return max(named, key=lambda each: each.epoch).place


def _none_named(service: str, told: Iterable[tuple[Any, BaseException | None]]) -> str:
    why = "; ".join(_why(asked, error) for asked, error in told)
    return f"no Sentinel names a primary {service!r} ({why})"


def _why(asked: redis.Redis | redis.asyncio.Redis, error: BaseException | None) -> str:
    options = asked.connection_pool.connection_kwargs
    why = "it is no Sentinel" if "unknown command" in str(error) else str(error).rstrip(".")
    return f"{options['host']}:{options['port']}: {why}"
