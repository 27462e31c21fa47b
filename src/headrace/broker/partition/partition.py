"""What every partition can do, whether its records lie in a log or in a plain stream that anybody writes to."""

from collections.abc import Iterable
from typing import Protocol

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.source import Source
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.membership.view import Leader
from headrace.topics.model import Append, AppendDone, StoredBatch
from headrace.topics.rejected_batches import RejectedBatches


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
    def log(self) -> LeaderPartition | None:
        """Itself where it is a log of batches, which one broker leads; None: a plain stream, which is open to all."""

    @property
    def offline(self) -> str | None:
        """Why it takes no records, where its keys in Redis hold something else; None: none is known to."""

    @property
    def entry_per_record(self) -> bool:
        """Whether each record is an entry of its own in Redis, so that batches are opened, which takes long."""

    async def try_again(self) -> None:
        """Try to open it again if it is offline and no other broker would: the cause may be gone."""

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

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Show a group's position in Redis, where Redis does not keep it anyway."""

    def close(self) -> None:
        """The topic is gone: free the memory, wake everyone who waits."""


async def sizes_of(partitions: Iterable[Partition], pace: TimeSlice) -> list[int]:
    """Bytes of each partition: of the record batches in a log, of a native topic what Redis says of its stream."""
    return [size async for _, size in pace.a_few_at_once(list(partitions), lambda each: each.size())]
