"""ShareFetch: acquire records of many partitions in turn, and wait for some without polling.

A fetch waits for new records, records that are available again, or room in a window. It looks at every partition once,
and then only at partitions that reported a change.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

import msgspec

from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.sharing.session import Place, ShareSession
from headrace.broker.sharing.share import Share, ShareFound
from headrace.topics.errors import TopicError, UnknownTopic

_LEAST_READ = 1 << 20
"""Bytes read from a log at most, unless a fetch wants more: one batch may be that large."""
_REPEATED_MS = 500
"""Delay of a response that repeats known errors only."""


class ShareFetchLimits(msgspec.Struct, frozen=True):
    """Limits of one fetch."""

    max_wait_ms: int
    max_bytes: int
    max_records: int
    exact: bool
    """Whether `max_records` is a strict limit."""


class ShareFetch:
    """One fetch of a session."""

    def __init__(
        self,
        session: ShareSession,
        limits: ShareFetchLimits,
        find: Callable[[str, Place], Share],
        unknown: Callable[[Share], None],
        code_of: Callable[[Exception], int],
        *,
        clock: Clock,
        budget: ReadBudget,
        lane: CooperativeScheduler,
    ) -> None:
        """`find` returns a share partition of a group, or raises TopicError or PermissionError.

        `unknown` is called with one that the group does not have.
        """
        self.found: dict[Place, ShareFound] = {}
        """Partitions with records."""
        self.errors: dict[Place, Exception] = {}
        """Partitions that cannot be read."""
        self.waited = 0.0
        """Seconds that it waited for records."""
        self.held = 0
        """Bytes of the budget that the records hold. The caller releases them."""
        self._session = session
        self._limits = limits
        self._find = find
        self._unknown = unknown
        self._code_of = code_of
        self._clock = clock
        self._budget = budget
        self._lane = lane
        self._records = 0
        self._due: dict[Place, None] = {}
        """Partitions to look at."""
        self._wake: asyncio.Future[None] | None = None
        self._unwatch: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Fetch: fill `found`, `errors` and `held`."""
        limits = self._limits
        if limits.max_records < 1 or limits.max_bytes < 1:
            return
        deadline_ms = self._clock.ticks_ms() + limits.max_wait_ms
        self._due = dict.fromkeys(self._session.in_turn())
        try:
            await self._look()
            if not self._is_over() and limits.max_wait_ms > 0:
                await self._watch()
                # A change before the watch began must not be missed.
                self._due = dict.fromkeys(self._session.in_turn())
                await self._look()
                await self._wait(self._late(deadline_ms))
        finally:
            for unwatch in self._unwatch:
                unwatch()

    def _late(self, deadline_ms: int) -> int:
        return min(deadline_ms, self._clock.ticks_ms() + _REPEATED_MS) if self.errors else deadline_ms

    def _is_over(self) -> bool:
        told = self._session.told
        return bool(self.found) or any(told.get(place) != self._code_of(error) for place, error in self.errors.items())

    async def _wait(self, deadline_ms: int) -> None:
        timer: Timer | None = None
        began = perf_counter()
        try:
            while not self._is_over() and self._clock.ticks_ms() < deadline_ms:
                if not self._due:
                    self._wake = asyncio.get_running_loop().create_future()
                    if timer is None:
                        timer = self._clock.call_at(deadline_ms, self._woken)
                    await self._wake
                    self._wake = None
                    self.waited += perf_counter() - began
                await self._look()
                began = perf_counter()
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _watch(self) -> None:
        async for place in self._lane.pace().each(self._session.in_turn()):
            if place in self.errors:
                # This fetch repeats the error soon.
                continue
            try:
                share = self._find(self._session.group, place)
            except (TopicError, PermissionError):
                continue
            reported = partial(self._reported, place)
            share.log.watch(reported, share.isolation)
            share.watchers.watch(reported)
            self._unwatch += [partial(share.log.unwatch, reported), partial(share.watchers.discard, reported)]

    def _reported(self, place: Place, size: int) -> None:
        del size
        self._due[place] = None
        self._woken()

    async def _look(self) -> None:
        """Look at the partitions that are due, until a limit is reached."""
        due, self._due = self._due, {}
        granted = 0
        try:
            async for place in self._lane.pace().each(due):
                share = await self._ready(place)
                if share is None or not share.has_some():
                    continue
                if not granted:
                    granted = await self._budget.acquire(self._limits.max_bytes + _LEAST_READ, _LEAST_READ)
                if not await self._take(place, share, granted):
                    break
        finally:
            size = sum(found.size for found in self.found.values())
            # A single batch may exceed what was granted.
            self._budget.release(granted - (size - self.held))
            self.held = size

    async def _ready(self, place: Place) -> Share | None:
        share: Share | None = None
        try:
            share = self._find(self._session.group, place)
            if not share.is_ready:
                await share.ready()
        except (TopicError, PermissionError) as error:
            self._fail(place, share, error)
            return None
        self.errors.pop(place, None)
        return share

    def _fail(self, place: Place, share: Share | None, error: Exception) -> None:
        self.errors[place] = error
        if share is not None and isinstance(error, UnknownTopic):
            self._unknown(share)

    async def _take(self, place: Place, share: Share, granted: int) -> bool:
        """Acquire records of a partition. Return whether the limits leave room for another one."""
        limits = self._limits
        size = sum(found.size for found in self.found.values())
        room = min(limits.max_bytes, granted) - size
        try:
            found = await share.fetch(
                self._session.member_id, limits.max_records - self._records, room, exact=limits.exact
            )
        except TopicError as error:
            self._fail(place, share, error)
            return True
        if found.unfinished:
            self._due[place] = None
        if found.acquired:
            try:
                self._find(self._session.group, place)
            except (TopicError, PermissionError) as error:
                # The session ended after it was checked. Its end did not release these records.
                await share.give_back(self._session.member_id, found.acquired)
                self._fail(place, None, error)
                return True
            self.found[place] = found
            self._session.served = place
            self._records += sum(each.last - each.first + 1 for each in found.acquired)
        return self._records < limits.max_records and room > found.size
