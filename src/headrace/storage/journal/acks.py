"""Acknowledges small batches before Redis has them: they are in the journal, and go to Redis behind that.

The journal may give up an entry only when Redis has written it to its own file. An answer proves nothing of that where
the disk is full: Valkey answers before it knows. It is proven by whatever Valkey takes that was *sent after* the
answer, since it takes nothing any more once a write of its file has failed.
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
"""How long no look is taken at whether the journal is where it was."""
_PROVE_S = 0.05
"""How long what is stored waits for a proof by another write, before a PING asks for one."""
_log = structlog.get_logger("headrace.storage.journal")


class Entered(msgspec.Struct, eq=False, gc=False):
    """A batch in the journal."""

    number: int
    size: int = 0
    stored: bool = False


class JournaledAcks:
    """The journal in front of Redis, with the marks that say what it must keep."""

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
        """By number, the oldest first; without those at its beginning that are stored."""
        self.stored_to = self._kept_to = journal.number
        """The last entry up to which Redis has answered for all, and up to which it is known to have written them."""
        self._timer: asyncio.TimerHandle | None = None
        self._proving = False
        self._closed = False
        self._looked_ms = 0
        self._gone = False
        """Whether the journal is not where a start looks for it: nothing is acknowledged from it."""
        self._why = ""
        """Why none could be made in its place, as it was told last."""
        self._making: asyncio.Task[None] | None = None

    @classmethod
    def over(cls, journal: Journal | None, connection: Connection, counted: StoreCounters) -> "JournaledAcks | None":
        """One over this journal, where there is one."""
        return None if journal is None else cls(journal, connection, lambda: int(time() * 1000), counted)

    def enter(self, key: bytes, log_id: bytes, base_offset: int, append: Append) -> Entered | None:
        """Enter a batch; None when it has to wait for Redis, since there is no room.

        Args:
            key: its log's key.
            log_id: tells the log from others under that key.
            base_offset: the offset that it gets.
            append: the batch, stamped.
        """
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
            # The other half is stored and only waits for its proof, or is on its way.
            self._prove()
            return None
        entered = Entered(number, len(append.batch))
        self._counted.journal_waiting += entered.size
        self._entered.append(entered)
        return entered

    def stored(self, entered: Entered) -> None:
        """Redis has answered for an entry, or it need not be stored any more."""
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
        """Redis has taken something that was sent when `stored_to` was this number."""
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
        """Look whether a start would find the journal, and tell of it; where it was removed, one is made in its place.

        Not before all that was entered is in Redis, whose answer every batch waits for meanwhile.
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
        """Close the journal; the server that starts on it next replays it.

        One that is being made is waited for: nobody else may have the data directory meanwhile.
        """
        self._closed = True
        if self._making is not None:
            await asyncio.wait([self._making])
        if self._timer is not None:
            self._timer.cancel()
        self._journal.close()
