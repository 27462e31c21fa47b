"""Acknowledge small batches from the journal before Redis has them.

The journal drops an entry only after Valkey has written it to its append-only file. On a full disk, Valkey responds
first. But it rejects commands after a failed write, so the response to a *later* command is the proof.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import time

import msgspec
import structlog

from headrace.metrics.counters import StoreCounters
from headrace.storage.errors import StoreError
from headrace.storage.free_space import FreeMemory
from headrace.storage.journal.journal import Journal
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import PING, Reply
from headrace.topics.model import Append

_LOOK_MS = 1_000
"""Milliseconds between checks that the journal is still in place."""
_PROVE_S = 0.05
"""Seconds to wait for another write as proof, before a PING."""
_log = structlog.get_logger("headrace.storage.journal")


class Entered(msgspec.Struct, eq=False, gc=False):
    """A batch in the journal."""

    number: int
    size: int = 0
    stored: bool = False


class JournaledAcks:
    """The journal, with the marks of its stored entries."""

    def __init__(
        self,
        journal: Journal,
        connection: Connection,
        now_ms: Callable[[], int],
        counted: StoreCounters | None = None,
    ) -> None:
        self._journal = journal
        self.size = journal.size
        self._connection = connection
        self._now_ms = now_ms
        self._counted = counted or StoreCounters()
        self._counted.journal_bytes = self.size
        self._memory = FreeMemory(connection, self.size)
        self._entered: deque[Entered] = deque()
        """By number, the oldest first, without the leading entries that are stored."""
        self.stored_to = self._kept_to = journal.number
        """Last entry up to which Redis has responded for all, and up to which they are proven."""
        self._timer: asyncio.TimerHandle | None = None
        self._proving = False
        self._closed = False
        self._looked_ms = 0
        self._gone = False
        """Whether the journal is missing at its path. Then nothing is acknowledged from it."""
        self._why = ""
        """Last logged reason why no new journal could be created."""
        self._making: asyncio.Task[None] | None = None

    @classmethod
    def over(cls, journal: Journal | None, connection: Connection, counted: StoreCounters) -> "JournaledAcks | None":
        """Return an object for this journal, or None without one."""
        return None if journal is None else cls(journal, connection, lambda: int(time() * 1000), counted)

    def enter(self, key: bytes, log_id: bytes, base_offset: int, append: Append) -> Entered | None:
        """Enter a stamped batch, or return None if it has to wait for Redis."""
        if self._closed:
            return None
        now_ms = self._now_ms()
        if abs(now_ms - self._looked_ms) >= _LOOK_MS:
            self._looked_ms = now_ms
            self.look()
        if self._gone or not self._memory.take(len(append.batch)):
            return None
        number = self._journal.add(key, log_id, base_offset, now_ms, append)
        if not number:
            self._prove()
            return None
        entered = Entered(number, len(append.batch))
        self._counted.journal_waiting += entered.size
        self._entered.append(entered)
        return entered

    def stored(self, entered: Entered) -> None:
        """Mark an entry that Redis has, or that is no longer needed."""
        if entered.stored:
            return
        entered.stored = True
        self._counted.journal_waiting -= entered.size
        waiting = self._entered
        number = 0
        while waiting and waiting[0].stored:
            number = waiting.popleft().number
        if number:
            self.stored_to = number
            if self._timer is None and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(_PROVE_S, self._prove)

    def proven(self, number: int) -> None:
        """Note a response to a command that was sent when `stored_to` was this number."""
        if number > self._kept_to and not self._closed:
            self._kept_to = number
            self._journal.kept(number)

    def _prove(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.stored_to > self._kept_to and not self._proving and not self._closed:
            self._proving = True
            number = self.stored_to

            def answered(reply: Reply) -> None:
                self._proving = False
                if isinstance(reply, Exception):
                    if self._timer is None and not self._closed:
                        self._timer = asyncio.get_running_loop().call_later(_PROVE_S, self._prove)
                else:
                    self.proven(number)

            self._connection.send([PING], answered)

    def look(self) -> None:
        """Log whether the journal is in place, and replace a missing one.

        The replacement is created after Redis has all entries. Until then, each batch waits for Redis.
        """
        if self._closed or self._making is not None:
            return
        if self._journal.in_place:
            self._is_back()
            return
        if not self._gone:
            self._gone = True
            _log.error(
                "the journal file is missing: every batch waits for Redis until it is recreated",
                journal=str(self._journal.path),
            )
        if self._entered or self.stored_to > self._kept_to:
            self._prove()
        else:
            self._making = asyncio.get_running_loop().create_task(self._make(), name="journal")

    def _is_back(self) -> None:
        if self._gone:
            self._gone, self._why = False, ""
            _log.info("the journal has been recreated", journal=str(self._journal.path))

    async def _make(self) -> None:
        try:
            made = await asyncio.to_thread(self._journal.again)
        except StoreError as error:
            if str(error) != self._why:
                self._why = str(error)
                _log.warning("the journal cannot be created", reason=self._why)
        else:
            self._journal.close()
            self._journal = made
            self._is_back()
        finally:
            self._making = None

    async def close(self) -> None:
        """Close the journal, for a replay by the next server.

        This waits for a replacement: the data directory must not be released before.
        """
        self._closed = True
        if self._making is not None:
            await asyncio.wait([self._making])
        if self._timer is not None:
            self._timer.cancel()
        self._journal.close()
