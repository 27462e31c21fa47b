"""A log that another server owns, as Redis has it: `broker.ports.LogLook`. It is read and never written."""

from typing import Self

from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import state_of
from headrace.storage.logs.timestamp_index import Searching
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import StoredBatch


class LookedAtLog(Searching):
    """One log, between its start and its end of a moment ago.

    All that is in its stream counts: whoever owns the log next begins behind it, so it is never taken back.
    """

    def __init__(
        self,
        scripts: Scripts,
        stream: str,
        high_watermark: int,
        log_start: int,
        next_offset: int,
        epochs: LeaderEpochs | None,
    ) -> None:
        """Use `look`. `epochs` None: nobody has opened the log yet."""
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.next_offset = next_offset
        self._scripts = scripts
        self._stream = stream
        self.epochs = epochs

    @classmethod
    async def look(cls, scripts: Scripts, stream: str) -> Self:
        """See where a log starts and ends. Raises StorageUnavailable."""
        answer = await scripts.run("extent", [stream, state_of(stream)])
        return cls(scripts, stream, partition.high_watermark(answer), *partition.extent(answer))

    async def settle(self, stream: str) -> None:
        """Return at once: what another server owns is read as Redis has it."""

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """At most `count` batches up to offset `end`, or the log's, the one that holds `offset` first."""
        assert stream == self._stream
        end = self.next_offset if end is None else min(end, self.next_offset)
        if self.epochs is None or offset >= end:
            return []
        first, last = entries.range_start(self.epochs, offset), entries.range_end(self.epochs, end)
        while True:
            connection = self._scripts.shards.at(stream)
            raw = checked(await connection.call("XRANGE", stream, first, last, "COUNT", count, reads=True))
            found = entries.decode(raw)
            if found or not raw:
                return found
            # Entries that somebody else wrote; the owner sets them aside.
            first = f"({raw[-1][0].decode()}"

    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        if self.epochs is None:
            return None, -1
        entry, newest = await self._scripts.run("find_timestamp", [stream, state_of(stream)], wanted)
        return (entries.decode([entry])[0] if entry else None), int(newest)
