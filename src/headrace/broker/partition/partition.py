"""Define the operations that logs and native topics have in common."""

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
    """Whether appends are refused while the records move to other storage."""
    leader: int | None
    """Node id of the leader by cluster membership; None if this server leads."""
    named: Leader
    """The leader that the server advertises to clients."""
    refusals: RejectedBatches
    """Batches that were refused temporarily, whichever broker leads now."""

    @property
    def log(self) -> LeaderPartition | None:
        """The partition itself if it is a log with one leader; None for a native topic."""

    @property
    def offline(self) -> str | None:
        """Why it accepts no records if its Redis keys hold foreign data; None if no reason is known."""

    @property
    def entry_per_record(self) -> bool:
        """Whether each record is a Redis entry, so that batches must be expanded, which is slow."""

    async def try_again(self) -> None:
        """Retry an offline partition that no other component retries."""

    def want_copies(self, copies: int) -> None:
        """Set the number of servers that must have a batch (`min.insync.replicas`)."""

    def check_led(self) -> None:
        """Raise NotLeader unless this server leads the open partition."""

    def append(self, append: Append, done: AppendDone, copies: int = 1, wait_ms: int = 0) -> None:
        """Store a validated batch and call `done` once with its place or an error.

        The partition takes over the batch's buffer and stamps it in place. `done` waits at most `wait_ms` until
        `copies` servers have the batch (`min.insync.replicas`); with 0 only for the primary.

        Raises:
            UnknownTopic, StorageUnavailable, CorruptBatch, NotEnoughReplicas: nothing was stored; `done` is not called.
        """

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch up to `epoch` and its end offset (KIP-320); -1, -1 for none.

        Raises:
            NotLeader: it is not known yet.
        """

    def expire_producers(self, before_ms: int) -> None:
        """Forget idempotent producers that were last active before this time (ms)."""

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Apply retention by time and bytes, at most up to an offset; None for no bound."""

    async def delete_before(self, offset: int) -> None:
        """Raise the log start offset to `offset`."""

    async def size(self) -> int:
        """Return the bytes that its records take in storage."""

    async def settle(self) -> None:
        """Return once every earlier append is answered and readable."""

    async def next_batch(self, offset: int) -> StoredBatch | None:
        """Return the batch of the first record from `offset` that is in memory or Redis; None: there is none."""

    async def read_range(self, offset: int, limit: int) -> list[StoredBatch]:
        """Return about `limit` bytes of whole batches from `offset`; none at the end."""

    async def mirror_offset(self, group: str, offset: int) -> None:
        """Show a group's committed offset in Redis, unless Redis already stores it."""

    def close(self) -> None:
        """Free the memory of a deleted topic and wake all waiters."""


async def sizes_of(partitions: Iterable[Partition], pace: TimeSlice) -> list[int]:
    """Return the bytes of each partition: its batches, or its stream's size for a native topic."""
    return [size async for _, size in pace.a_few_at_once(list(partitions), lambda each: each.size())]
