"""What every partition can do, whether its records lie in a log or in a plain stream that anybody writes to."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.aio.callbacks import log_unhandled
from headrace.aio.concurrency import in_slices
from headrace.broker.partition.cache import Buffer
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.membership.view import Leader
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append, AppendDone, StoredBatch
from headrace.topics.rejected_batches import RejectedBatches

if TYPE_CHECKING:
    from headrace.broker.partition.leader import LeaderPartition
    from headrace.broker.partition.timestamps import FoundOffset, Searcher

Watcher = Callable[[int], None]
"""Called with the size in bytes of each batch as it becomes readable; with 0 when the partition goes away."""
_AT_ONCE = 64
"""Partitions whose sizes are asked for together: ten thousand of them keep nothing else waiting."""
UNKNOWN_SIZE = 1 << 40
"""Said of what comes without its size being known: enough for whoever waits to look again."""


class Readable(Protocol):
    """A partition, as whoever fetches may read it."""

    @property
    def log_start(self) -> int:
        """First offset that may be read."""

    @property
    def log_end(self) -> int:
        """The offset behind the last record that may be read: the high watermark."""

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange or UnknownTopic."""

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing."""

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether a read can be answered from memory (the log end itself included).

        `ahead`: also from what was read ahead, and was in storage only until somebody came for it.
        """

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False
    ) -> tuple[list[Buffer], int]:
        """Whole batches from memory and their size; see `Tail.read` and `read_stored`."""

    async def read_stored(
        self, offset: int, limit: int, *, join: bool = False, first: int | None = None
    ) -> tuple[list[Buffer], int]:
        """Whole batches from storage, the one holding `offset` first, at least one if there is one, and their size.

        Where they are to `join`, several may come as one buffer, but the last is always by itself. `first`: bytes that
        the first may have, in a native topic; NeedsRoom is raised where it has more. Those of a log have a bound.
        """

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every batch from now on."""

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling; harmless when it was not watching."""


class Source(Readable, Protocol):
    """A partition that records are read from and looked up in, wherever it is led."""

    topic: str
    index: int
    stream: str
    """The Redis key of its stream."""

    @property
    def deleted(self) -> bool:
        """Whether its topic is gone."""

    @property
    def local_start(self) -> int:
        """First offset that lies in Redis; those before it, from `log_start` on, are in the archive."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the last opening that is known of (KIP-101); -1: none is."""

    def kept(self, offset: int, leader_epoch: int) -> int:
        """How far the log is what it was for who came to `offset` under this leader epoch; -1: that is not known.

        That is `offset`, or where Redis came back with less: there others have come in their place.
        """

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is certain to lie behind all that there is, so that no reader can have come to it."""

    async def ask_end(self) -> None:
        """Know where it ends by now, where others append to it as well.

        Raises NotLeader where it is not known how far it may be read, since its copies are waited for;
        StorageUnavailable.
        """

    async def find_offset(self, timestamp: int, searcher: "Searcher") -> "FoundOffset":
        """ListOffsets: by a timestamp (ms) or a `timestamps.Special`; `searcher` looks into the batches."""


class Partition(Source, Protocol):
    """A partition of a topic in the running server."""

    paused: bool
    """Whether appends are refused for a moment: its records are about to be elsewhere."""
    leader: int | None
    """The node id of the broker that is to lead it, by the view; None: this server is."""
    named: Leader
    """Who leads it, as clients are told."""
    refusals: RejectedBatches
    """What was refused here for a moment, whoever leads it by now."""

    @property
    def log(self) -> "LeaderPartition | None":
        """Itself where it is a log of batches, which one broker leads; None: a plain stream, which is open to all."""

    @property
    def offline(self) -> str | None:
        """Why it takes no records, where its keys in Redis hold something else; None: none is known to."""

    def want_copies(self, copies: int) -> None:
        """So many servers are to have what can be read from now on (`min.insync.replicas`)."""

    def check_led(self) -> None:
        """Raise NotLeader unless this server leads it and has opened it."""

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Store a checked batch; `done` gets its place in the log, or the error.

        The batch's buffer belongs to the partition from here on: it is stamped in place.

        Args:
            append: the batch.
            done: told once.
            copies: how many servers are to have it (`min.insync.replicas`).
            wait_ms: how long `done` waits for that at most; 0: it is told as soon as the primary has the batch.

        Raises:
            UnknownTopic, StorageUnavailable, CorruptBatch, NotEnoughReplicas: nothing was stored and `done` is not
                called.
        """

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch (KIP-320): the largest leader epoch up to this one and its end; -1, -1 for none.

        Raises NotLeader where that is not known yet.
        """

    def expire_producers(self, before_ms: int) -> None:
        """Forget idempotent producers that were last heard of before this time (ms)."""

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Retention by time and by bytes, at most up to an offset; None: no bound."""

    async def delete_before(self, offset: int) -> None:
        """Move the log start up to `offset`."""

    async def size(self) -> int:
        """Bytes that its records take in storage."""

    async def settle(self) -> None:
        """Return when every append given before has its answer and can be read."""

    async def read_range(self, offset: int, limit: int) -> list[StoredBatch]:
        """About `limit` bytes of whole batches from `offset` on; nothing at the end."""

    async def mirror_position(self, group: str, offset: int) -> None:
        """Show a group's position in Redis, where Redis does not keep it anyway."""

    def close(self) -> None:
        """The topic is gone: free the memory, wake everyone who waits."""


def gone(partition: Source) -> UnknownTopic:
    """Why a partition of a deleted topic can be neither read nor written."""
    return UnknownTopic(f"{partition.topic}-{partition.index} has been deleted")


def changing(partition: Source) -> StorageUnavailable:
    """Why a partition that is being converted takes nothing just now."""
    return StorageUnavailable(f"{partition.topic}-{partition.index}: its storage is being changed")


def outside(partition: Source, offset: int, log_start: int, log_end: int) -> OffsetOutOfRange:
    """Why nothing can be read at an offset of a log that reaches from `log_start` to `log_end`."""
    return OffsetOutOfRange(f"{partition.topic}-{partition.index}: offset {offset} is outside {log_start} to {log_end}")


class Watchers(set[Watcher]):
    """Those who wait for records of a partition."""

    def tell(self, size: int) -> None:
        """There are so many bytes more; 0: the partition went away."""
        for watcher in tuple(self):
            try:
                watcher(size)
            except Exception:
                # All others are told, and whoever has appended the batch.
                log_unhandled("a fetch that waits")


async def sizes_of(partitions: Iterable[Partition], pace: TimeSlice) -> list[int]:
    """Bytes of each partition: of the record batches in a log, of a native topic what Redis says of its stream."""
    chosen = list(partitions)
    sizes: list[int] = []
    # Redis answers many who ask in one turn of the loop.
    async for part in in_slices(chosen, lambda each: each.size(), _AT_ONCE, pace.rest):
        sizes += [size for _, size in part]
    return sizes
